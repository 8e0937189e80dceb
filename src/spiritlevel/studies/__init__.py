"""Many networks: trained over a grid, measured, kept in a store, and ranked."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Found when they are first used: statistics need no training, and no training needs statistics.
_HOMES = {
    "PROTOCOLS": "protocols",
    "Store": "store",
    "Study": "study",
    "Trained": "study",
    "analyse": "analysis",
    "conditional_information": "information",
    "granulated": "granules",
    "holm": "permutation",
    "kendall": "ranks",
    "kendall_interval": "ranks",
    "load_study": "sources",
    "partial_kendall": "partial",
    "permutation_test": "permutation",
    "read_csv": "exports",
    "sign_error": "signs",
}

__all__ = [
    "PROTOCOLS",
    "Store",
    "Study",
    "Trained",
    "analyse",
    "conditional_information",
    "granulated",
    "holm",
    "kendall",
    "kendall_interval",
    "load_study",
    "partial_kendall",
    "permutation_test",
    "read_csv",
    "recipes",
    "sign_error",
]

if TYPE_CHECKING:
    from spiritlevel.studies import recipes
    from spiritlevel.studies.analysis import analyse
    from spiritlevel.studies.exports import read_csv
    from spiritlevel.studies.granules import granulated
    from spiritlevel.studies.information import conditional_information
    from spiritlevel.studies.partial import partial_kendall
    from spiritlevel.studies.permutation import holm, permutation_test
    from spiritlevel.studies.protocols import PROTOCOLS
    from spiritlevel.studies.ranks import kendall, kendall_interval
    from spiritlevel.studies.signs import sign_error
    from spiritlevel.studies.sources import load_study
    from spiritlevel.studies.store import Store
    from spiritlevel.studies.study import Study, Trained


def __getattr__(name: str) -> Any:
    if name == "recipes":
        return importlib.import_module("spiritlevel.studies.recipes")
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel.studies' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.studies.{_HOMES[name]}"), name)
