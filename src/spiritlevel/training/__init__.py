"""Training that looks for flat minima, one plain loop, and the watch that looks at it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Found when they are first used: one optimizer needs no other, and the watch needs the measures.
_HOMES = {
    "EntropySGD": "entropy",
    "FlatMinimumSearch": "flat",
    "PathSGD": "paths",
    "RaiseThenDecay": "schedules",
    "ReplicatedSGD": "replicas",
    "Restarting": "schedules",
    "SAM": "sam",
    "SGLD": "langevin",
    "SaddleFreeNewton": "saddlefree",
    "Watch": "watch",
    "Wrapping": "wrapping",
    "fit": "loop",
    "fit_many": "many",
    "watch_checkpoints": "series",
}

__all__ = [
    "SAM",
    "SGLD",
    "EntropySGD",
    "FlatMinimumSearch",
    "PathSGD",
    "RaiseThenDecay",
    "ReplicatedSGD",
    "Restarting",
    "SaddleFreeNewton",
    "Watch",
    "Wrapping",
    "discrete",
    "fit",
    "fit_many",
    "watch_checkpoints",
]

if TYPE_CHECKING:
    from spiritlevel.training import discrete
    from spiritlevel.training.entropy import EntropySGD
    from spiritlevel.training.flat import FlatMinimumSearch
    from spiritlevel.training.langevin import SGLD
    from spiritlevel.training.loop import fit
    from spiritlevel.training.many import fit_many
    from spiritlevel.training.paths import PathSGD
    from spiritlevel.training.replicas import ReplicatedSGD
    from spiritlevel.training.saddlefree import SaddleFreeNewton
    from spiritlevel.training.sam import SAM
    from spiritlevel.training.schedules import RaiseThenDecay, Restarting
    from spiritlevel.training.series import watch_checkpoints
    from spiritlevel.training.watch import Watch
    from spiritlevel.training.wrapping import Wrapping


def __getattr__(name: str) -> Any:
    if name == "discrete":
        return importlib.import_module("spiritlevel.training.discrete")
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.training.{_HOMES[name]}"), name)
