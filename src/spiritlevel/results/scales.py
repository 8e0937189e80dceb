"""Which axis shows values best: linear or logarithmic, from where to where, and its levels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spiritlevel.base.spoken import short_power
from spiritlevel.results.places import ends
from spiritlevel.results.spectra import Spectrum

WIDE = 20.0  # a ratio of values that a linear axis cannot show
DECADES = 8  # of a logarithmic axis; what lies above them is cut off
BURST = 30.0  # how many times as far from the least as the median is: what is more has exploded
MANY = 14  # levels
HUGE, TINY = 1e300, 1e-300  # beyond them arithmetic on floats overflows
STEPS = ((1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))


@dataclass(frozen=True)
class Scale:
    """An axis for values: its ends, its levels from below the least, and if any lie above it."""

    low: float
    high: float
    log: bool
    levels: tuple[float, ...]
    labels: tuple[str, ...]
    cut: bool


def scale(values: Iterable[float | None], log: bool | None = None) -> Scale | None:
    """The axis of these values; None if none is finite, or none positive on a log axis."""
    finite = [max(-HUGE, min(v, HUGE)) for v in values if v is not None and math.isfinite(v)]
    low, high = ends(finite)
    if low is None or high is None or (log and low < TINY):
        return None
    if log is None:
        log = low >= TINY and high > WIDE * low
    limit = _limit(finite, low, log)
    levels = _log_levels(low, min(high, limit)) if log else _levels(low, min(high, limit))
    cut = high > limit
    top = levels[-1] if cut else high
    return Scale(low, top, log, levels, _labels(levels), cut)


def _limit(finite: Sequence[float], low: float, log: bool) -> float:
    if log:
        return low * 10.0**DECADES
    middle = statistics.median(finite)
    return low + BURST * (middle - low) if middle > low else math.inf


def _levels(low: float, high: float) -> tuple[float, ...]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten around these values."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # rounding has no landscape
        half = 0.01 * abs(low) or 1.0
        return low - half, low + half
    raw = (high - low) / (MANY - 3)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * f for f in (1, 2, 2.5, 5, 10) if unit * f >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(float(f"{step * k:.12g}") for k in range(first, last + 1))


def _log_levels(low: float, high: float) -> tuple[float, ...]:
    """Round numbers around these values, as many of each decade as there is room for."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in STEPS:
        all_of_them = [float(f"{s}e{k}") for k in range(first, last + 1) for s in steps]
        below = [v for v in all_of_them if v <= low * (1 + 1e-9)]
        above = [v for v in all_of_them if v >= high * (1 - 1e-9)]
        found = [v for v in all_of_them if below[-1] <= v <= above[0]] if below and above else []
        if 2 <= len(found) <= MANY:
            return tuple(found)
    return tuple(10.0**k for k in range(first, max(last, first + 1) + 1))


def _labels(levels: Sequence[float]) -> tuple[str, ...]:
    """With as few digits as tell them apart."""
    least = min(b - a for a, b in pairwise(levels))
    digits = 1
    while any(abs(float(f"{v:.{digits}g}") - v) > 0.01 * least for v in levels) and digits < 17:
        digits += 1
    return tuple(_plain(f"{v:.{digits}g}") for v in levels)


def _plain(text: str) -> str:
    """200 and not 2e+02; 2e6."""
    value = float(text)
    if 1 <= abs(value) < 1e5 and value == int(value):
        return f"{value:.0f}"
    return short_power(text)


@dataclass(frozen=True)
class Span:
    """An axis of eigenvalues, logarithmic beyond +-`linear` if one is given."""

    low: float
    high: float
    linear: float | None


def eigenvalues(spectra: Sequence[Spectrum]) -> Span:
    """One axis for all: logarithmic on both sides if the spectra differ in size by much."""
    places = [[*one.grid, *(e.value for e in one.outliers)] for one in spectra]
    low, high = min(map(min, places)), max(map(max, places))
    sizes = [max(abs(min(p)), abs(max(p))) for p in places]
    wide = min(sizes) > 0 and max(sizes) > WIDE * min(sizes)
    return Span(low, high, min(sizes) / 10 if wide else None)


def densities(spectra: Sequence[Spectrum]) -> tuple[float, float]:
    """From a third of the height that one eigenvalue has to above the highest density."""
    top = max(max(one.density) for one in spectra) or 1.0
    peaks = [1 / (one.size * one.sigma * math.sqrt(2 * math.pi)) for one in spectra if one.sigma]
    return max(min(peaks, default=0.0) / 3, 1e-12 * top), 2 * top
