"""The loss over planes through a point, here and elsewhere on its orbit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spiritlevel.landscape.axes import bent, centred, halved
from spiritlevel.landscape.directions import Biases
from spiritlevel.landscape.journal import Journal, opened
from spiritlevel.landscape.looks import Look, refuse, two
from spiritlevel.landscape.passes import Passes, Score, passes
from spiritlevel.landscape.points import Way, evaluate
from spiritlevel.landscape.statistics import Statistics
from spiritlevel.landscape.stops import refuse_stops, stops
from spiritlevel.landscape.telling import told
from spiritlevel.objective import Objective
from spiritlevel.results.landscape import Sheet, Surface
from spiritlevel.symmetry import Group, verify

Known = dict[tuple[float, float], Score | None]
Axes = tuple[list[float], list[float]]


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
    asked: dict[str, Any] = {"statistics": statistics, "refine": refine, "journal": journal}
    refuse(objective, group=group, seed=seed, **asked)
    refuse_stops(orbit, strength)
    look = Look(two(kind, directions), directions, seed, biases, group)
    points = stops(objective, group, orbit, strength, seed)
    along = [orbit, strength]
    return _surface(objective, look, centred(steps, span), points, along, **asked)


def _surface(
    objective: Objective,
    look: Look,
    axis: list[float],
    points: Iterator[tuple[str, Objective]],
    along: list[float],
    *,
    statistics: Statistics,
    refine: int,
    journal: Any,
) -> Surface:
    """The same look at all points, on the axes that suit the first."""
    begin, first = time.perf_counter(), look.plane(objective)
    question = [axis, refine, statistics, along, look.kinds, look.biases, look.seed]
    book = opened(journal, objective, first.directions, {"plane": question}, group=look.group)
    sheets, axes, way, interrupted = [], (axis, axis), None, ""
    for name, twin in points:
        aim = first if twin is objective else look.plane(twin)
        these = passes(aim.objective, aim.directions, statistics=statistics)
        found = over(these, axes, 0 if sheets else refine, book, way)
        axes, way, interrupted = found.axes, found.way, found.interrupted
        same = None if aim.objective is objective else verify(objective, aim.objective)
        sheets.append(replace(found.sheet(name), certificate=same))
        if interrupted:
            break
    about = {"seed": look.seed, "statistics": statistics, "interrupted": interrupted}
    return Surface(
        x=tuple(axes[0]),
        y=tuple(axes[1]),
        directions=(first.told[0], first.told[1]),
        sheets=tuple(sheets),
        provenance=told(objective, begin, way, notes=first.notes, **about),
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
