"""Axes of pictures: even at first, finer where the surface bends."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError

SHARE = 4  # one interval of so many is halved


def centred(steps: int, span: float) -> list[float]:
    """Even steps from -span to span, the centre among them."""
    number("steps", steps, 3, whole=True)
    number("span", span, above=0)
    if steps % 2 == 0:
        raise SpiritlevelError(f"steps={steps}: give an odd number, so that the centre is a step")
    half = int(steps) // 2
    return [float(span) * (i - half) / half for i in range(int(steps))]


def covering(low: float, high: float, steps: int) -> list[float]:
    """Even steps over an interval, moved a little so that 0 is one of them."""
    gap = (high - low) / (int(steps) - 1)
    first, last = math.floor(low / gap + 1e-9), math.ceil(high / gap - 1e-9)
    return [i * gap for i in range(first, last + 1)]


def bent(axis: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    """For every interval by how much a straight line across it may be wrong, in any row.

    h^2 / 8 times the second difference of its ends, of the logarithm where all losses are positive:
    pictures show orders of magnitude.
    """
    worst = [0.0] * (len(axis) - 1)
    for row in rows:
        heights = _heights(row)
        bends = [0.0] * len(axis)
        for i in range(1, len(axis) - 1):
            left = (heights[i] - heights[i - 1]) / (axis[i] - axis[i - 1])
            right = (heights[i + 1] - heights[i]) / (axis[i + 1] - axis[i])
            bend = 2 * abs(right - left) / (axis[i + 1] - axis[i - 1])
            bends[i] = bend if math.isfinite(bend) else 0.0
        for i in range(len(worst)):
            gap = axis[i + 1] - axis[i]
            worst[i] = max(worst[i], max(bends[i], bends[i + 1]) * gap**2 / 8)
    return worst


def _heights(row: Sequence[float]) -> list[float]:
    finite = [v for v in row if math.isfinite(v)]
    if finite and min(finite) > 0:
        return [math.log(v) if math.isfinite(v) else math.inf for v in row]
    return list(row)


def halved(axis: Sequence[float], worst: Sequence[float]) -> list[float]:
    """The axis with the middles of the intervals that bend most, a quarter of all."""
    count = max(len(worst) // SHARE, 1)
    chosen = sorted(range(len(worst)), key=lambda i: (-worst[i], i))[:count]
    middles = [(axis[i] + axis[i + 1]) / 2 for i in chosen if worst[i] > 0]
    return sorted({*axis, *middles})  # between two neighbours among floats there is no middle
