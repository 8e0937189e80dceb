"""A study by the file that defines it, or by the name of a protocol."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spiritlevel.base.errors import SpiritlevelError

if TYPE_CHECKING:
    from spiritlevel.results.study import Findings
    from spiritlevel.studies.study import Study

SQLITE = b"SQLite format 3\0"  # what a store begins with
PROTOCOLS = "spiritlevel.studies.protocols"


def protocols() -> dict[str, Callable[..., Study]]:
    """The studies of the literature by name."""
    if importlib.util.find_spec(PROTOCOLS) is None:
        return {}
    return importlib.import_module(PROTOCOLS).PROTOCOLS


def study_from(where: str, name: str | None = None) -> Study:
    """The study that a file defines, or that a protocol makes."""
    known = protocols()
    if where in known:
        if name is not None:
            raise SpiritlevelError(f"--name is {name!r}, but {where} is a protocol: leave it out")
        return known[where]()
    if not Path(where).is_file():
        listed = f", or a protocol: {', '.join(known)}" if known else ""
        raise SpiritlevelError(
            f"{where!r}: there is no such file; name one that defines a Study{listed}"
        )
    from spiritlevel.studies import load_study

    return load_study(where, name)


def is_store(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def store_of(where: str, store: Path | None) -> Path:
    """The store that was named, or the one beside here that bears the name of the study."""
    return store if store is not None else Path(f"{Path(where).stem}.db")


def read_findings(path: Path) -> Findings:
    """What a command wrote with --json."""
    from spiritlevel.results import load
    from spiritlevel.results.study import Findings

    found = load(path)
    if not isinstance(found, Findings):
        raise SpiritlevelError(f"{path} holds a {found.kind}, not a study: use spiritlevel report")
    return found
