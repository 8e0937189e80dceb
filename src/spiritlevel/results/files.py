"""Results as plain data: JSON that every reader takes, and files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spiritlevel.base.doors import file


def json_ready(data: Any) -> Any:
    """Plain data with null for what JSON has no number for: a measure may overflow."""
    if isinstance(data, Mapping):
        return {key: json_ready(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [json_ready(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def json_text(data: Any) -> str:
    return json.dumps(json_ready(data), indent=2, allow_nan=False) + "\n"


def csv_text(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """A line with the names of the columns, and one per row."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head.split(), *rows])
    return out.getvalue()


def written(text: str, path: str | Path | None) -> str:
    """The text, also written to `path` if one is given."""
    if path is not None:
        file(path).write_text(text, encoding="utf-8")
    return text
