"""Other people's libraries, imported where they are asked for."""

from __future__ import annotations

import importlib
from typing import Any

from spiritlevel.base.errors import SpiritlevelError


def required(module: str, install: str) -> Any:
    """The module, or one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpiritlevelError(
            f"{module} cannot be imported ({error}): pip install {install}"
        ) from None


def rate_of(optimizer: Any) -> float | None:
    """The learning rate; None where there is none, or one for each of several groups."""
    rates = {group.get("lr") for group in getattr(optimizer, "param_groups", ())}
    return float(rates.pop()) if len(rates) == 1 and None not in rates else None
