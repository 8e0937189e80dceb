"""A table of measures in words: every text that its page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiritlevel.report.numbers import estimate_words

Words = dict[str, Any]


def table_words(table: Mapping[str, Any]) -> Words:
    """What the template shows of the result of `measure`."""
    provenance = table["provenance"]
    count = len(table["rows"])
    return {
        "headline": table["verdict"] or f"{count} {'measure' if count == 1 else 'measures'}.",
        "interrupted": provenance.get("interrupted"),
        "rows": [_row(row) for row in table["rows"]],
        "product": _product(provenance),
        "notes": provenance.get("notes", []),
        "cost": _cost(provenance),
    }


def _row(row: Mapping[str, Any]) -> Words:
    title, products = row["title"], f"{row['matvecs']:.3g}" if row["matvecs"] else ""
    return {
        **estimate_words(row),
        "name": row["name"],
        "title": title.strip(),
        "part": title != title.lstrip(),  # of the row above
        "products": "shared" if row["shared"] else products,
        "seconds": "" if row["shared"] else f"{row['seconds']:.2f}",
    }


def _product(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How the products were made, and how well."""
    if "product" not in provenance:
        return []
    facts = [("how", provenance["product"])]
    if provenance["product_check"] is not None:
        facts.append(("against finite differences", f"{provenance['product_check']:.0e}"))
    if provenance["product_rounding"] is not None:
        facts.append(("rounding", f"{provenance['product_rounding']:.0e}"))
    return facts


def _cost(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    p = provenance
    return [
        ("parameters", f"{p['parameters']:,}"),
        ("examples", f"{p['examples']:,}"),
        ("mode", p["mode"]),
        ("precision", f"{p['dtype']} on {p['device']}"),
        ("seed", str(p["seed"])),
        ("products", f"{p['products']:,.4g}"),
        ("seconds", f"{p['seconds']:.1f}"),
        *p["versions"].items(),
    ]
