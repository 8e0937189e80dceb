"""Many networks: trained over a grid, measured, kept in a store, ranked."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Found when they are first used: statistics need no torch.
_HOMES = {
    "Store": "store",
    "Study": "study",
    "Trained": "study",
    "load_study": "sources",
    "read_csv": "exports",
}

__all__ = ["Store", "Study", "Trained", "load_study", "read_csv"]

if TYPE_CHECKING:
    from spiritlevel.studies.exports import read_csv
    from spiritlevel.studies.sources import load_study
    from spiritlevel.studies.store import Store
    from spiritlevel.studies.study import Study, Trained


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel.studies' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.studies.{_HOMES[name]}"), name)
