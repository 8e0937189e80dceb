"""Bounds in words: every text and number that their page shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spiritlevel.base.spoken import at_least, at_most, percent_at_most, short_power
from spiritlevel.report.pictures import Words, course_words
from spiritlevel.report.plain import network_words
from spiritlevel.results.bound import Bound, Bounds, Drawn, Origin, Part, Row, grouped
from spiritlevel.results.bound_words import POINTS, main_at, surely
from spiritlevel.results.ladder import STEPS, Rung, ladder
from spiritlevel.results.provenance import remarks
from spiritlevel.results.scales import scale

SHOWN = 24  # parameters that have a bar of their own; the others have one together
NAMES = {"here": "as trained", "orbit": "rescaled", "balanced": "balanced"}


def bounds_words(bounds: Bounds) -> Words:
    """What the template shows of bounds."""
    origin = bounds.origin
    return {
        "headline": bounds.headline,
        "interrupted": bounds.provenance["interrupted"],
        "keys": _keys(bounds),
        "said": bounds.sentences[1:],
        "informed": bounds.informed,
        "ladder": None if origin is None else _ladder(bounds, origin),
        "split": None if origin is None else _split(origin),
        "kinds": [
            (of, [_group(same) for same in grouped(rows, lambda row: row.name).values()])
            for of, rows in grouped(bounds.rows, lambda row: row.bound.of).items()
        ],
        "points": [(p, POINTS[p]) for p in POINTS if any(r.point == p for r in bounds.rows)],
        "vacuous": any(r.bound.vacuous for r in bounds.rows),
        "drawn": origin is not None and len(origin.steps) > 1,
        "data": None if origin is None else _course(origin),
        "notes": remarks(bounds.provenance),
        "cost": _cost(bounds),
    }


# The numbers on top ------------------------------------------------------------------------------


def _keys(bounds: Bounds) -> list[Words]:
    origin, main = bounds.origin, bounds.main
    if origin is None or main is None:
        return []
    keys = [_guarantee(main.bound)]
    here = main_at(bounds, "here")
    number = "" if here is None else _worth(here)
    if here is not None and number != _worth(main.bound):
        note = "the same posterior, the same predictions, not rescaled"
        keys.append({"label": "As it was trained", "number": number, "note": note, "kind": "moves"})
    keys.append(_measured("On these examples", origin.error))
    if origin.test is not None:
        keys.append(_measured("On the test examples", origin.test))
    return keys


def _worth(bound: Bound) -> str:
    return "100%" if bound.vacuous else percent_at_most(bound.value)


def _guarantee(bound: Bound) -> Words:
    note = f"of new examples, {surely(bound.delta)}"
    label, kind = ("No guarantee", "broken") if bound.vacuous else ("Guaranteed: at most", "stays")
    return {"label": label, "number": _worth(bound), "note": note, "kind": kind}


def _measured(label: str, drawn: Drawn) -> Words:
    width = f" ± {100 * drawn.stderr:.2f}" if drawn.stderr >= 5e-5 else ""
    note = f"measured{width}, {drawn.draws:,} networks drawn"
    return {"label": label, "number": f"{100 * drawn.error:.2f}%", "note": note, "kind": "still"}


# From the error that was measured to the bound ---------------------------------------------------


def _ladder(bounds: Bounds, origin: Origin) -> Words | None:
    rungs = ladder(bounds)
    if not rungs:
        return None
    test = None if origin.test is None else origin.test.error
    top = min(1.0, 1.08 * max(test or 0.0, *(rung.heights[-1] for rung in rungs)))
    return {
        "bars": [_bar(rung, top) for rung in rungs],
        "test": None if test is None else {"at": _width(test, top), "number": _percent(test)},
        "top": f"{100 * top:.3g}%",
    }


def _bar(rung: Rung, top: float) -> Words:
    parts = [
        {"name": name, "width": _width(part, top), "number": _percent(part)}
        for name, part in zip(STEPS, rung.parts, strict=True)
    ]
    return {
        "point": NAMES.get(rung.point, rung.point),
        "parts": parts,
        "total": _worth(rung.bound),
    }


# Where the divergence lies -----------------------------------------------------------------------


def _split(origin: Origin) -> Words | None:
    """A bar for each parameter; many small ones have one together."""
    parts = [p for p in origin.parts if math.isfinite(p.kl)]
    if not parts:
        return None
    largest = sorted(parts, key=lambda p: -p.kl)[:SHOWN] if len(parts) > SHOWN else parts
    others = [p for p in parts if p not in largest]
    shown = [p for p in parts if p in largest]
    shown += [_together(others)] if others else []
    top = max(*(p.kl for p in shown), *(p.least or 0.0 for p in shown), 1e-300)
    limit = origin.lower_bound
    return {
        "rows": [_part(part, top) for part in shown],
        "kl": _four(origin.kl),
        "least": None if origin.least is None else _four(origin.least),
        "lowest": None if limit is None else at_least(limit),
        "parameters": f"{sum(p.parameters for p in parts):,}",
        "prior": origin.prior,
        "scale": _four(origin.prior_scale),
        "examples": f"{origin.examples:,}",
    }


def _together(parts: Sequence[Part]) -> Part:
    least = [p.least for p in parts if p.least is not None]
    known = sum(least) if len(least) == len(parts) else None
    kl, count = sum(p.kl for p in parts), sum(p.parameters for p in parts)
    return Part(f"{len(parts)} others", count, kl, known)


def _part(part: Part, top: float) -> Words:
    least = part.least
    return {
        "name": part.name,
        "parameters": f"{part.parameters:,}",
        "kl": _four(part.kl),
        "least": None if least is None else _four(least),
        "each": _four(part.kl / max(part.parameters, 1)),
        "width": _width(max(part.kl, 0.0), top),
        "least_width": None if least is None else _width(max(least, 0.0), top),
    }


def _course(origin: Origin) -> Words:
    """The epochs of the training of the posterior, a panel for each number."""
    steps = [step.epoch for step in origin.steps]
    courses = {
        "bound, as far as the surrogate goes": [step.bound for step in origin.steps],
        "surrogate error": [step.surrogate for step in origin.steps],
        "divergence, nats": [step.kl for step in origin.steps],
    }
    panels = [_panel(title, steps, values) for title, values in courses.items()]
    return {
        "axis": "epoch",
        "steps": steps,
        "labels": [f"epoch {step}" for step in steps],
        "panels": panels,
    }


def _panel(title: str, steps: list[int], values: list[float]) -> Words:
    known = scale(values)
    course = course_words(steps, values)
    others = {"met": None, "least": None, "edge": None, "invariant": True}
    return {"title": title, "log": known is not None and known.log, "here": course, **others}


# Every bound -------------------------------------------------------------------------------------


def _group(rows: Sequence[Row]) -> Words:
    first = rows[0].bound
    terms = list(dict.fromkeys(term.name for row in rows for term in row.bound.terms))
    return {
        "name": first.name,
        "title": first.title[:1].upper() + first.title[1:],
        "reference": first.reference,
        "assumptions": list(dict.fromkeys(a for row in rows for a in row.bound.assumptions)),
        "rows": [_row(row) for row in rows],
        "terms": [(name, [_term(row.bound, name) for row in rows]) for name in terms],
        "guarantees": not all(row.bound.vacuous for row in rows),
    }


def _row(row: Row) -> Words:
    bound = row.bound
    kind, sign = ("still", "○") if bound.vacuous else ("stays", "✓")
    sure = surely(bound.delta) or "in the mean"
    return {
        "point": row.point,
        "value": at_most(bound.value),
        "kind": kind,
        "sign": sign,
        "verdict": f"vacuous, {sure}" if bound.vacuous else sure,
    }


def _term(bound: Bound, name: str) -> str:
    return next((_four(term.value) for term in bound.terms if term.name == name), "")


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%" if share > 0 else ""


def _width(share: float, top: float) -> str:
    return f"{100 * min(share / top, 1.0):.3f}"


def _four(value: float) -> str:
    """Four digits, zeros at their end too; whole numbers are whole."""
    whole = math.isfinite(value) and value == int(value) and abs(value) < 1e9
    return f"{int(value):,}" if whole else short_power(f"{value:#.4g}".removesuffix("."))


def _cost(bounds: Bounds) -> list[tuple[str, Any]]:
    p = bounds.provenance
    return [
        *network_words(p),
        ("seconds", f"{p['seconds']:.1f}"),
        *p["versions"].items(),
    ]
