"""Points of an orbit at which the same picture is taken."""

from __future__ import annotations

from collections.abc import Iterator

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective import Objective
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.find import group_of


def refuse_stops(orbit: int, strength: float) -> None:
    number("orbit", orbit, 0, whole=True)
    number("strength", strength, above=0)


def stops(
    objective: Objective, group: Group | None, count: int, strength: float, seed: int
) -> Iterator[tuple[str, Objective]]:
    """The point itself and others on its orbit, farther and farther along one element."""
    yield "as given", objective
    if not count:
        return
    group = group_of(objective, group)
    if not group.dim:
        raise SpiritlevelError(
            "orbit= needs a rescaling that changes no prediction; this network has none: orbit=0"
        )
    element = group.random(seed, strength)
    for i in range(1, count + 1):
        yield f"rescaled, {i / count:.0%}", group.apply(objective, element * (i / count))
