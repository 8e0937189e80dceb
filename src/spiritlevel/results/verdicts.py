"""What became of a measure along the orbit, as data."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

from spiritlevel.base.estimate import Estimate
from spiritlevel.base.matrices import Kind


class Outcome(enum.Enum):
    """What became of a measure along the orbit."""

    INVARIANT = "invariant"
    PROMISED = "promised"  # and seen at one point only
    NEARLY = "nearly invariant"
    VAGUE = "too uncertain"
    STILL = "did not move"
    MOVED = "moved"
    UNITS = "moved by units"  # not by whole layers, as promised
    TURNED = "changed sign"
    OVERFLOW = "overflows"
    BROKEN = "broke its promise"
    LAYERS_BROKEN = "broke its promise for layers"
    REFUTED = "below its bound"  # a value lies below what was to be proved


ERRORS = (Outcome.BROKEN, Outcome.LAYERS_BROKEN, Outcome.REFUTED)
STAYED = (Outcome.INVARIANT, Outcome.PROMISED, Outcome.VAGUE, Outcome.STILL)


@dataclass(frozen=True)
class Infimum:
    """The least value over the orbit: proved, with a lower bound, or the least one found.

    `matrix` is the one that it is a number of, `point` where the audit found it, and `refuted` the
    point at which a value lies below the bound, which is an error of ours. `unsearched` says why it
    is the value here: no point was looked for where it is less.
    """

    value: float
    lower_bound: float | None
    proved: bool
    matrix: Kind | None = None
    point: str | None = None
    refuted: str | None = None
    unsearched: str = ""


def spread(values: Iterable[Estimate]) -> float:
    """The largest over the smallest in magnitude; infinite across zero."""
    found = [e.value for e in values]
    sizes = [abs(v) for v in found]
    if not all(map(math.isfinite, found)) or min(found) < 0 < max(found):
        return math.inf
    if min(sizes) == 0:
        return math.inf if max(sizes) else 1.0
    return max(sizes) / min(sizes)
