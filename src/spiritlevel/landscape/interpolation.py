"""The straight line from one network to another, as given and with the symmetries divided out."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.landscape.alignment import Alignment, aligned
from spiritlevel.landscape.ends import Other, end_of
from spiritlevel.landscape.journal import Journal, opened
from spiritlevel.landscape.lines import along, columns
from spiritlevel.landscape.looks import refuse
from spiritlevel.landscape.numbers import barrier
from spiritlevel.landscape.passes import passes
from spiritlevel.landscape.points import Way
from spiritlevel.landscape.statistics import Statistics
from spiritlevel.landscape.telling import told
from spiritlevel.objective import Objective
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.landscape import Curve, Direction, Line
from spiritlevel.symmetry import Group

Pair = tuple[str, Objective, Objective, Certificate | None]


def interpolate(
    a: Objective,
    b: Other,
    *,
    align: bool = False,
    steps: int = 25,
    refine: int = 0,
    statistics: Statistics = "frozen",
    seed: int = 0,
    group: Group | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Line:
    """L((1 - s) theta_a + s theta_b) for s from 0 to 1 on the data of a, and its barrier.

    `b` is an Objective, a state_dict, a file with weights or a flat vector. With `align` a second
    line joins the same two networks after what tells nothing apart is divided out: both go to the
    point of their orbit with the least norm, and the units of b to the places of those of a that
    they are most alike (Ainsworth et al., 2023); both are proved to predict what they did. Running
    statistics are interpolated, or recomputed at every place.
    """
    asked: dict[str, Any] = {"statistics": statistics, "refine": refine, "journal": journal}
    refuse(a, group=group, seed=seed, **asked)
    number("steps", steps, 3, whole=True)
    begin, other = time.perf_counter(), end_of(a, b, "b")
    pairs: list[Pair] = [("as given", a, other, None)]
    notes = []
    if align:
        found = aligned(a, other, group=group, seed=seed)
        pairs.append(("aligned", found.first, found.second, found.certificate))
        notes.append(_said(found))
    question = {"interpolation": [align, steps, refine, statistics, seed]}
    moving = _buffers(a, other).values()
    book = opened(journal, a, [other.vector - a.vector], question, buffers=moving, group=group)
    curves, way, interrupted = _curves(pairs, steps, refine, statistics, book)
    about = {"seed": seed, "statistics": statistics, "interrupted": interrupted}
    return Line(tuple(curves), told(a, begin, way, notes=notes, **about))


def _curves(
    pairs: list[Pair], steps: int, refine: int, statistics: Statistics, book: Journal | None
) -> tuple[list[Curve], Way | None, str]:
    """One curve for every pair, as far as it comes."""
    curves, way, interrupted = [], None, ""
    for name, first, second, certificate in pairs:
        found, way, interrupted = _joined(first, second, steps, refine, statistics, book, way)
        curves.append(Curve(name, *found, certificate=certificate))
        if interrupted:
            break
    return curves, way, interrupted


def _joined(
    first: Objective,
    second: Objective,
    steps: int,
    refine: int,
    statistics: Statistics,
    book: Journal | None,
    way: Way | None,
) -> tuple[tuple[Any, ...], Way, str]:
    """The axis, the losses, the accuracies, the direction and the barrier between two networks."""
    # in float64: of a weight of 1e6 that becomes 1, float32 would keep one digit at the other end
    move = second.vector.double() - first.vector.double()
    moving = [_buffers(first, second)] if statistics == "frozen" else []
    these = passes(first, [move], buffers=[m for m in moving if m], statistics=statistics)
    axis = [i / (int(steps) - 1) for i in range(int(steps))]
    places, known, way, interrupted = along(these, axis, refine, book, way)
    losses, accuracies = columns(places, known)
    direction = Direction("from a to b", "between", float(move.norm()))
    return (tuple(places), losses, accuracies, direction, barrier(places, losses)), way, interrupted


def _buffers(first: Objective, second: Objective) -> dict[str, Tensor]:
    """How buffers of floats move from one to the other, those that do."""
    there = second.buffers
    own = {n: b for n, b in first.buffers.items() if b.is_floating_point()}
    moves = {n: there[n].double() - b.double() for n, b in own.items()}
    return {n: move for n, move in moves.items() if bool(torch.any(move != 0))}


def _said(found: Alignment) -> str:
    return (
        f"aligned: {found.moved} of {found.units} units changed places; the networks are "
        f"{found.distance_after:.4g} apart, {found.distance_before:.4g} as given"
    )
