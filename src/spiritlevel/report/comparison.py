"""A comparison in words: every text that its page shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.base.estimate import format_value
from spiritlevel.report.numbers import estimate_words

Words = dict[str, Any]
Pairs = Sequence[Mapping[str, Any]]
NO_SHARPNESS = ("loss", "norm")  # families of measures
MATRICES = {"hessian": "of the Hessian", "ggn": "of the Gauss-Newton matrix"}
# Colour is never alone: each answer has its own sign.
KINDS = {"survives": "stays", "coordinates": "moves", "equal": "still", "undecided": "still"}
SIGNS = {"survives": "✓", "coordinates": "≠", "equal": "=", "undecided": "○"}
CARDS = {
    "survives": ("Differences that survive", "the networks differ, not only their coordinates"),
    "coordinates": ("Only in these coordinates", "gone, or turned around, on the orbits"),
    "equal": ("Equal", "the two values are known to be alike"),
    "undecided": ("Undecided", "what is left is unknown, or not known well enough"),
}


def comparison_words(comparison: Mapping[str, Any]) -> Words:
    """What the template shows of a comparison."""
    pairs, names = comparison["pairs"], comparison["names"]
    return {
        "headline": _headline([p for p in pairs if p["family"] not in NO_SHARPNESS], names),
        "keys": _keys(pairs),
        "names": names,
        "rows": [
            _row([pair for pair in pairs if pair["name"] == name], names)
            for name in dict.fromkeys(pair["name"] for pair in pairs)
        ],
        "notes": comparison["provenance"]["notes"],
        "cost": _cost(comparison),
    }


def _headline(pairs: Pairs, names: Sequence[str]) -> str:
    """What is known of the sharpness of the networks, in one sentence."""
    answers = Counter(pair["answer"] for pair in pairs)
    lasting, count = answers["survives"], len(pairs)
    if not pairs:
        return "No sharpness was compared."
    if len(names) > 2:
        return f"Of {count} comparisons of sharpness, {lasting} {_verb(lasting)} the symmetries."
    sharper = Counter(pair["sharper"] for pair in pairs if pair["answer"] == "survives")
    if len(sharper) > 1:
        return "The measures disagree on which network is sharper, also when it survives."
    if sharper:
        (one,) = sharper
        other = next(name for name in names if name != one)
        by = f"by {lasting} of {count} measures" if count > 1 else "by the one measure"
        return f"{one} is sharper than {other} {by}, and that survives the symmetries."
    if answers["coordinates"]:
        return "No difference in sharpness survives: those that are known are of the coordinates."
    if answers["equal"] == count:
        return f"{names[0]} and {names[1]} are equally sharp."
    return "Which network is sharper is undecided."


def _verb(count: int) -> str:
    return "survives" if count == 1 else "survive"


def _keys(pairs: Pairs) -> list[Words]:
    answers = Counter(pair["answer"] for pair in pairs)
    return [
        {
            "label": label,
            "number": f"{answers[answer]} of {len(pairs)}",
            "note": note,
            "kind": KINDS[answer] if answers[answer] else "still",
        }
        for answer, (label, note) in CARDS.items()
        if answers[answer] or answer in ("survives", "coordinates")
    ]


def _row(pairs: Pairs, names: Sequence[str]) -> Words:
    """One measure of all networks, and an answer for each two of them."""
    values: dict[str, Words] = {}
    for pair in pairs:
        for i, network in enumerate((pair["sharper"], pair["other"])):
            shown = values.setdefault(network, {**estimate_words(pair["values"][i]), "least": ""})
            if pair["least"]:
                shown["least"] = _least(pair["least"][i], pair)
    return {
        "name": pairs[0]["name"],
        "title": pairs[0]["title"],
        "values": [values[name] for name in names],
        "answers": [_answer(pair) for pair in pairs],
    }


def _least(interval: Sequence[float], pair: Mapping[str, Any]) -> str:
    """The least value on the orbit, as well as it is known, and of which matrix."""
    low, high = (format_value(end, 1e-2 * abs(end)) for end in interval)
    known = low if low == high else f"{low} to {high}"
    if interval[0] <= 0:  # nothing is known from below
        known = f"≤ {high}"
    matrix = f" {MATRICES[pair['matrix']]}" if pair.get("matrix") else ""
    return f"least {known}{matrix}{', to second order' if pair.get('order') else ''}"


def _answer(pair: Mapping[str, Any]) -> Words:
    turned = ""
    if pair["turned"] == "reached":
        value = format_value(pair["turned_value"], 0.1 * abs(pair["turned_value"]))
        turned = f"A twin of {pair['other']} with identical predictions has {value}."
    return {
        "kind": KINDS[pair["answer"]],
        "sign": SIGNS[pair["answer"]],
        "verdict": pair["verdict"],
        "turned": turned,
        "pair": f"{pair['sharper']} and {pair['other']}",
    }


def _cost(comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    p = comparison["provenance"]
    return [
        ("networks", str(len(comparison["names"]))),
        ("seed", str(p["seed"])),
        ("seconds", f"{p['seconds']:.1f}"),
        *p["versions"].items(),
    ]
