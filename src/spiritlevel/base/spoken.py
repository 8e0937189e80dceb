"""Numbers as people write them."""

from __future__ import annotations

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


def share(part: float) -> str:
    """A part of a whole, as a fraction in words or in percent: 0.34 is a third."""
    near = min(FRACTIONS, key=lambda f: abs(part - f))
    if abs(part - near) <= NEAR:
        return FRACTIONS[near]
    return f"{part:.0%}" if part < 0.995 else "nearly all"


def short_power(text: str) -> str:
    """3.1e+06 as 3.1e6."""
    number, e, power = text.partition("e")
    return f"{number}e{int(power)}" if e else text
