"""Whether a point is a minimum, as data and in words."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from spiritlevel.base.spoken import digits

STILL = 0.01  # of the loss: what a step gains at most where a point is at rest
MANY = 10  # times the loss: what a step may promise before its digits mean nothing
SLIGHT, CLEAR = 1e-3, 0.05  # of the largest curvature: negative curvature that is none, and is some


class Standing(enum.Enum):
    """What a point is, as far as a step and the curvature that was seen tell."""

    MINIMUM = "close to a minimum"
    SADDLE = "saddle"
    MOVING = "not at rest"
    UNCLEAR = "unclear"
    FLAT = "flat"


@dataclass(frozen=True)
class Rest:
    """What a Newton step over a Krylov space of the gradient gains, and the curvature seen.

    `reached` is the least loss after a step -(|H| + d)^-1 g, for several d; `model` is the gain
    g' (|H| + d)^-1 g / 2 that a quadratic promises, for the least d: infinity without curvature,
    where no step is tried. `lowest` and `highest` are
    Rayleigh quotients: the spectrum reaches at least as far.
    """

    told = ("standing", "gain", "text")

    loss: float
    reached: float
    model: float
    slope: float
    lowest: float
    highest: float
    products: int

    @property
    def gain(self) -> float:
        """By how much the step lowered the loss, relative to it: losses have their floor at 0."""
        return max(self.loss - self.reached, 0.0) / (abs(self.loss) or 1.0)

    @property
    def promised(self) -> float:
        """By how much the quadratic model lowers it."""
        return self.model / (abs(self.loss) or 1.0)

    @property
    def negative(self) -> float:
        """The negative curvature relative to the positive one."""
        below = max(-self.lowest, 0.0)
        return below / self.highest if self.highest > 0 else math.inf if below else 0.0

    @property
    def standing(self) -> Standing:
        if self.slope == 0 == self.lowest == self.highest:
            return Standing.FLAT
        if self.gain > STILL:
            return Standing.MOVING
        if self.negative > CLEAR:
            return Standing.SADDLE
        if self.promised > STILL or self.negative > SLIGHT:
            return Standing.UNCLEAR
        return Standing.MINIMUM

    @property
    def text(self) -> str:
        step = f"a Newton step lowers the loss by {_percent(self.gain)}"
        if math.isinf(self.model):
            step = "there is a slope and no curvature, so that no Newton step is known"
        elif self.gain > STILL:
            step += f", from {digits(self.loss)} to {digits(self.reached)}"
        elif self.promised > STILL:
            step += f" ({_percent(self.promised)} by its quadratic model)"
        low, high = digits(self.lowest), digits(self.highest)
        seen = f"curvature was seen from {low} to {high}"
        return {
            Standing.FLAT: "Flat to rounding: neither slope nor curvature.",
            Standing.MINIMUM: f"Close to a minimum: {step}; {seen}.",
            Standing.SADDLE: f"A saddle, not a minimum: curvature reaches {low}, upwards {high}; "
            f"{step}.",
            Standing.MOVING: f"Not at rest: {step}; {seen}. Flatness is defined at a minimum.",
            Standing.UNCLEAR: f"Undecided whether a minimum: {step}; {seen}.",
        }[self.standing]

    @property
    def calm(self) -> bool:
        """Whether nothing warns of the numbers that are measured here."""
        return self.standing in (Standing.MINIMUM, Standing.FLAT)


def _percent(part: float) -> str:
    """Two digits; what is less than a hundredth of a percent is none, more than MANY is many."""
    if part > MANY:
        return f"more than {MANY} times its size"
    return f"{part:.0%}" if part >= 0.1 or part < 1e-4 else f"{100 * part:.2g}%"
