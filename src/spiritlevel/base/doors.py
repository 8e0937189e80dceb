"""Arguments that cannot be used, refused in one line that names the fix."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from spiritlevel.base.errors import SpiritlevelError


def one_of(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse what is none of the choices."""
    known = list(choices)
    if not any(type(value) is type(c) and value == c for c in known):
        shown = ", ".join(repr(c) for c in known) or "none"
        raise SpiritlevelError(f"{name}={value!r} is not known; choose one of {shown}")


def number(name: str, value: Any, least: float = -math.inf, *, whole: bool = False) -> None:
    """Refuse what is no number, not finite, or too small."""
    kind = int if whole else (int, float)
    right = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    if not right or value < least:
        wanted = "a whole number" if whole else "a number"
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise SpiritlevelError(f"{name}={value!r}: give {wanted}{bound}")
