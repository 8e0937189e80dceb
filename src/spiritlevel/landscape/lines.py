"""The loss along lines through a point."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spiritlevel.base.doors import number
from spiritlevel.landscape.axes import bent, centred, halved
from spiritlevel.landscape.directions import Biases
from spiritlevel.landscape.journal import Journal, opened
from spiritlevel.landscape.looks import Look, refuse
from spiritlevel.landscape.numbers import flat_radius
from spiritlevel.landscape.passes import Passes, Score, passes
from spiritlevel.landscape.points import Way, evaluate
from spiritlevel.landscape.statistics import Statistics
from spiritlevel.landscape.telling import told
from spiritlevel.objective import Objective
from spiritlevel.results.landscape import Curve, Line
from spiritlevel.symmetry import Group

Known = dict[float, Score | None]


def line(
    objective: Objective,
    kind: str = "filter",
    *,
    count: int = 1,
    directions: Sequence[Any] | None = None,
    steps: int = 51,
    span: float = 1.0,
    refine: int = 0,
    rise: float = 0.1,
    biases: Biases = "zero",
    statistics: Statistics = "frozen",
    seed: int = 0,
    group: Group | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Line:
    """L(theta + a d) for a from -span to span, along `count` directions of a kind or given ones.

    The flat radius of each is where the loss has risen by `rise`. `refine` times the intervals in
    which the curve bends most are halved. With `journal`, a file, a killed run goes on where it
    was. What the kinds are: `spiritlevel.landscape.plane`.
    """
    asked: dict[str, Any] = {"statistics": statistics, "refine": refine, "journal": journal}
    refuse(objective, group=group, seed=seed, **asked)
    number("count", count, 1, whole=True)
    number("rise", rise, above=0)
    look = Look([kind] * count, directions, seed, biases, group)
    return _lines(objective, look, centred(steps, span), rise, **asked)


def _lines(
    objective: Objective,
    look: Look,
    axis: list[float],
    rise: float,
    *,
    statistics: Statistics,
    refine: int,
    journal: Any,
) -> Line:
    begin, aim = time.perf_counter(), look.at(objective)
    question = {"line": [axis, refine, statistics]}
    book = opened(journal, aim.objective, aim.directions, question, group=look.group)
    curves, way, interrupted = [], None, ""
    for index, (d, described) in enumerate(zip(aim.directions, aim.told, strict=True)):
        these = passes(aim.objective, [d], statistics=statistics)
        places, known, way, interrupted = along(these, axis, refine, book, way)
        losses, accuracies = columns(places, known)
        radius = flat_radius(places, losses, rise, described.norm)
        found = Curve(f"direction {index + 1}", tuple(places), losses, accuracies, described)
        curves.append(replace(found, radius=radius, rise=rise))
        if interrupted:
            break
    about = {"seed": look.seed, "statistics": statistics, "interrupted": interrupted}
    return Line(tuple(curves), told(aim.objective, begin, way, notes=aim.notes, **about))


def along(
    these: Passes, axis: list[float], refine: int, book: Journal | None, way: Way | None
) -> tuple[list[float], Known, Way, str]:
    """The loss along one direction, refined where it bends."""
    found = evaluate(these, [(a,) for a in axis], journal=book, way=way)
    known: Known = dict(zip(axis, found.scores, strict=True))
    for _ in range(refine if not found.interrupted else 0):
        losses = [known[a].loss for a in axis]  # type: ignore[union-attr]
        more = halved(axis, bent(axis, [losses]))
        fresh = [a for a in more if a not in known]
        found = evaluate(these, [(a,) for a in fresh], journal=book, way=found.way)
        known |= dict(zip(fresh, found.scores, strict=True))
        axis = more
        if found.interrupted:
            break
    return axis, known, found.way, found.interrupted


def columns(
    axis: Sequence[float], known: Known
) -> tuple[tuple[float | None, ...], tuple[float | None, ...] | None]:
    """Losses and accuracies in the order of the axis; no accuracies where nothing is decided."""
    scores = [known.get(a) for a in axis]
    losses = tuple(None if s is None else s.loss for s in scores)
    accuracies = tuple(None if s is None else s.accuracy for s in scores)
    return losses, None if all(a is None for a in accuracies) else accuracies
