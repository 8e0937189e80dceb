"""A number that says how far it can be trusted."""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass
from typing import Any


class Status(enum.Enum):
    """How a computation ended."""

    EXACT = "exact"
    CONVERGED = "converged"
    LOWER_BOUND = "lower bound"
    UPPER_BOUND = "upper bound"
    BUDGET = "budget spent"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Estimate:
    """A value, its uncertainty, its cost and how the computation ended.

    `stderr` is the standard error of a random estimate. `residual` is ||Av - value v|| of an
    eigenpair: some eigenvalue lies within it. `bound` is how far from the value the one that was
    asked for can be, but for one random start in a thousand. `matvecs` counts products in units of
    one pass over all the data; `remedy` says what to do when the status is not good. A maximum
    that was searched for has the status "lower bound": there may be a larger one; a least value of
    which nothing is known from below has the status "upper bound".
    """

    value: float
    stderr: float | None = None
    residual: float | None = None
    bound: float | None = None
    matvecs: float = 0
    seconds: float = 0.0
    status: Status = Status.EXACT
    remedy: str = ""

    @property
    def error(self) -> float:
        """The half-width to print behind the value: bound, residual or standard error, or 0."""
        known = (self.bound, self.residual, self.stderr)
        return next((width for width in known if width is not None), 0.0)

    @property
    def converged(self) -> bool:
        bounds = Status.LOWER_BOUND, Status.UPPER_BOUND
        return self.status in (Status.EXACT, Status.CONVERGED, *bounds)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        text = format_value(self.value, self.error)
        if self.status is Status.LOWER_BOUND:
            return f"at least {text}"
        if self.status is Status.UPPER_BOUND:
            return f"at most {text}"
        if self.error:
            text += f" ± {format_error(self.error)}"
        return text if self.converged else f"{text} ({self.status.value}: {self.remedy})"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}


def format_error(error: float) -> str:
    """Two significant digits, as error bars are quoted."""
    if not math.isfinite(error):
        return str(error)
    if error == 0 or 1e-4 <= error < 1e4:
        return format(float(f"{error:.1e}"), "g")
    return f"{error:.1e}"


def format_value(value: float, error: float = 0.0) -> str:
    """As many digits as the error allows: down to the second digit of the error, six at most."""
    if not math.isfinite(value) or value == 0:
        return str(value)
    digits = 6
    if 0 < error < math.inf:
        digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 2
        digits = min(max(digits, 1), 6)
    rounded = float(f"{value:.{digits - 1}e}")
    if 1e-4 <= abs(rounded) < 1e6:
        decimals = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
        return f"{rounded:.{decimals}f}"
    return f"{rounded:.{digits - 1}e}"
