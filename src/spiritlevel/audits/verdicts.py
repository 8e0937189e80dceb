"""What follows from a measure's values at several points that are one network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import Measure
from spiritlevel.measures.bottoms import SURE
from spiritlevel.results.verdicts import Outcome, spread

LAYERWISE = ("here", "layers", "sharpened")  # points that whole layers lead to
VAGUE = 0.5  # relative: an error that is no error bar but an excuse
NEARLY = 0.05  # relative: how far the eps of norms may move what is invariant without them


def judge(
    measure: Measure, values: Mapping[str, Estimate], alike: float, approximate: bool = False
) -> Outcome:
    """The outcome that follows from the values, their errors and what was promised."""
    found = list(values.values())
    moved = differ(found, alike)
    if not all(math.isfinite(e.value) for e in found):
        return Outcome.OVERFLOW
    if measure.promises("unit"):
        return _promise(found, moved, approximate)
    if not moved:
        return Outcome.STILL
    if not measure.promises("layer"):
        return Outcome.TURNED if turned(found) else Outcome.MOVED
    if differ([values[p] for p in LAYERWISE if p in values], alike):
        return Outcome.LAYERS_BROKEN
    return Outcome.UNITS


def _promise(found: list[Estimate], moved: bool, approximate: bool) -> Outcome:
    """What became of a promise to be invariant."""
    if len(found) == 1:
        return Outcome.PROMISED
    if moved:
        near = approximate and spread(found) <= 1 + NEARLY
        return Outcome.NEARLY if near else Outcome.BROKEN
    vague = any(e.error > VAGUE * abs(e.value) for e in found)
    return Outcome.VAGUE if vague else Outcome.INVARIANT


def least_seen(values: Mapping[str, Estimate]) -> str:
    """The point with the least value that is known best: never one above the value here."""
    here = values["here"].value
    below = [p for p, e in values.items() if e.value <= here] or ["here"]
    return min(below, key=lambda p: values[p].value + 2 * values[p].error)


def below(bound: float, values: Mapping[str, Estimate], alike: float) -> str | None:
    """A point whose value lies below a bound by more than its errors and the rounding."""
    floor = bound - alike * abs(bound)
    for point, e in values.items():
        if not e.value + SURE * e.error >= floor:  # a NaN is below too
            return point
    return None


def differ(values: Iterable[Estimate], alike: float) -> bool:
    """Whether estimates differ by more than their errors and the rounding."""
    found = list(values)
    low = min(found, key=lambda e: e.value)
    high = max(found, key=lambda e: e.value)
    noise = SURE * (low.error + high.error) + alike * max(abs(low.value), abs(high.value))
    return high.value - low.value > noise


def turned(values: Iterable[Estimate]) -> bool:
    """Whether the sign changes, beyond errors."""
    found = list(values)
    ups = any(e.value > SURE * e.error for e in found)
    return ups and any(e.value < -SURE * e.error for e in found)
