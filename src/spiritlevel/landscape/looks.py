"""What is asked of a picture: checked before any work, and asked again at other points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.doors import names, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.landscape.directions import Aim, Biases, aimed, given, listed
from spiritlevel.landscape.journal import refuse_file
from spiritlevel.landscape.statistics import Statistics, checked
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.group import only_groups

PARALLEL = 1e-9  # 1 - |cos| of the angle: below it two directions are one


@dataclass(frozen=True)
class Look:
    """Along which directions a picture is taken, wherever it is taken."""

    kinds: list[str]
    directions: Sequence[Any] | None = None
    seed: int = 0
    biases: Biases = "zero"
    group: Group | None = None

    def at(self, objective: Objective) -> Aim:
        if self.directions is not None:
            return given(objective, self.directions)
        drawn: dict[str, Any] = {"seed": self.seed, "biases": self.biases, "group": self.group}
        return aimed(objective, self.kinds, **drawn)

    def plane(self, objective: Objective) -> Aim:
        """Two directions that span a plane."""
        aim = self.at(objective)
        d, e = (direction.double() for direction in aim.directions)
        if not float(abs(d @ e)) < (1 - PARALLEL) * float(d.norm() * e.norm()):
            raise SpiritlevelError(
                "the two directions of a plane are parallel, or one is zero: give two kinds or "
                "directions that differ, or use line()"
            )
        return aim


def two(kind: str | Sequence[str], directions: Sequence[Any] | None) -> list[str]:
    """The kinds of the two directions of a plane: one for both, or two."""
    found = names("kind", kind)
    kinds = found * 2 if isinstance(kind, str) else found
    count = len(kinds if directions is None else listed(directions))
    if count != 2:
        name = "kind" if directions is None else "directions"
        raise SpiritlevelError(
            f"a plane has two directions, and {name} names {count}: give two of them"
        )
    return kinds


def refuse(
    objective: Objective,
    *,
    group: Group | None = None,
    seed: int = 0,
    statistics: Statistics = "frozen",
    refine: int = 0,
    journal: Any = None,
) -> None:
    """What pictures have in common and cannot be used."""
    only_objectives(objective)
    only_groups(group)
    seeded(seed)
    checked(objective, statistics)
    number("refine", refine, 0, whole=True)
    refuse_file(journal)
