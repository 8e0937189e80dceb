"""An audit in words: every text that its page shows, ready to be put in place."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.estimate import format_value
from spiritlevel.report.numbers import estimate_words, read

Words = dict[str, Any]
NAMED = 6  # parameters of a block that are named; more are counted
FOUR_DIGITS, FIVE_DIGITS = 1e-2, 1e-3  # relative errors that format_value prints so
# Colour is never alone: each kind of verdict has its own sign.
SIGNS = {"stays": "✓", "moves": "≠", "still": "○", "broken": "✗"}


def audit_words(audit: Mapping[str, Any]) -> Words:
    """What the templates show of an audit, as texts."""
    return {
        "headline": audit["headline"],
        "keys": _keys(audit),
        "families": _families(audit["rows"]),
        "points": list(dict.fromkeys(p for row in audit["rows"] for p in row["values"])),
        "certificates": _certificates(audit["certificates"]),
        "certified": _certified(audit["certificates"]),
        "group": _group(audit["group"]),
        "provenance": audit["provenance"],
        "cost": _cost(audit["provenance"]),
    }


def _keys(audit: Mapping[str, Any]) -> list[Words]:
    """The two or three numbers that the verdict rests on."""
    keys = []
    if audit["certificates"]:
        worst = _worst(audit["certificates"])
        examples = f"{audit['provenance']['examples']:,}"
        keys.append(
            {
                "label": "Largest change of any prediction",
                "number": _change(worst),
                "note": ("identical bit for bit" if worst == 0 else "of the largest prediction")
                + f", on {examples} examples and on random inputs",
                "kind": "broken" if _certified(audit["certificates"]) == "refuted" else "stays",
            }
        )
        keys.append(_furthest([row for row in audit["rows"] if row["moved"]]))
    least = _least_of_all(audit["rows"])
    return [*keys, least] if least else keys


def _furthest(moved: Sequence[Mapping[str, Any]]) -> Words:
    label = "Largest factor a measure moved"
    if not moved:
        return {"label": label, "number": "1", "note": "none moved here", "kind": "stays"}
    row = max(moved, key=lambda row: row["factor"])
    number = f"×\u2009{_factor(row['factor'])}"
    return {"label": label, "number": number, "note": f"the {row['title']}", "kind": "moves"}


def _least_of_all(rows: Sequence[Mapping[str, Any]]) -> Words | None:
    """The least spectral norm on the orbit, or else the first least value that is known."""
    known = [row for row in rows if row["infimum"] is not None]
    if not known:
        return None
    row = next((row for row in known if row["name"] == "orbit_spectral"), known[0])
    least = _least(row["infimum"])
    bound = f": nothing on the orbit is below {least['bound']}" if least["bound"] else ""
    sharpness = row["name"] == "orbit_spectral"
    return {
        "label": "Sharpness that is left" if sharpness else f"Least {row['title']} on the orbit",
        "number": least["value"],
        "note": f"{least['mark']}{bound}",
        "kind": "least",
    }


def _families(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Words]]]:
    """The rows by family, families in the order in which they first come."""
    families: dict[str, list[Words]] = {}
    for row in rows:
        families.setdefault(row["family"], []).append(_row(row))
    return list(families.items())


def _kind(row: Mapping[str, Any]) -> str:
    if row["verdict"].endswith("a bug"):
        return "broken"
    if row["promised"]:
        return "stays"
    return "moves" if row["moved"] else "still"


def _row(row: Mapping[str, Any]) -> Words:
    kind = _kind(row)
    return {
        "title": row["title"],
        "name": row["name"],
        "here": estimate_words(row["here"]),
        "least": _least(row["infimum"]) if row["infimum"] and kind == "moves" else None,
        "largest": _value(row["largest"], FOUR_DIGITS) if kind == "moves" else "",
        "kind": kind,
        "sign": SIGNS[kind],
        # the certificate above the table says so for all rows
        "verdict": row["verdict"].removesuffix(" with identical predictions"),
        "values": {point: _short(estimate) for point, estimate in row["values"].items()},
    }


def _short(data: Mapping[str, Any]) -> str:
    estimate = read(data)
    return format_value(estimate.value, max(estimate.error, FOUR_DIGITS * abs(estimate.value)))


def _least(infimum: Mapping[str, Any]) -> Words:
    bound = infimum["lower_bound"]
    return {
        "value": _value(infimum["value"], FIVE_DIGITS),
        "bound": "" if bound is None else _rounded_down(bound),
        "proved": infimum["proved"],
        "mark": "proved" if infimum["proved"] else "found",
    }


def _value(value: float, relative: float) -> str:
    if value == 0 or math.isinf(value):
        return "0" if value == 0 else "∞" if value > 0 else "-∞"
    return format_value(value, relative * abs(value))


def _rounded_down(bound: float) -> str:
    """Five digits, never more than the bound: rounded up, it would be none."""
    context = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
    return format(context.create_decimal(f"{bound!r}"), "g") if bound else "0"


def _factor(factor: float) -> str:
    return "∞" if factor == math.inf else f"{factor:.3g}"


def _change(change: float) -> str:
    return f"{change:.0e}" if change else "0"


def _worst(certificates: Mapping[str, Mapping[str, Any]]) -> float:
    return max(certificate["relative"] for certificate in certificates.values())


def _certificates(certificates: Mapping[str, Mapping[str, Any]]) -> list[Words]:
    return [
        {
            "point": point,
            "verdict": certificate["verdict"],
            "sign": SIGNS["broken" if certificate["verdict"] == "refuted" else "stays"],
            "relative": _change(certificate["relative"]),
            "absolute": _change(certificate["absolute"]),
        }
        for point, certificate in certificates.items()
    ]


def _certified(certificates: Mapping[str, Mapping[str, Any]]) -> str:
    """The weakest verdict of all points."""
    order = ("exact", "approximate", "refuted")
    return max((c["verdict"] for c in certificates.values()), key=order.index, default="")


def _group(group: Mapping[str, Any]) -> Words:
    return {
        "freedom": _freedom(group["dim"]),
        "kinds": [(kind, f"{count:,}") for kind, count in group["kinds"].items()],
        "blocked": [(block["by"], _some(block["parameters"])) for block in group["blocked"]],
    }


def _freedom(dim: int) -> str:
    if dim == 0:
        return "No rescaling of the parameters keeps the predictions."
    many = f"{dim:,} independent rescalings" if dim > 1 else "One rescaling"
    return f"{many} of the parameters {'change' if dim > 1 else 'changes'} no prediction."


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _cost(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    p = provenance
    return [
        ("parameters", f"{p['parameters']:,}"),
        ("examples", f"{p['examples']:,}"),
        ("precision", f"{p['dtype']} on {p['device']}"),
        ("seed", str(p["seed"])),
        ("strength of the random move", f"{p['strength']:g}"),
        ("products", f"{p['products']:,.0f}"),
        ("seconds", f"{p['seconds']:.1f}"),
        *p["versions"].items(),
    ]
