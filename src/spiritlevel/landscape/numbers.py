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

    Between the points it is the highest vertex of a parabola through three neighbours. The error is
    the largest of how far that is from the largest point, from the same with every other point left
    out, and of what the third differences nearby let a parabola be wrong. What rises and falls
    between two points is seen next to the ends only.
    """
    if any(value is None or not math.isfinite(value) for value in losses) or len(axis) < 3:
        return None
    heights = _over_chord(axis, [float(value) for value in losses if value is not None])
    value, triple = _peak(axis, heights)
    some = [*range(0, len(axis) - 1, 2), len(axis) - 1]
    coarse = _peak([axis[i] for i in some], [heights[i] for i in some])[0]
    room = max(_beside_end(*side, unsure=2.0) for side in _sides(axis, heights)) - value
    beyond = _beyond_parabola(axis, heights, triple) if triple else 0.0
    error = max(abs(value - coarse), value - max(heights), beyond, room)
    return Estimate(value, residual=error, status=Status.CONVERGED)


def _over_chord(axis: Sequence[float], losses: Sequence[float]) -> list[float]:
    span = axis[-1] - axis[0]
    slope = (losses[-1] - losses[0]) / span
    return [v - losses[0] - slope * (a - axis[0]) for a, v in zip(axis, losses, strict=True)]


def _peak(axis: Sequence[float], heights: Sequence[float]) -> tuple[float, int]:
    """The highest vertex, and the middle of its three points; 0 where it is near an end."""
    if len(axis) < 3:
        return max(heights), 0
    found = [(_beside_end(*side), 0) for side in _sides(axis, heights)]
    for i in range(1, len(axis) - 1):
        left, bend = _parabola(axis[i - 1 :], heights[i - 1 :])
        highest = heights[i] >= max(heights[i - 1], heights[i + 1])
        if highest and bend < 0:
            slope = left + bend * (axis[i] - axis[i - 1])  # at the middle
            found.append((heights[i] - slope**2 / (4 * bend), i))
        elif highest:
            found.append((heights[i], i))
    return max(found)


def _parabola(axis: Sequence[float], heights: Sequence[float]) -> tuple[float, float]:
    """The slope of the first chord and the bend of the parabola through the first three points."""
    left, right = _divided(axis[:2], heights[:2]), _divided(axis[1:3], heights[1:3])
    return left, (right - left) / (axis[2] - axis[0])


def _sides(
    axis: Sequence[float], heights: Sequence[float]
) -> list[tuple[Sequence[float], Sequence[float]]]:
    """The line as it is and turned round: each end is the first once."""
    return [(axis, heights), ([-a for a in reversed(axis)], heights[::-1])]


def _beside_end(axis: Sequence[float], heights: Sequence[float], unsure: float = 0.0) -> float:
    """How high the parabola of the first three points is between the first two.

    `unsure`: with a start that is steeper by so many times what the third differences leave open.
    """
    gap = axis[1] - axis[0]
    left, bend = _parabola(axis, heights)
    slope = left - bend * gap + unsure * _third(axis, heights, 1) * gap * (axis[2] - axis[0])
    if slope <= 0 or bend >= 0:
        return max(heights[:2]) if bend >= 0 else heights[0]
    at = min(-slope / (2 * bend), gap)
    return heights[0] + slope * at + bend * at**2


def _beyond_parabola(axis: Sequence[float], heights: Sequence[float], middle: int) -> float:
    """|f[x0, x1, x2, x3]| times the largest product of distances, around three points."""
    left, right = axis[middle] - axis[middle - 1], axis[middle + 1] - axis[middle]
    return _third(axis, heights, middle) * left * right * (left + right) / 4


def _third(axis: Sequence[float], heights: Sequence[float], middle: int) -> float:
    """The largest third difference near a point."""
    thirds = [
        abs(_divided(axis[i : i + 4], heights[i : i + 4]))
        for i in range(max(middle - 3, 0), min(middle, len(axis) - 4) + 1)
    ]
    return max(thirds, default=0.0)


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
    the interval between two points in which it happened, on either side; None where it never did.
    """
    number("rise", rise, above=0)
    if 0.0 not in axis:
        return None
    centre = axis.index(0.0)
    origin = losses[centre]
    if origin is None or not math.isfinite(origin):
        return None
    sides = [range(centre, len(axis)), range(centre, -1, -1)]
    found = [_crossing(axis, losses, side, origin + rise) for side in sides]
    near, value, far = (min(bounds) for bounds in zip(*found, strict=True))
    if not math.isfinite(value):
        return None
    error = max(value - near, far - value)
    return Estimate(value * norm, residual=error * norm, status=Status.CONVERGED)


def _crossing(
    axis: Sequence[float], losses: Values, side: range, height: float
) -> tuple[float, float, float]:
    """How far out the loss is first that high: at least, probably, at most; infinity for never."""
    for inner, outer in pairwise(side):
        low, high = losses[inner], losses[outer]
        near, far = abs(axis[inner]), abs(axis[outer])
        if low is None or high is None:
            return near, math.inf, math.inf  # interrupted: from there on it is not known
        if high >= height or math.isnan(high):
            share = (height - low) / (high - low) if math.isfinite(high - low) else 0.5
            return near, near + share * (far - near), far
    return math.inf, math.inf, math.inf
