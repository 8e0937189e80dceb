"""Networks as tables: CSV that can be read back to the last bit, Parquet, a DataFrame."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.requiring import required
from spiritlevel.results.result import write_rows
from spiritlevel.results.study import Network, networks_from_csv

CONFIG, NUMBER, ERROR = "config.", "number.", " error"
ELSE = (CONFIG, NUMBER, "numbers.", '"')  # what a measure's column does not begin with


def columns(networks: Sequence[Network]) -> dict[str, list[Any]]:
    """key, config.<axis>, seed, number.<name>, <label>, <label> error; None where one has none.

    A label that reads like another column is quoted as in JSON.
    """
    found: dict[str, list[Any]] = {"key": [one.key for one in networks]}
    for axis in _union(one.config for one in networks):
        found[CONFIG + axis] = [one.config.get(axis) for one in networks]
    found["seed"] = [one.seed for one in networks]
    for name in _union(one.numbers for one in networks):
        found[NUMBER + name] = [one.numbers.get(name) for one in networks]
    for label in _union(one.values for one in networks):
        found[_quoted(label)] = [one.values.get(label) for one in networks]
        found[_quoted(label) + ERROR] = [one.errors.get(label) for one in networks]
    return found


def to_csv(networks: Sequence[Network], path: str | os.PathLike[str]) -> None:
    """One line a network. Texts that read like something else are quoted as in JSON."""
    made, out = columns(networks), io.StringIO()
    rows = ([_cell(value) for value in row] for row in zip(*made.values(), strict=True))
    write_rows(out, [list(made), *rows])
    doors.file(path).write_text(out.getvalue(), encoding="utf-8", newline="")


def read_csv(path: str | os.PathLike[str]) -> list[Network]:
    """The networks that `Store.to_csv` or `Findings.to_csv` wrote, to be analysed without them."""
    doors.a("path", path, (str, os.PathLike), "the name of a file that Store.to_csv wrote")
    try:
        # spreadsheets begin a file with a mark
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
        head, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise SpiritlevelError(f"path={str(path)!r} cannot be read: {error}") from None
    if "seed" not in head or any(len(row) != len(head) for row in rows):
        raise SpiritlevelError(
            f"path={str(path)!r} holds no networks: use a file that Store.to_csv wrote"
        )
    if twice := [name for name, count in Counter(head).items() if count > 1]:
        raise SpiritlevelError(f"path={str(path)!r} has two columns {twice[0]!r}: leave one out")
    try:
        of_findings = head[:2] == ["key", "seed"] and any(n.startswith("numbers.") for n in head)
        return list(networks_from_csv(text)) if of_findings else [_network(head, r) for r in rows]
    except ValueError as error:
        raise SpiritlevelError(f"path={str(path)!r} holds something else: {error}") from None


def to_parquet(networks: Sequence[Network], path: str | os.PathLike[str]) -> None:
    """The columns of the CSV; an axis with values of several kinds is written as texts."""
    file = doors.file(path)
    arrow = required("pyarrow", '"spiritlevel[parquet]"')
    parquet = required("pyarrow.parquet", '"spiritlevel[parquet]"')
    made = {name: _alike(values) for name, values in columns(networks).items()}
    parquet.write_table(arrow.table(made), file)


def to_dataframe(networks: Sequence[Network]) -> Any:
    """The columns of the CSV, one row a network."""
    return required("pandas", "pandas").DataFrame(columns(networks))


def _network(head: list[str], row: list[str]) -> Network:
    """A column that bears the name of the one before and " error" is the error of it."""
    config: dict[str, Any] = {}
    numbers: dict[str, float] = {}
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    key, seed, before = "", 0, None
    for name, text in zip(head, row, strict=True):
        if name == "key":
            key = str(_value(text))
        elif name == "seed":
            seed = int(text)
        elif name.startswith(CONFIG):
            config |= {name.removeprefix(CONFIG): _value(text)} if text else {}
        elif name.startswith(NUMBER):
            numbers |= {name.removeprefix(NUMBER): float(text)} if text else {}
        elif before is not None and name == before + ERROR:
            errors |= {_bare(before): float(text)} if text else {}
            before = None
        else:
            values |= {_bare(name): float(text)} if text else {}
            before = name
    return Network(key, config, seed, numbers, values, errors)


def _quoted(label: str) -> str:
    other = label in ("", "key", "seed") or label.startswith(ELSE) or label.endswith(ERROR)
    return json.dumps(label) if other or not label.isprintable() else label


def _bare(column: str) -> str:
    return str(_value(column)) if column.startswith('"') else column


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):  # lines and control characters are not for every reader
        bare = value and value.isprintable() and _value(value) == value
        return value if bare else json.dumps(value)
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _alike(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    return values if len(kinds) <= 1 else [_cell(value) for value in values]


def _union(parts: Any) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))
