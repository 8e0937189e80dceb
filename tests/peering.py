"""Other libraries that compute the same: skipped where they are missing, unless they must be there.

`make cross` sets PEERS=required: then a peer that cannot be imported is an error.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import pytest

REQUIRED = "required"


def peer(name: str) -> Any:
    """The module of a peer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a peer warns of is not ours to mend
            return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("PEERS") == REQUIRED:
            raise
        pytest.skip(f"needs {name} of the extra [peers]: {error}", allow_module_level=True)
