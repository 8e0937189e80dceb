"""Freedoms of a network that no rescaling is part of, and that an audit leaves as they are."""

from __future__ import annotations

from spiritlevel.objective import Objective
from spiritlevel.results.symmetry import Left
from spiritlevel.symmetry import Group, head_maps, permutations, sign_flips


def left(objective: Objective, group: Group) -> tuple[Left, ...]:
    """Permutations and signs where there is no rescaling to speak of, and the maps of heads."""
    found = []
    if not group.dim:  # beside rescalings nobody asks for what moves no measure
        units = sum(one.size for one in permutations(objective))
        found += [Left("permutations", units), Left("signs", sign_flips(objective).dim)]
    if any(kind in group.kinds for kind in ("query-key", "value-output")) or not group.dim:
        found.append(Left("heads", len(head_maps(objective))))
    return tuple(one for one in found if one.count)
