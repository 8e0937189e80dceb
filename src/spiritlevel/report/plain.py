"""Any result in words: the table and the lines that a terminal shows."""

from __future__ import annotations

from typing import Any

from spiritlevel.results.result import Result


def grid_words(result: Result) -> dict[str, Any]:
    grid = result.grid()
    return {
        "above": [line.text for line in grid.above if line.text],
        "below": [line.text for line in grid.below if line.text],
        "columns": [(column.title, column.right) for column in grid.columns],
        "rows": [[cell.text for cell in row] for row in grid.rows],
        "cost": [
            (name, str(value))
            for name, value in result.provenance.items()
            if isinstance(value, (str, int, float)) and value != ""
        ],
    }
