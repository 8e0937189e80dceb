"""Studies of many trained networks: what ranks them by how well they generalize."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Found when they are first used: statistics need no training, and no training needs statistics.
_HOMES = {
    "analyse": "analysis",
    "conditional_information": "information",
    "granulated": "granulated",
    "holm": "permutation",
    "kendall": "ranks",
    "kendall_interval": "ranks",
    "partial_kendall": "partial",
    "permutation_test": "permutation",
    "sign_error": "signs",
}

__all__ = [
    "analyse",
    "conditional_information",
    "granulated",
    "holm",
    "kendall",
    "kendall_interval",
    "partial_kendall",
    "permutation_test",
    "sign_error",
]

if TYPE_CHECKING:
    from spiritlevel.studies.analysis import analyse
    from spiritlevel.studies.granulated import granulated
    from spiritlevel.studies.information import conditional_information
    from spiritlevel.studies.partial import partial_kendall
    from spiritlevel.studies.permutation import holm, permutation_test
    from spiritlevel.studies.ranks import kendall, kendall_interval
    from spiritlevel.studies.signs import sign_error


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel.studies' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.studies.{_HOMES[name]}"), name)
