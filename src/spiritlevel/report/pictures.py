"""What the pages of pictures have in common: the same words for the same things."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.spoken import digits, short_power
from spiritlevel.report.audit import SIGNS
from spiritlevel.report.plain import network_words
from spiritlevel.results.certificate import VERDICTS, Certificate
from spiritlevel.results.data import plain
from spiritlevel.results.landscape import OfLandscape
from spiritlevel.results.provenance import remarks

Words = dict[str, Any]
SAME = "The same network, the same predictions"


def far(value: float, home: float) -> float:
    """How many times larger or smaller; differences, where a ratio says nothing."""
    if value > 0 and home > 0:
        return abs(math.log(value / home))
    return abs(value - home)


def at(name: str) -> str:
    """Where a value was found."""
    return f"({name})"


def refuted(certificates: Iterable[Certificate | None]) -> str | None:
    """The largest change of a prediction that rounding does not explain."""
    broken = [c.relative for c in certificates if c is not None and not c.holds]
    return short_power(f"{max(broken):.0e}") if broken else None


def change_words(certificate: Certificate | None) -> Words:
    """The number that a slider does not move, with what it was found on."""
    if certificate is None:
        return {"number": "", "on": "", "kind": "still", "sign": ""}
    number = short_power(f"{certificate.relative:.0e}") if certificate.relative else "0"
    kind = "broken" if not certificate.holds else "stays"
    return {
        "number": number,
        "on": f"on {certificate.examples:,} examples and on {certificate.inputs}",
        "kind": kind,
        "sign": SIGNS[kind],
        "verdict": certificate.verdict,
    }


def _worst(certificates: Iterable[Certificate | None]) -> Certificate | None:
    known = [c for c in certificates if c is not None]
    return max(known, key=lambda c: (VERDICTS.index(c.verdict), c.relative), default=None)


def change_key(certificates: Iterable[Certificate | None]) -> list[Words]:
    """The worst of them, large; nothing if nothing was compared."""
    worst = _worst(certificates)
    if worst is None:
        return []
    told = change_words(worst)
    same = "of the largest prediction" if worst.relative else "identical bit for bit"
    return [
        {
            "label": "Largest change of any prediction",
            "number": told["number"],
            "note": f"{same}, {told['on']}",
            "kind": told["kind"],
        }
    ]


def holes(values: Iterable[float | None]) -> str:
    """How many of the places that were evaluated have no finite value, if any has none."""
    done = [v for v in values if v is not None]
    broken = sum(not math.isfinite(v) for v in done)
    if not broken:
        return ""
    many = "one place it is" if broken == 1 else f"{broken:,} of {len(done):,} places it is"
    return f" At {many} not finite."


def short(rows: Any) -> Any:
    """Six digits; infinities as their names, which JSON has no numbers for."""
    if isinstance(rows, (list, tuple)):
        return [short(row) for row in rows]
    return plain(rows) if rows is None or not math.isfinite(rows) else float(f"{rows:.5e}")


def said(value: float | None) -> str:
    """Three digits; nothing for what is not known."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return digits(value) if math.isfinite(value) else "not finite"


def common(p: OfLandscape) -> Words:
    """Notes and provenance."""
    return {
        "interrupted": p["interrupted"],
        "notes": remarks(p),
        "cost": [
            *network_words(p),
            *([("points", p["engine"])] if p["engine"] else []),
            ("statistics of norms", p["statistics"]),
            ("farthest from a plain pass", f"{p['check']:.0e}"),
            ("seconds", f"{p['seconds']:.1f}"),
            *p["versions"].items(),
        ],
    }


def course_words(
    steps: Sequence[int], values: Sequence[float | None], estimates: Sequence[Estimate] = ()
) -> Words:
    """With errors on both sides; of an upper bound, all that is below it."""
    errors = [e.error for e in estimates] or [0.0] * len(values)
    below = [e.value if e.status is Status.UPPER_BOUND else e.error for e in estimates] or errors
    found = {"values": short(list(values)), "errors": short(errors), "below": short(below)}
    return {"steps": list(steps), **found}
