"""A table of measures in words: every text that its page shows."""

from __future__ import annotations

from typing import Any

from spiritlevel.report.numbers import estimate_words
from spiritlevel.report.plain import network_words
from spiritlevel.results.provenance import remarks
from spiritlevel.results.table import LEGEND, OfTable, Row, Table

Words = dict[str, Any]


def table_words(table: Table) -> Words:
    """What the template shows of the result of `measure`."""
    told, count = table.provenance, len(table.rows)
    return {
        "headline": table.verdict or f"{count} {'measure' if count == 1 else 'measures'}.",
        "interrupted": told["interrupted"],
        "families": [
            (family, [_row(row) for row in members]) for family, members in table.families().items()
        ],
        "legend": LEGEND if any(row.marks for row in table.rows) else "",
        "product": [(what or "how", size) for what, size in table.product()],
        "notes": remarks(told),
        "cost": _cost(told),
    }


def _row(row: Row) -> Words:
    *_, marks, products, seconds = row.cells()
    return {
        **estimate_words(row.estimate),
        "name": row.name,
        "title": row.title,
        "part": row.part,
        "marks": marks,
        "products": products,
        "seconds": seconds,
    }


def _cost(provenance: OfTable) -> list[tuple[str, str]]:
    p = provenance
    return [
        *network_words(p),
        ("products", f"{p['products']:,.4g}"),
        ("seconds", f"{p['seconds']:.1f}"),
        *p["versions"].items(),
    ]
