"""What follows from a measure's values at several points that are one network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import Measure
from spiritlevel.measures.bottoms import SURE
from spiritlevel.measures.instruments import Instruments
from spiritlevel.results.verdicts import Outcome, spread
from spiritlevel.symmetry.gaps import rounding

Rounding = Callable[[str], float]
LAYERWISE = ("here", "layers", "sharpened")  # points that whole layers lead to
FEW = 1  # passes over the data
VAGUE = 0.5  # relative: an error that is no error bar but an excuse
NEARLY = 0.05  # relative: how far the eps of norms may move what is invariant without them


def unrounded(_: str) -> float:
    """Of values that rounding does nothing to, or not more than is relative to them."""
    return 0.0


def judge(
    measure: Measure,
    values: Mapping[str, Estimate],
    alike: float,
    approximate: bool = False,
    rounding: Rounding = unrounded,
) -> Outcome:
    """The outcome that follows from the values, their errors and what was promised."""
    found = list(values.values())
    asked = cheap(measure) or measure.promises("unit")  # no promise is called broken unasked
    moved = differ(values, alike, rounding if asked else unrounded)
    if not all(math.isfinite(e.value) for e in found):
        return Outcome.OVERFLOW
    if measure.promises("unit"):
        return _promise(found, moved, approximate)
    if not moved:
        return Outcome.STILL
    if not measure.promises("layer"):
        return Outcome.TURNED if turned(found) else Outcome.MOVED
    if differ({p: values[p] for p in LAYERWISE if p in values}, alike, rounding):
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


def differ(values: Mapping[str, Estimate], alike: float, rounding: Rounding = unrounded) -> bool:
    """Whether estimates differ by more than their errors and the rounding.

    That is relative to them (`alike`), or what it does to the one of that name: asked last.
    """
    lowest, highest = (end(values, key=lambda p: values[p].value) for end in (min, max))
    low, high = values[lowest], values[highest]
    noise = SURE * (low.error + high.error) + alike * max(abs(low.value), abs(high.value))
    if not high.value - low.value > noise:
        return False
    return high.value - low.value > noise + SURE * (rounding(lowest) + rounding(highest))


def cheap(measure: Measure) -> bool:
    """Whether measuring it again takes no longer than a loss or a gradient does.

    Others are made of products, and have their rounding in their errors.
    """
    work = measure.work
    if work is None or work.products or work.gauss_newton or work.diagonals:
        return False
    return work.passes + work.gradients <= FEW


def rounding_of(measure: Measure, tools: Instruments) -> float:
    """What rounding does to a measure at a point."""
    return rounding(lambda o: _number(measure.function(tools.beside(o))), tools.objective)


def _number(found: Any) -> float:
    return found.value if isinstance(found, Estimate) else math.nan


def turned(values: Iterable[Estimate]) -> bool:
    """Whether the sign changes, beyond errors."""
    found = list(values)
    ups = any(e.value > SURE * e.error for e in found)
    return ups and any(e.value < -SURE * e.error for e in found)
