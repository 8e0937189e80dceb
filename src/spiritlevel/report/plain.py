"""Any result in words: the table and the lines that a terminal shows."""

from __future__ import annotations

from typing import Any

from spiritlevel.results.result import Result


def network_words(p: Any) -> list[tuple[str, str]]:
    """What was looked at and how, of any provenance of a network."""
    return [
        ("parameters", f"{p['parameters']:,}"),
        ("examples", f"{p['examples']:,}"),
        *([("mode", p["mode"])] if "mode" in p else []),
        ("precision", f"{p['dtype']} on {p['device']}"),
        *([("seed", str(p["seed"]))] if p["seed"] is not None else []),
    ]


def grid_words(result: Result) -> dict[str, Any]:
    grid, told = result.grid(), result.provenance
    return {
        "above": [line.text for line in grid.above if line.text],
        "notes": [line.text for line in grid.below if line.text],
        "titled": any(column.title for column in grid.columns),
        "columns": [(column.title, column.right) for column in grid.columns],
        "rows": [[cell.text for cell in row] for row in grid.rows],
        "cost": [("seconds", f"{told['seconds']:.1f}"), *told["versions"].items()],
    }
