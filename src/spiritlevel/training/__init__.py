"""Training that looks for flat minima, one plain loop, and the watch that looks at it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spiritlevel.training.series import watch_checkpoints
    from spiritlevel.training.watch import Watch

# Found when they are first used: one optimizer needs no other, and the watch needs the measures.
_HOMES: dict[str, str] = {
    "Watch": "watch",
    "watch_checkpoints": "series",
}

__all__ = [
    "Watch",
    "watch_checkpoints",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.training.{_HOMES[name]}"), name)
