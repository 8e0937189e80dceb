"""Numbers that are read from pictures, with what the spacing of the points leaves open."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from spiritlevel.base.doors import number
from spiritlevel.base.estimate import Estimate, Status

Values = Sequence[float | None]


def barrier(axis: Sequence[float], losses: Values) -> Estimate | None:
    """max over the line of L minus the chord between its ends; None where a loss is missing.

    Between the points it is the vertex of the parabola through the largest and its neighbours. The
    error is the largest of how far that is from the largest point, from the same with every other
    point left out, and of what the third differences nearby let a parabola be wrong. What rises
    and falls between two points is not seen.
    """
    if any(value is None or not math.isfinite(value) for value in losses) or len(axis) < 3:
        return None
    heights = _over_chord(axis, [float(value) for value in losses if value is not None])
    value = _peak(axis, heights)
    some = [*range(0, len(axis) - 1, 2), len(axis) - 1]
    coarse = _peak([axis[i] for i in some], [heights[i] for i in some])
    error = max(abs(value - coarse), value - max(heights), _beyond_parabola(axis, heights))
    return Estimate(value, residual=error, status=Status.CONVERGED)


def _over_chord(axis: Sequence[float], losses: Sequence[float]) -> list[float]:
    span = axis[-1] - axis[0]
    slope = (losses[-1] - losses[0]) / span
    return [v - losses[0] - slope * (a - axis[0]) for a, v in zip(axis, losses, strict=True)]


def _peak(axis: Sequence[float], heights: Sequence[float]) -> float:
    """The vertex of the parabola through the largest height and its neighbours."""
    top = max(range(len(heights)), key=heights.__getitem__)
    if top in (0, len(heights) - 1):
        return heights[top]
    (a, b, c), (u, v, w) = axis[top - 1 : top + 2], heights[top - 1 : top + 2]
    left, right = (v - u) / (b - a), (w - v) / (c - b)
    bend = (right - left) / (c - a)
    if not bend < 0:
        return v
    slope = left + bend * (b - a)  # at b
    return v - slope**2 / (4 * bend)


def _beyond_parabola(axis: Sequence[float], heights: Sequence[float]) -> float:
    """|f[x0, x1, x2, x3]| times the largest product of distances, around the largest height."""
    top = max(range(len(heights)), key=heights.__getitem__)
    if top in (0, len(heights) - 1):
        return 0.0
    left, right = axis[top] - axis[top - 1], axis[top + 1] - axis[top]
    thirds = [
        abs(_divided(axis[i : i + 4], heights[i : i + 4]))
        for i in range(max(top - 3, 0), min(top, len(axis) - 4) + 1)
    ]
    return max(thirds, default=0.0) * left * right * (left + right) / 4


def _divided(axis: Sequence[float], heights: Sequence[float]) -> float:
    """The divided difference f[x0, ..., xn]."""
    if len(axis) == 1:
        return heights[0]
    inner = _divided(axis[1:], heights[1:]) - _divided(axis[:-1], heights[:-1])
    return inner / (axis[-1] - axis[0])


def flat_radius(
    axis: Sequence[float], losses: Values, rise: float, norm: float = 1.0
) -> Estimate | None:
    """The distance from 0 at which L has first risen by `rise`, the nearer of both sides.

    In Euclidean length, `norm` being that of a unit step. The error is the distance to the ends of
    the interval between two points in which it happened; None where it never did.
    """
    number("rise", rise, above=0)
    if 0.0 not in axis or losses[axis.index(0.0)] is None:
        return None
    centre = axis.index(0.0)
    sides = [range(centre, len(axis)), range(centre, -1, -1)]
    found = [_crossing(axis, losses, side, rise) for side in sides]
    known = [one for one in found if one is not None]
    if not known:
        return None
    value, error = min(known)
    return Estimate(value * norm, residual=error * norm, status=Status.CONVERGED)


def _crossing(
    axis: Sequence[float], losses: Values, side: range, rise: float
) -> tuple[float, float] | None:
    origin = losses[side[0]]
    assert origin is not None
    for inner, outer in pairwise(side):
        low, high = losses[inner], losses[outer]
        if low is None or high is None:
            return None
        if high - origin >= rise or not math.isfinite(high):
            near, far = abs(axis[inner]), abs(axis[outer])
            share = (rise - (low - origin)) / (high - low) if math.isfinite(high) else 0.5
            at = near + share * (far - near)
            return at, max(at - near, far - at)
    return None
