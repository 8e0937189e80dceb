"""Numbers that no bound can be made of, refused in one line each; others as plain ones.

Bounds are computed in float64, whatever the numbers come from.
"""

from __future__ import annotations

import math
from typing import Any

from spiritlevel.base.doors import number, shown
from spiritlevel.base.errors import SpiritlevelError


def share(name: str, value: Any) -> float:
    """Refuse what is not between 0 and 1."""
    number(name, value, 0.0)
    if value > 1:
        raise SpiritlevelError(f"{name}={shown(value)}: give a share between 0 and 1")
    return float(value)


def chance(name: str, value: Any) -> float:
    """Refuse what is not strictly between 0 and 1."""
    number(name, value, above=0.0)
    if value >= 1:
        raise SpiritlevelError(f"{name}={shown(value)}: give a probability between 0 and 1")
    return float(value)


def examples(m: Any, name: str = "m") -> int:
    """Refuse fewer than two examples."""
    number(name, m, 2, whole=True)
    return int(m)


def divergence(kl: Any, name: str = "kl") -> float:
    """Refuse what is negative or no number; infinity is a divergence."""
    if not endless(kl):
        number(name, kl, 0.0)
    return float(kl)


def endless(value: Any) -> bool:
    """Whether it is infinity; tensors are compared one by one."""
    return isinstance(value, float) and value == math.inf


def positive(name: str, value: Any) -> float:
    """Refuse what is not above 0, or infinite."""
    number(name, value, above=0.0)
    return float(value)
