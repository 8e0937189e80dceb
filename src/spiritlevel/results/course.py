"""What a course of readings allows one to say: how far it moved, and if that was coordinates."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.spoken import at_least, at_most, digits, share, times

SURE = 3  # standard errors: what differs by more is different
ROUNDING = {"float64": 1e-6}  # relative, beside the errors; 1e-3 in any other precision
NEARLY = 0.1  # of the change: what is called all of it, or none
HARDLY = 1.1  # factors that are better said in per cent
NARROW = 0.3  # an interval of shares that can be called by its middle


class Verdict(str, enum.Enum):
    """Which part of a change, on a log scale, was of the coordinates."""

    ALL = "all"
    MOST = "most"
    PART = "part"
    LITTLE = "little"
    NONE = "none"
    REVERSED = "reversed"  # the network went the other way
    HIDDEN = "hidden"  # the network moved more than could be seen
    UNRESOLVED = "unresolved"  # it moved there; of here that is neither known nor ruled out
    STILL = "still"  # no change is known
    UNKNOWN = "unknown"  # there is no bottom to compare with
    UNDECIDED = "undecided"


WORTH = {
    Verdict.ALL: "all of it was coordinates",
    Verdict.MOST: "most of it was coordinates",
    Verdict.LITTLE: "most of it is the network's own",
    Verdict.NONE: "none of it was coordinates",
    Verdict.REVERSED: "more than all of it was coordinates",
    Verdict.HIDDEN: "the coordinates hid a part of it",
    Verdict.UNRESOLVED: "the change here was not resolved",
    Verdict.UNDECIDED: "how much of it was coordinates is undecided",
    Verdict.PART: "",
    Verdict.STILL: "",
    Verdict.UNKNOWN: "",
}


@dataclass(frozen=True)
class Range:
    """A number and two ends between which it surely lies."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """Of all of it; 0 where it is not known."""
        return (self.low > 0) - (self.high < 0)

    @property
    def reach(self) -> float:
        """How large it may be in size."""
        return max(-self.low, self.high)

    def apart(self, other: Range) -> bool:
        """Whether the two differ whatever they are."""
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True)
class Change:
    """One measure at the first and the last moment: logarithms of ratios, last over first.

    `coordinates` is the share of the change here that is not one on the bottom of the orbit.
    """

    name: str
    title: str
    first: str
    last: str
    ends: tuple[float, float]
    here: Range
    bottom: Range | None
    coordinates: Range | None
    verdict: Verdict

    @property
    def text(self) -> str:
        """In words, only as far as the errors allow."""
        way = f"from {self.first} to {self.last} ({digits(self.ends[0])} to {digits(self.ends[1])})"
        if self.here.sign:
            moved = f"{self.title} {_moved(self.here)} {way}"
        else:
            moved = f"{self.title} did not change beyond its error {way}"
        return f"{moved}{self._rest}."

    @property
    def _rest(self) -> str:
        if self.verdict is Verdict.UNKNOWN:
            return "; what of it was coordinates is not known"
        there = "" if self.bottom is None else f" on the orbit's bottom {self._there}"
        worth = WORTH[self.verdict]
        if self.verdict is Verdict.PART and self.coordinates is not None:
            worth = f"about {share(self.coordinates.value)} of it was coordinates"
        if self.verdict is Verdict.HIDDEN and self._still:
            worth = "the coordinates hid it"
        return ";" + ":".join(part for part in (there, worth and f" {worth}") if part)

    @property
    def _still(self) -> bool:
        """Whether all that may have changed here is next to nothing of the change at the bottom."""
        return self.bottom is not None and self.here.reach < NEARLY * abs(self.bottom.value)

    @property
    def _most(self) -> str:
        """Where one end of the change at the bottom is known."""
        assert self.bottom is not None
        if math.isfinite(self.bottom.high):
            return f"it rose x {at_most(math.exp(self.bottom.high), 3)} at most"
        if math.isfinite(self.bottom.low):
            return f"it fell x {at_most(math.exp(-self.bottom.low), 3)} at most"
        return ""

    @property
    def _there(self) -> str:
        assert self.bottom is not None
        if not self.bottom.sign:
            if not math.isinf(self.bottom.reach):
                return "it did not change beyond its error"
            if math.isinf(self.bottom.high - self.bottom.low) and (most := self._most):
                return most
            return "its change is not known"
        same = self.bottom.sign == self.here.sign
        return _factor(self.bottom) if same else f"it {_moved(self.bottom)}"


def _moved(change: Range) -> str:
    return f"{'rose' if change.sign > 0 else 'fell'} {_factor(change)}"


def _factor(change: Range) -> str:
    """By how much; at least by how much, where one end is open."""
    opened = math.isinf(change.reach)
    least = min(abs(change.low), abs(change.high))
    factor = math.exp(min(least if opened else abs(change.value), 690.0))
    if opened:
        return f"at least x {at_least(factor, 3)}"
    if factor < HARDLY:
        text = f"by {100 * (factor - 1 if change.sign > 0 else 1 - 1 / factor):.2g}%"
    else:
        text = f"x {factor:.3g}" if factor < 2 else f"x {times(factor)}"
    return text


class Read(Protocol):
    @property
    def estimate(self) -> Estimate: ...
    @property
    def least(self) -> Estimate | None: ...


def change(
    name: str, title: str, moments: tuple[str, str], readings: tuple[Read, Read], dtype: str
) -> Change | None:
    """From one reading to another; None where a logarithm is not known."""
    rounding = ROUNDING.get(dtype, 1e-3)
    first, last = readings
    here = _log_ratio(first.estimate, last.estimate, rounding)
    if here is None:
        return None
    known = first.least is not None and last.least is not None
    bottom = _log_ratio(first.least, last.least, 0.0) if known else None  # type: ignore[arg-type]
    part = None if bottom is None or not here.sign else _part(here, bottom)
    verdict = _verdict(here, bottom, part, known)
    ends = first.estimate.value, last.estimate.value
    return Change(name, title, *moments, ends, here, bottom, part, verdict)


def _log_ratio(first: Estimate, last: Estimate, rounding: float) -> Range | None:
    a, b = (_ends(e, rounding) for e in (first, last))
    if not (first.value > 0 < last.value) or a[1] == math.inf or b[1] == math.inf:
        return None
    low = -math.inf if b[0] <= 0 else math.log(b[0] / a[1])
    high = math.inf if a[0] <= 0 else math.log(b[1] / a[0])
    return Range(math.log(last.value / first.value), low, high)


def _ends(estimate: Estimate, rounding: float) -> tuple[float, float]:
    width = estimate.bound if estimate.bound is not None else SURE * estimate.error
    width += rounding * abs(estimate.value)
    if not (math.isfinite(estimate.value) and math.isfinite(width)):
        return -math.inf, math.inf
    if estimate.status is Status.UPPER_BOUND:
        return 0.0, estimate.value + width
    return estimate.value - width, estimate.value + width


def _part(here: Range, bottom: Range) -> Range:
    """1 - bottom / here: the share of the change that was coordinates."""
    ratios = [b / h for b in (bottom.low, bottom.high) for h in (here.low, here.high)]
    ratios = [r for r in ratios if not math.isnan(r)] or [-math.inf, math.inf]
    return Range(1 - bottom.value / here.value, 1 - max(ratios), 1 - min(ratios))


def _verdict(here: Range, bottom: Range | None, part: Range | None, known: bool) -> Verdict:
    if bottom is None:
        return Verdict.UNDECIDED if known else Verdict.UNKNOWN
    if part is None:
        if not bottom.sign:
            return Verdict.STILL
        return Verdict.HIDDEN if here.apart(bottom) else Verdict.UNRESOLVED
    low, high = part.low, part.high
    if low > 1 - NEARLY and high < 1 + NEARLY:
        return Verdict.ALL
    if low > -NEARLY and high < NEARLY:
        return Verdict.NONE
    if low > 1:
        return Verdict.REVERSED
    if high < 0:
        return Verdict.HIDDEN
    if low > 0.5:
        return Verdict.MOST
    if high < 0.5:
        return Verdict.LITTLE
    return Verdict.PART if high - low < NARROW else Verdict.UNDECIDED


def edge_text(shares: Sequence[tuple[str, Estimate]]) -> str:
    """How often the largest eigenvalue was beyond 2 / rate, and where it was farthest."""
    if not shares:
        return ""
    ends = [_ends(e, 0.0) for _, e in shares]
    over, open_ = sum(low > 1 for low, _ in ends), sum(low <= 1 < high for low, high in ends)
    top, most = max(shares, key=lambda pair: pair[1].value)
    count = f"{over} of {len(shares)} looks" if len(shares) > 1 else f"{over} of one look"
    count += f" (undecided at {open_} more)" if open_ else ""
    return (
        f"The largest eigenvalue was beyond 2 / rate, the edge of plain gradient descent, at "
        f"{count}; "
        f"largest at {top}: {digits(most.value)} times the edge."
    )
