"""Claims in words: every text that their page shows, ready to be put in place."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Words = dict[str, Any]
WIDE = 600  # pixels: several drawings side by side, which a phone cannot show at once
# Colour is never alone: each verdict has its own sign.
VERDICTS = {
    "holds": {"kind": "stays", "sign": "✓", "verdict": "holds"},
    "fails": {"kind": "broken", "sign": "✗", "verdict": "does not hold"},
    "own example": {"kind": "still", "sign": "◇", "verdict": "shown on its own example"},
    "not checked": {"kind": "still", "sign": "○", "verdict": "not checked"},
}


def claims_words(claims: Mapping[str, Any], figures: Mapping[str, str]) -> Words:
    """What the template shows of claims, as texts and images."""
    found = [_claim(claim, figures.get(claim["name"], "")) for claim in claims["claims"]]
    return {
        "headline": _headline(claims["claims"]),
        "interrupted": claims["interrupted"],
        "claims": found,
        "cost": [
            ("network", claims["network"]),
            ("seconds", f"{claims['seconds']:.1f}"),
            ("spiritlevel", claims["version"]),
        ],
    }


def _headline(claims: Sequence[Mapping[str, Any]]) -> str:
    verdicts = [claim["verdict"] for claim in claims]
    right, wrong, own = (verdicts.count(v) for v in ("holds", "fails", "own example"))
    elsewhere = ""
    if own:
        were = "One more was" if own == 1 else f"{own} more were"
        elsewhere = (
            f" {were} shown on {'an example of its' if own == 1 else 'examples of their'} own."
        )
    if wrong:
        return f"{right} of {right + wrong} claims hold.{elsewhere}"
    if right:
        every = "The claim holds" if right == 1 else f"All {right} claims hold"
        return f"{every} on this network.{elsewhere}"
    if own:
        return f"Shown on {'an example of its' if own == 1 else 'examples of their'} own."
    return "No claim could be checked on this network."


def _claim(claim: Mapping[str, Any], svg: str) -> Words:
    outcome = claim["outcome"]
    title = claim["title"]
    shown = outcome["shown"] if outcome else claim["skipped"]
    numbers = outcome["numbers"] if outcome else {}
    return {
        **VERDICTS[claim["verdict"]],
        "name": claim["name"],
        "title": title[:1].upper() + title[1:],
        "statement": claim["statement"],
        "source": claim["source"],
        "built": claim["built"],
        "shown": shown,
        "numbers": [(name, _number(value)) for name, value in numbers.items()],
        "figure": _figure(svg, f"{title}: {shown}", claim["caption"]) if svg else None,
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
