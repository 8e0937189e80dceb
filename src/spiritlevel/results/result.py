"""What every result shares: rows, provenance, text, JSON, CSV, and reading them back."""

from __future__ import annotations

import abc
import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO, TypeVar

from spiritlevel.base.doors import a, file, meant, shown
from spiritlevel.base.errors import SpiritlevelError, writable
from spiritlevel.results.data import plain, read
from spiritlevel.results.grid import Grid, for_notebook, for_terminal
from spiritlevel.results.terminal import RenderableType, as_text

KINDS: dict[str, type[Result]] = {}
R = TypeVar("R", bound="Result")


class Result(abc.ABC):
    """Plain data that a computation left: it is printed, written and drawn without a model.

    A kind of result is a frozen dataclass with `provenance` that says how it is shown (`grid`) and
    which records a table of it has (`records`). Two are equal if they are written alike.
    """

    kind: ClassVar[str]
    schema: ClassVar[int]
    provenance: Any  # a Provenance, and what a kind adds to it

    def __init_subclass__(cls, kind: str, schema: int) -> None:
        super().__init_subclass__()
        cls.kind, cls.schema = kind, schema
        KINDS[kind] = cls

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """What its page is called."""

    @abc.abstractmethod
    def grid(self) -> Grid:
        """What is shown of it."""

    @abc.abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """The lines of a CSV file, all with the same columns."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data; docs/schema.json says what is in it."""
        return {"kind": self.kind, "schema": self.schema, **plain(self)}

    @classmethod
    def from_dict(cls: type[R], data: dict[str, Any]) -> R:
        """What `to_dict` made, as it was."""
        found = result_from(data)
        if not isinstance(found, cls):
            raise SpiritlevelError(f"this is a {found.kind}, not a {cls.kind}")
        return found

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """JSON text, also written to `path` if one is given; `load` reads it."""
        return _kept(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", path)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """One line per row as CSV text, also written to `path` if one is given."""
        out, records = io.StringIO(), self.records()
        if records:
            head = list(records[0])
            write_rows(out, [head, *([record[name] for name in head] for record in records)])
        return _kept(out.getvalue(), path)

    def to_html(self) -> str:
        """An HTML table for notebooks; `write_report` makes a page."""
        return for_notebook(self.grid())

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich__(self) -> RenderableType:
        return for_terminal(self.grid())

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_json() == other.to_json()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __contains__(self, name: object) -> bool:
        """Whether there is a row of this name."""
        rows: Any = self
        return any(name in (getattr(row, "name", None), row) for row in rows)


def write_rows(out: TextIO, rows: Sequence[Sequence[Any]]) -> None:
    """CSV in characters that any file takes; all is quoted where a text has a lone return."""
    found = [[writable(c) if isinstance(c, str) else c for c in row] for row in rows]
    returns = any(isinstance(c, str) and "\r" in c for row in found for c in row)
    quoting = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    csv.writer(out, lineterminator="\n", quoting=quoting).writerows(found)


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def by_name(rows: Sequence[N], name: str, what: str = "row") -> N:
    """The row of this name, or an error that lists the names there are."""
    for row in rows:
        if row.name == name:
            return row
    known = ", ".join(dict.fromkeys(row.name for row in rows)) or "none"
    titles = {row.name: str(getattr(row, "title", "")) for row in rows}
    guess = meant(name, [], titles) if isinstance(name, str) else ""
    raise SpiritlevelError(f"no {what} {name!r}{guess}; there are: {known}")


def load(path: str | os.PathLike[str]) -> Result:
    """The result that `to_json` or a command's --json wrote to a file."""
    a("path", path, (str, os.PathLike), "the name of a file that to_json wrote")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpiritlevelError(
            f"path={shown(str(path))} cannot be read: {why}; give the name of a file that to_json "
            "wrote"
        ) from None
    try:
        return result_from(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise SpiritlevelError(f"{path} holds no result: {error}") from None


def result_from(data: Any) -> Result:
    """The result that `to_dict` made into plain data."""
    if not isinstance(data, dict) or "kind" not in data or "schema" not in data:
        raise SpiritlevelError('a result has a "kind" and a "schema"; use what to_json wrote')
    kind = KINDS.get(data["kind"]) if isinstance(data["kind"], str) else None
    if kind is None:
        raise SpiritlevelError(f"unknown kind {data['kind']!r}; there are: {', '.join(KINDS)}")
    if data["schema"] != kind.schema:
        raise SpiritlevelError(
            f"its schema is {data['schema']!r}, and this version reads {kind.schema}: make it anew"
        )
    found = read(kind, data)
    try:
        found.grid(), found.records()
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise SpiritlevelError(f"it cannot be shown: {type(error).__name__}: {error}") from None
    return found


def _kept(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        file(path).write_text(text, encoding="utf-8")
    return text
