"""The loss over planes through a point, here and elsewhere on its orbit."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.landscape.axes import bent, centred, halved
from spiritlevel.landscape.directions import Aim, Biases, aimed, given
from spiritlevel.landscape.journal import Journal, opened
from spiritlevel.landscape.passes import Passes, Score, passes
from spiritlevel.landscape.points import Way, evaluate
from spiritlevel.landscape.statistics import Statistics, checked
from spiritlevel.landscape.stops import refuse_stops, stops
from spiritlevel.landscape.telling import told
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.results.landscape import Sheet, Surface
from spiritlevel.symmetry import Group, verify
from spiritlevel.symmetry.group import only_groups

Known = dict[tuple[float, float], Score | None]
Axes = tuple[list[float], list[float]]
PARALLEL = 1e-9  # 1 - |cos| of the angle: below it two directions are one


def plane(
    objective: Objective,
    kind: str | Sequence[str] = "filter",
    *,
    directions: Sequence[Any] | None = None,
    steps: int = 25,
    span: float = 1.0,
    refine: int = 0,
    orbit: int = 0,
    strength: float = 1.0,
    biases: Biases = "zero",
    statistics: Statistics = "frozen",
    seed: int = 0,
    group: Group | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Surface:
    """L(theta + a d + b e) for a and b from -span to span.

    - `kind`: "filter" (Li et al., 2018), "layer", "gaussian", "orbit" (the same picture for every
      point of the orbit), "hessian", "gradient", "generator"; one for both directions, or two.
    - `directions`: two of your own instead: vectors, named tensors, or networks to look towards.
    - `refine`: how often the intervals in which the surface bends most are halved.
    - `orbit`: at how many other points of the orbit the same picture is taken, along a random
      rescaling with log-scales of N(0, strength^2); each is proved to predict the same.
    - `biases`: "zero" leaves biases and the gains of norms where they are, "scale" moves them too.
    - `statistics`: "recomputed" gives BatchNorm the running statistics of every place.
    - `journal`: a file in which values are kept, so that a killed run goes on where it was.
    """
    only_objectives(objective)
    only_groups(group)
    _refuse(refine, orbit, strength, seed)
    checked(objective, statistics)
    axis, begin = centred(steps, span), time.perf_counter()
    kinds = [kind, kind] if isinstance(kind, str) else list(kind)
    aim = aim_at(objective, kinds, directions, seed, biases, group)
    question = {"plane": [axis, refine, statistics, orbit, strength, kinds, biases, seed]}
    book = opened(journal, objective, aim.directions, question, group=group)
    first, sheets, axes, way, interrupted = aim, [], (axis, axis), None, ""
    for name, twin in stops(objective, group, orbit, strength, seed):
        if twin is not objective:
            aim = aim_at(twin, kinds, directions, seed, biases, group)
        rounds = refine if not sheets else 0  # all sheets have the axes of the first
        found = over(
            passes(aim.objective, aim.directions, statistics=statistics), axes, rounds, book, way
        )
        axes, way, interrupted = found.axes, found.way, found.interrupted
        same = None if aim.objective is objective else verify(objective, aim.objective)
        sheets.append(replace(found.sheet(name), certificate=same))
        if interrupted:
            break
    about = {"seed": seed, "statistics": statistics, "interrupted": interrupted}
    return Surface(
        x=tuple(axes[0]),
        y=tuple(axes[1]),
        directions=(first.told[0], first.told[1]),
        sheets=tuple(sheets),
        provenance=told(objective, begin, way, notes=first.notes, **about),
    )


def _refuse(refine: int, orbit: int, strength: float, seed: int) -> None:
    number("refine", refine, 0, whole=True)
    refuse_stops(orbit, strength)
    seeded(seed)


def aim_at(
    objective: Objective,
    kinds: list[str],
    directions: Sequence[Any] | None,
    seed: int,
    biases: Biases,
    group: Group | None,
) -> Aim:
    """Two directions of these kinds, or the given ones."""
    count = len(kinds if directions is None else list(directions))
    if count != 2:
        name = "kind" if directions is None else "directions"
        raise SpiritlevelError(f"a plane has two directions, and {name} names {count}")
    if directions is None:
        aim = aimed(objective, kinds, seed=seed, biases=biases, group=group)
    else:
        aim = given(objective, list(directions))
    _refuse_parallel(*aim.directions)
    return aim


def _refuse_parallel(d: Tensor, e: Tensor) -> None:
    one, other = d.double(), e.double()
    if not float(abs(one @ other)) < (1 - PARALLEL) * float(one.norm() * other.norm()):
        raise SpiritlevelError(
            "the two directions of a plane are parallel, or one is zero: give two kinds or "
            "directions that differ, or use line()"
        )


@dataclass(frozen=True)
class Plain:
    """Scores over a plane."""

    axes: Axes
    known: Known
    way: Way
    interrupted: str

    def sheet(self, name: str) -> Sheet:
        x, y = self.axes
        rows = [[self.known.get((a, b)) for a in x] for b in y]
        losses = tuple(tuple(None if s is None else s.loss for s in row) for row in rows)
        shares = tuple(tuple(None if s is None else s.accuracy for s in row) for row in rows)
        none = all(share is None for row in shares for share in row)
        return Sheet(name, losses, None if none else shares)


def over(
    these: Passes, axes: Axes, refine: int = 0, book: Journal | None = None, way: Way | None = None
) -> Plain:
    """The loss over a plane, refined where it bends."""
    known: Known = {}
    for turn in range(refine + 1):
        if turn:
            axes = _finer(axes, known)
        fresh = [(a, b) for b in axes[1] for a in axes[0] if (a, b) not in known]
        found = evaluate(these, fresh, journal=book, way=way)
        known |= dict(zip(fresh, found.scores, strict=True))
        way = found.way
        if found.interrupted:
            return Plain(axes, known, way, found.interrupted)
    assert way is not None
    return Plain(axes, known, way, "")


def _finer(axes: Axes, known: Known) -> Axes:
    x, y = axes
    losses = [[known[a, b].loss for a in x] for b in y]  # type: ignore[union-attr]
    columns = [list(column) for column in zip(*losses, strict=True)]
    return halved(x, bent(x, losses)), halved(y, bent(y, columns))
