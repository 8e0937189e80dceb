"""A study by the file that defines it, or by the name of a protocol."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spiritlevel.base.errors import SpiritlevelError

if TYPE_CHECKING:
    from spiritlevel.results.study import Findings
    from spiritlevel.studies.directions import Reported
    from spiritlevel.studies.protocols import Protocol
    from spiritlevel.studies.store import Store
    from spiritlevel.studies.study import Study

TABLES = (".csv", ".json", ".parquet")
SQLITE = b"SQLite format 3\0"  # what a store begins with


def protocols() -> dict[str, Protocol]:
    """The studies of the literature by name."""
    from spiritlevel.studies.protocols import PROTOCOLS

    return PROTOCOLS


def study_from(
    where: str, name: str | None = None, *, full: bool = False, seeds: int | None = None
) -> Study:
    """The study that a file defines, or that a protocol makes in one of its sizes."""
    known = protocols()
    if where in known:
        if name is not None:
            raise SpiritlevelError(f"--name is {name!r}, but {where} is a protocol: leave it out")
        return known[where].study(full=full, **({} if seeds is None else {"seeds": seeds}))
    if full or seeds is not None:
        option = "--full" if full else "--seeds"
        raise SpiritlevelError(f"{option} is for protocols; {where} says its size itself")
    if not Path(where).is_file():
        raise SpiritlevelError(
            f"{where!r}: there is no such file; name one that defines a Study, or a protocol: "
            f"{', '.join(known)}"
        )
    if Path(where).suffix in TABLES:
        raise SpiritlevelError(
            f"{where} holds networks, and no study: spiritlevel study report ranks them; for the "
            "rest name the file of the study, or its store"
        )
    if is_store(Path(where)):
        raise SpiritlevelError(
            f"{where} is a store, which cannot train: name the file of its study, and the store by "
            f"--store {where}"
        )
    from spiritlevel.studies import load_study

    return load_study(where, name)


def reported(where: str, planned: Study, kept: Store) -> list[str]:
    """What the networks of a protocol say of each thing that its source reports."""
    from spiritlevel.studies.directions import direction

    known = protocols().get(where)
    if known is None:
        return []
    networks, axes = kept.networks(planned), planned.axes

    def said(one: Reported) -> str:
        try:
            return direction(networks, one, axes).text
        except SpiritlevelError as error:  # too few of them; there may be enough for others
            return str(error)

    return [said(one) for one in known.reported]


def conditions(texts: list[str]) -> dict[str, Any]:
    """--where labels=0.0: values as Python writes them, or texts."""
    found: dict[str, Any] = {}
    for text in texts:
        axis, sign, value = text.partition("=")
        if not (axis and sign and value):
            raise SpiritlevelError(f"--where is {text!r}; give an axis and its value: width=32")
        if axis in found:
            raise SpiritlevelError(f"--where names {axis} twice: give one value of each axis")
        try:
            found[axis] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[axis] = value
    return found


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
