"""Freedoms beside the rescalings, which an audit and a comparison leave as they are."""

from __future__ import annotations

from spiritlevel.objective import Objective
from spiritlevel.results.symmetry import Left, Reason
from spiritlevel.symmetry import Group, head_maps, permutations, sign_flips


def left(objective: Objective, group: Group) -> tuple[Left, ...]:
    """Permutations and signs where there is no rescaling to speak of, and all that moves."""
    found = []
    if not group.dim:  # beside rescalings nobody asks for what moves no measure
        units = sum(one.size for one in permutations(objective))
        found += [Left("permutations", units), Left("signs", sign_flips(objective).dim)]
    return tuple(one for one in found if one.count) + moving(objective, group)


def moving(objective: Objective, group: Group) -> tuple[Left, ...]:
    """What may make a least value over all rescalings smaller."""
    attends = any(kind in group.kinds for kind in ("query-key", "value-output"))
    heads = len(head_maps(objective)) if attends or not group.dim else 0
    mixed = group.kinds.get("linear", 0)
    norms = sum(block.reason is Reason.EPS for block in group.blocks)
    found = [Left("heads", heads), Left("linear", mixed if mixed > 1 else 0), Left("eps", norms)]
    return tuple(one for one in found if one.count) + hidden(objective, group)


def hidden(objective: Objective, group: Group) -> tuple[Left, ...]:
    """Where there may be rescalings that were not found."""
    ruleless = sum(block.reason is Reason.NO_RULE for block in group.blocks)
    whole = sum(p.numel() for p in objective.module.parameters())
    found = [Left("blocked", ruleless), Left("unchosen", max(whole - objective.size, 0))]
    return tuple(one for one in found if one.count)
