"""A study in words: every text and number that its page shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spiritlevel.report.pictures import Words
from spiritlevel.report.study_data import scatter_data, value_words
from spiritlevel.report.study_limits import limits, listed
from spiritlevel.results.provenance import remarks
from spiritlevel.results.ranking import Line, axis_of, by_tau, configurations, known, lines
from spiritlevel.results.study import Findings, Ranked, Row

HERE, LEAST = ("●", "moves"), ("◆", "stays")  # colour is never alone: each kind has its own sign
MANY = 16  # values of an axis, that are not all listed


def study_words(findings: Findings) -> Words:
    """What the template shows of a study."""
    first, *others = findings.sentences
    ranked = lines(findings.rows)
    return {
        "headline": first,
        "interrupted": findings.provenance["interrupted"],
        "keys": _keys(findings),
        "said": others,
        "outcome": plain_words(findings.outcome),
        "axes": [_axis(name, values) for name, values in findings.axes.items()],
        "made": _made(findings),
        "ladder": _ladder(ranked),
        "columns": _columns(findings),
        "rows": [_row(row, findings) for row in sorted(findings.rows, key=by_tau)],
        "controls": listed([plain_words(name) for name in findings.controls]),
        "limits": limits(findings),
        "notes": remarks(findings.provenance),
        "cost": _cost(findings),
        "data": scatter_data(findings, ranked),
    }


# What stands above everything --------------------------------------------------------------------


def _keys(findings: Findings) -> list[Words]:
    """How many networks, the best measure as it is, and the best that no rescaling moves."""
    found = [_networks(findings)]
    ranked = sorted(_known(findings.rows), key=lambda row: -abs(row.tau.value))
    here = next((row for row in ranked if not row.invariant), None)
    least = None if here is None else _named(findings.rows, here.bottom)
    best = next((row for row in ranked if row.invariant), None)
    if here is not None:
        found.append(_key("Best in these coordinates", here, HERE))
    if here is not None and least is not None:
        key = _key("The same, orbit divided out", least, LEAST)
        if here.gain is not None:
            key["note"] += f"; change {interval(here.gain, signed=True)}"
        found.append(key)
    if best is not None and best is not least:
        found.append(_key("Best that no rescaling moves", best, LEAST))
    return found


def _networks(findings: Findings) -> Words:
    many, seeds = (
        len(set(configurations(findings.networks))),
        len({n.seed for n in findings.networks}),
    )
    note = f"{count(many, 'configuration')}, {count(seeds, 'seed')}"
    return {
        "label": "Networks",
        "number": f"{len(findings.networks):,}",
        "note": note,
        "kind": "still",
    }


def _key(label: str, row: Row, sign: tuple[str, str]) -> Words:
    mark, kind = sign
    note = f"{row.title}, tau {interval(row.tau)}"
    return {"label": f"{mark} {label}", "number": two(row.tau.value), "note": note, "kind": kind}


def _axis(name: str, values: Sequence[Any]) -> Words:
    """The values, or the ends of many."""
    texts = [value_words(value) for value in values]
    many = [f"{texts[0]} to {texts[-1]}", f"({len(texts)} values)"]
    return {"name": plain_words(name), "values": texts if len(texts) <= MANY else many}


def _made(findings: Findings) -> str:
    """How many networks there are, and of how many that were planned, as far as that is known."""
    planned, failed = findings.provenance["planned"], findings.provenance["failed"]
    there = len(findings.networks)
    of = "" if planned is None else f" of {planned:,} planned"
    parts = [f"{there:,}{of} {'network is' if there == 1 and not of else 'networks are'} here"]
    if failed is not None:
        parts += [f"{failed:,} failed"] if failed else ["none failed"]
    if planned is not None and (missing := planned - there - (failed or 0)) > 0:
        parts += [f"{missing:,} not yet trained" if failed is not None else f"{missing:,} are not"]
    return ", ".join(parts) + ("." if of else "; how many were planned is not known.")


# The ranked figure -------------------------------------------------------------------------------


def _ladder(ranked: Sequence[Line]) -> Words | None:
    """A line for each measure: plain and with the orbit divided out, joined."""
    rows = [row for line in ranked for row in line if row is not None and known(row.tau)]
    if not rows:
        return None
    ticks = axis_of(rows)
    inside = [line for line in ranked if any(row in rows for row in line)]

    def at(value: float) -> str:
        return f"{100 * (value - ticks[0]) / (ticks[-1] - ticks[0]):.2f}"

    def mark(row: Row | None) -> Words | None:
        if row is None or not known(row.tau):
            return None
        tau, (sign, _) = row.tau, LEAST if row.invariant else HERE
        words = {"name": row.name, "sign": sign, "invariant": row.invariant, "open": not tau.clear}
        places = {"at": at(tau.value), "low": at(tau.low), "high": at(tau.high)}
        return {**words, **places, "number": two(tau.value), "interval": interval(tau)}

    return {
        "ticks": [{"at": at(tick), "label": f"{tick:g}".replace("-", "−")} for tick in ticks],
        "zero": at(0.0),
        "lines": [
            {"title": first.title, "name": first.name, "marks": list(filter(None, map(mark, line)))}
            for line in inside
            for first in line[:1]
        ],
        "pairs": any(second is not None for _, second in inside),
        "hollow": any(not row.tau.clear for row in rows),
        "moved": any(not row.invariant for row in rows),
        "stays": any(row.invariant for row in rows),
    }


# The table ---------------------------------------------------------------------------------------


def _columns(findings: Findings) -> list[Words]:
    """Those that say something in some row."""
    rows = findings.rows
    signs = any(row.signs is not None for row in rows)
    wanted = {
        "tau": ("tau", "", "95 % interval", True),
        "tau_a": ("tau-a", "", "", True),
        "psi": ("Ψ", "", "by axis", any(row.psi is not None for row in rows)),
        "information": ("K", "", "", any(row.information is not None for row in rows)),
        "mean": ("sign error", "", "mean", signs),
        "p90": ("", "sign error", "90 %", signs),
        "largest": ("", "sign error", "largest", signs),
        "partial": ("partial tau", "", "95 % interval", any(known(row.partial) for row in rows)),
        "gain": ("change", "", "orbit divided out", any(known(row.gain) for row in rows)),
        "p": ("p", "", "Holm", True),
        "n": ("networks", "", "", True),
    }
    return [
        {"name": name, "title": title, "quiet": quiet, "under": under}
        for name, (title, quiet, under, there) in wanted.items()
        if there
    ]


def _row(row: Row, findings: Findings) -> Words:
    sign, kind = LEAST if row.invariant else HERE
    by_axis = [
        {"name": plain_words(axis), "value": two(psi)}
        for axis, psi in row.by_axis.items()
        if math.isfinite(psi)
    ]
    cells = {column["name"]: cell(row, column["name"]) for column in _columns(findings)}
    return {
        "name": row.name,
        "title": row.title,
        "family": row.family,
        "sign": sign,
        "kind": kind,
        "said": "no rescaling moves it" if row.invariant else "rescaling moves it",
        "cells": cells,
        "by_axis": by_axis,
    }


def cell(row: Row, column: str) -> Words:
    """A number of a row, what is shown below it, and by what it is sorted."""
    if column in ("tau", "partial", "gain"):
        ranked: Ranked | None = getattr(row, column)
        if ranked is None or not known(ranked):
            return {"value": None, "text": "", "under": ""}
        text = two(ranked.value, plus=column == "gain")
        return {"value": ranked.value, "text": text, "under": _ends(ranked)}
    told = row.signs if column in ("mean", "p90", "largest") else row
    value = None if told is None else getattr(told, column)
    if value is None or not math.isfinite(value):
        return {"value": None, "text": "", "under": ""}
    shown = {"p": chance, "n": lambda n: f"{n:,}"}.get(column, two)
    return {"value": value, "text": shown(value), "under": ""}


# Numbers and names -------------------------------------------------------------------------------


def two(value: float, *, plus: bool = False) -> str:
    """Two decimals, with a minus that is as wide as a digit; no minus before a zero."""
    if not math.isfinite(value):
        return "not known"
    return f"{round(value, 2) + 0.0:{'+' if plus else ''}.2f}".replace("-", "−")


def interval(ranked: Ranked, *, signed: bool = False) -> str:
    """[0.19, 0.41], behind its value where it has a sign."""
    return f"{two(ranked.value, plus=True)} {_ends(ranked)}" if signed else _ends(ranked)


def _ends(ranked: Ranked) -> str:
    return f"[{two(ranked.low)}, {two(ranked.high)}]"


def chance(p: float) -> str:
    """Two digits; what is less than a permutation test of some thousands can tell is so said."""
    return f"{p:.2g}" if p >= 1e-4 else "< 0.0001"


def plain_words(name: str) -> str:
    return name.replace("_", " ")


def count(many: int, what: str) -> str:
    return f"{many:,} {what}" if many == 1 else f"{many:,} {what}s"


def _known(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if known(row.tau)]


def _named(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in _known(rows) if row.name == name), None)


def _cost(findings: Findings) -> list[tuple[str, str]]:
    p = findings.provenance
    return [
        ("networks", f"{len(findings.networks):,}"),
        ("measures", f"{len(findings.rows):,}"),
        ("seconds", f"{p['seconds']:,.1f}"),
        *p["versions"].items(),
    ]
