"""What lies between the errors that were measured and the error that is guaranteed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spiritlevel.results.bound_words import MAIN

if TYPE_CHECKING:
    from spiritlevel.results.bound import Bound, Bounds, Origin, Row

STEPS = ("error", "draws", "confidence", "divergence", "coordinates")
HALVINGS = 60


@dataclass(frozen=True)
class Rung:
    """A point, and the heights at which the steps to its bound end, in the order of STEPS.

    Measured; had all networks been drawn; at no divergence; at the least one; and the bound.
    """

    point: str
    heights: tuple[float, ...]
    bound: Bound

    @property
    def parts(self) -> tuple[float, ...]:
        """How high each step is."""
        below = (0.0, *self.heights)
        return tuple(max(b - a, 0.0) for a, b in zip(below, self.heights, strict=False))


def ladder(bounds: Bounds) -> list[Rung]:
    """The steps at each point that the main bound was computed at."""
    known = [row for row in bounds.rows if row.name == MAIN]
    if bounds.origin is None or not known:
        return []
    least = min(*(row.bound.value for row in known), 1.0)
    return [_rung(row, bounds.origin, least) for row in known]


def _rung(row: Row, origin: Origin, least: float) -> Rung:
    """kl(error, bound) = (divergence + confidence) / examples: the second is what is left."""
    kl = origin.kl if row.point == "here" or origin.least is None else origin.least
    above, value = min(origin.error.above, least), min(row.bound.value, 1.0)
    nats = _kl(above, value) if above < value < 1 else kl / origin.examples
    middle = min(_inverse(above, max(nats - kl / origin.examples, 0.0)), least)
    return Rung(row.point, (min(origin.error.error, above), above, middle, least, value), row.bound)


def _kl(q: float, p: float) -> float:
    """q log(q / p) + (1 - q) log((1 - q) / (1 - p)), q < p < 1; a drawing needs few digits."""
    first = q * math.log(q / p) if q else 0.0
    return first + (1 - q) * math.log((1 - q) / (1 - p))


def _inverse(q: float, budget: float) -> float:
    """The largest p with kl(q, p) <= budget, by halving."""
    low, high = q, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle < 1 and _kl(q, middle) <= budget:
            low = middle
        else:
            high = middle
    return low
