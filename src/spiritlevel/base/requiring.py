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
