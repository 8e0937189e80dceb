"""Numbers as people write them."""

from __future__ import annotations

import decimal
import math

from spiritlevel.base.estimate import format_value

FRACTIONS = {
    1 / 4: "a quarter",
    1 / 3: "a third",
    1 / 2: "half",
    2 / 3: "two thirds",
    3 / 4: "three quarters",
}
NEAR = 0.02  # how far a share may be from the fraction that it is called


def digits(value: float) -> str:
    """Three digits: enough to compare."""
    return short_power(format_value(value, 0.1 * abs(value)))


def times(factor: float) -> str:
    """A factor, as roughly as it is spoken of."""
    if factor < 100:
        return f"{factor:.2g}"
    return f"{factor:.0f}" if factor < 1e5 else short_power(f"{factor:.1e}")


def duration(seconds: float) -> str:
    """In seconds, minutes or hours, two digits of them."""
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:.2g} h"


def share(part: float) -> str:
    """A part of a whole, as a fraction in words or in percent: 0.34 is a third."""
    near = min(FRACTIONS, key=lambda f: abs(part - f))
    if abs(part - near) <= NEAR:
        return FRACTIONS[near]
    return f"{part:.0%}" if part < 0.995 else "nearly all"


def share_at_least(part: float) -> str:
    """A share that is bounded from below: a fraction or a percentage that is no larger."""
    for fraction, name in FRACTIONS.items():
        if 0 <= part - fraction <= NEAR:
            return name
    percent = 100 * decimal.Decimal(repr(float(part)))
    return f"{percent.quantize(decimal.Decimal(1), decimal.ROUND_FLOOR):f}%"


def at_most(value: float, figures: int = 4) -> str:
    """A bound from above: its last digit is rounded up, so that what is said holds too."""
    return _bound(value, figures, decimal.ROUND_CEILING)


def at_least(value: float, figures: int = 4) -> str:
    """A bound from below: its last digit is rounded down."""
    return _bound(value, figures, decimal.ROUND_FLOOR)


def percent_at_most(part: float) -> str:
    """A share that is bounded from above, in percent with three digits."""
    return f"{_cut(100 * decimal.Decimal(repr(float(part))), 3, decimal.ROUND_CEILING):f}%"


def _bound(value: float, figures: int, rounding: str) -> str:
    if not math.isfinite(value) or value == 0:
        return str(value)
    cut = _cut(decimal.Decimal(repr(float(value))), figures, rounding)
    if 1e-4 <= abs(cut) < 1e6:
        return f"{cut:f}"
    return short_power(f"{cut:.{figures - 1}e}")


def _cut(value: decimal.Decimal, figures: int, rounding: str) -> decimal.Decimal:
    cut = decimal.Context(prec=figures, rounding=rounding).create_decimal(value)
    last = cut.adjusted() - figures + 1
    return cut.quantize(decimal.Decimal(1).scaleb(last)) if last < 0 else cut


def short_power(text: str) -> str:
    """3.1e+06 as 3.1e6."""
    number, e, power = text.partition("e")
    return f"{number}e{int(power)}" if e else text
