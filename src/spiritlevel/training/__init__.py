"""Training that looks for flat minima, one plain loop, and the watch that looks at it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spiritlevel.training.entropy import EntropySGD
    from spiritlevel.training.langevin import SGLD
    from spiritlevel.training.replicas import ReplicatedSGD
    from spiritlevel.training.sam import SAM
    from spiritlevel.training.wrapping import Wrapping

# Found when they are first used: one optimizer needs no other, and the watch needs the measures.
_HOMES: dict[str, str] = {
    "EntropySGD": "entropy",
    "ReplicatedSGD": "replicas",
    "SAM": "sam",
    "SGLD": "langevin",
    "Wrapping": "wrapping",
}

__all__ = ["SAM", "SGLD", "EntropySGD", "ReplicatedSGD", "Wrapping"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.training.{_HOMES[name]}"), name)
