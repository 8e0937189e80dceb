"""A comparison in words: every text that its page shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from spiritlevel.base.estimate import format_value
from spiritlevel.base.matrices import CALLED
from spiritlevel.base.spoken import at_most
from spiritlevel.report.numbers import estimate_words
from spiritlevel.results.comparison import Answer, Comparison, Interval, Pair
from spiritlevel.results.provenance import interruption, remarks

Words = dict[str, Any]
# Colour is never alone: each answer has its own sign.
KINDS = {
    Answer.SURVIVES: ("stays", "✓"),
    Answer.COORDINATES: ("moves", "≠"),
    Answer.EQUAL: ("still", "="),
    Answer.UNDECIDED: ("still", "○"),
}
CARDS = {
    Answer.SURVIVES: (
        "Differences that survive",
        "the networks differ, not only their coordinates",
    ),
    Answer.COORDINATES: ("Only in these coordinates", "gone, or turned around, on the orbits"),
    Answer.EQUAL: ("Equal", "the two values are known to be alike"),
    Answer.UNDECIDED: ("Undecided", "what is left is unknown, or not known well enough"),
}


def comparison_words(comparison: Comparison) -> Words:
    """What the template shows of a comparison."""
    names = comparison.names
    return {
        "headline": comparison.headline,
        "keys": _keys(comparison.pairs),
        "names": names,
        "rows": [_row(comparison.of(measure), names) for measure in comparison.values],
        "notes": interruption(comparison.provenance) + remarks(comparison.provenance),
        "cost": _cost(comparison),
    }


def _keys(pairs: Sequence[Pair]) -> list[Words]:
    answers = Counter(pair.answer for pair in pairs)
    return [
        {
            "label": label,
            "number": f"{answers[answer]} of {len(pairs)}",
            "note": note,
            "kind": KINDS[answer][0] if answers[answer] else "still",
        }
        for answer, (label, note) in CARDS.items()
        if answers[answer] or answer in (Answer.SURVIVES, Answer.COORDINATES)
    ]


def _row(pairs: Sequence[Pair], names: Sequence[str]) -> Words:
    """One measure of all networks, and an answer for each two of them."""
    values: dict[str, Words] = {}
    for pair in pairs:
        for i, network in enumerate((pair.sharper, pair.other)):
            shown = values.setdefault(network, {**estimate_words(pair.values[i]), "least": ""})
            if pair.least:
                shown["least"] = _least(pair.least[i], pair)
    return {
        "name": pairs[0].name,
        "title": pairs[0].title,
        "values": [values[name] for name in names],
        "answers": [_answer(pair) for pair in pairs],
    }


def _least(interval: Interval, pair: Pair) -> str:
    """The least value on the orbit, as well as it is known, and of which matrix."""
    low, high = (format_value(end, 1e-2 * abs(end)) for end in (interval.low, interval.high))
    known = low if low == high else f"{low} to {high}"
    if interval.low <= 0:  # nothing is known from below
        known = f"≤ {at_most(interval.high)}"
    matrix = f" of the {CALLED[pair.matrix]}" if pair.matrix else ""
    return f"least {known}{matrix}{', to second order' if pair.order else ''}"


def _answer(pair: Pair) -> Words:
    turned = ""
    if pair.turned is not None and pair.turned.outcome == "reached":
        value = format_value(pair.turned.value, 0.1 * abs(pair.turned.value))
        turned = f"A twin of {pair.other} with identical predictions has {value}."
    kind, sign = KINDS[pair.answer]
    return {
        "kind": kind,
        "sign": sign,
        "verdict": pair.text,
        "turned": turned,
        "pair": f"{pair.sharper} and {pair.other}",
    }


def _cost(comparison: Comparison) -> list[tuple[str, str]]:
    p = comparison.provenance
    return [
        ("networks", str(len(comparison.names))),
        ("seed", str(p["seed"])),
        ("seconds", f"{p['seconds']:.1f}"),
        *p["versions"].items(),
    ]
