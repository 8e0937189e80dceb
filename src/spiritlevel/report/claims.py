"""Claims in words: every text that their page shows, ready to be put in place."""

from __future__ import annotations

import base64
import math
import re
from typing import Any

from spiritlevel.results.claims import Checked, Claims

Words = dict[str, Any]
WIDE = 600  # pixels: several drawings side by side, which a phone cannot show at once
# Colour is never alone: each verdict has its own sign.
VERDICTS = {
    "holds": {"kind": "stays", "sign": "✓", "verdict": "holds"},
    "fails": {"kind": "broken", "sign": "✗", "verdict": "does not hold"},
    "own example": {"kind": "still", "sign": "◇", "verdict": "shown on its own example"},
    "not checked": {"kind": "still", "sign": "○", "verdict": "not checked"},
}


def claims_words(claims: Claims) -> Words:
    """What the template shows of claims, as texts and images."""
    return {
        "headline": claims.headline,
        "interrupted": claims.provenance["interrupted"],
        "claims": [_claim(row, claims.figures.get(row.name, "")) for row in claims.rows],
        "cost": [
            ("network", claims.network),
            ("seconds", f"{claims.provenance['seconds']:.1f}"),
            *(("note", note) for note in claims.provenance["notes"]),
            *claims.provenance["versions"].items(),
        ],
    }


def _claim(row: Checked, svg: str) -> Words:
    numbers = row.finding.numbers if row.finding else {}
    return {
        **VERDICTS[row.verdict],
        "name": row.name,
        "title": row.title[:1].upper() + row.title[1:],
        "statement": row.statement,
        "source": row.source,
        "built": row.built,
        "shown": row.shown,
        "numbers": [(name, _number(value)) for name, value in numbers.items()],
        "figure": _figure(svg, f"{row.title}: {row.shown}", row.caption) if svg else None,
    }


def _number(value: float) -> str:
    """Four digits, what is rounding in one, large numbers to the unit."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 1e3:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.3e}"
    return f"{value:.0e}" if abs(value) < 1e-9 else f"{value:.4g}"


def _figure(svg: str, alt: str, caption: str) -> Words:
    """As an image of its own, in which ids cannot clash and nothing can run."""
    code = base64.b64encode(svg.encode()).decode("ascii")
    width, height = _size(svg)
    return {
        "source": f"data:image/svg+xml;base64,{code}",
        "alt": alt,
        "caption": caption,
        "width": width,
        "height": height,
        "wide": width > WIDE,
    }


def _size(svg: str) -> tuple[int, int]:
    """Of the drawing in pixels, so that the page does not jump when it comes."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if box is None:
        return 480, 300
    return round(float(box[1]) * 4 / 3), round(float(box[2]) * 4 / 3)  # points of type
