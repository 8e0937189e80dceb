"""An audit in words: every text that its page shows, ready to be put in place."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.base.estimate import format_value
from spiritlevel.base.spoken import digits, short_power
from spiritlevel.report.numbers import estimate_words, read

Words = dict[str, Any]
NAMED = 6  # parameters of a block that are named; more are counted
FOUR_DIGITS, FIVE_DIGITS = 1e-2, 1e-3  # relative errors that format_value prints so
# Colour is never alone: each kind of verdict has its own sign.
SIGNS = {"stays": "✓", "moves": "≠", "still": "○", "broken": "✗"}
KINDS = {
    "invariant": "stays",
    "promised": "stays",
    "nearly invariant": "stays",
    "too uncertain": "still",
    "did not move": "still",
    "moved": "moves",
    "moved by units": "moves",
    "changed sign": "moves",
    "overflows": "moves",
    "broke its promise": "broken",
    "broke its promise for layers": "broken",
    "below its bound": "broken",
}
MATRICES = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix"}
CALM = ("close to a minimum", "flat")


def audit_words(audit: Mapping[str, Any]) -> Words:
    """What the templates show of an audit, as texts."""
    return {
        "headline": audit["headline"],
        "rest": _rest(audit["rest"]),
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
    """The numbers that the verdict rests on."""
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
    if audit["head"]:
        keys.append(_as_trained(audit["head"]))
    proved = _proved(audit["rows"])
    return [*keys, proved] if proved else keys


def _rest(rest: Mapping[str, Any] | None) -> Words | None:
    """Whether the point is a minimum, which every number of the page rests on."""
    return {"text": rest["text"], "calm": rest["standing"] in CALM} if rest else None


def _as_trained(head: Mapping[str, Any]) -> Words:
    least, title = digits(head["least"]), head["title"]
    return {
        "label": f"{title[:1].upper()}{title[1:]} of the {MATRICES[head['matrix']]}, as trained",
        "number": digits(head["here"]),
        "note": ("" if head["proved"] else "at most ") + f"{least} with the rescalings taken away",
        "kind": "moves",
    }


def _proved(rows: Sequence[Mapping[str, Any]]) -> Words | None:
    """The last least value that is proved, with its matrix: norms come after traces."""
    known = [row for row in rows if row["infimum"] and row["infimum"]["proved"]]
    if not known:
        return None
    row = next((row for row in reversed(known) if row["promised"]), known[0])
    least = _least(row["infimum"])
    label = row["title"] if row["promised"] else f"least {row['title']}"
    bound = f": nothing on the orbit is below {least['bound']}" if least["bound"] else ""
    matrix = f"{least['matrix']}, " if least["matrix"] else ""
    return {
        "label": f"{label[:1].upper()}{label[1:]}",
        "number": least["value"],
        "note": f"{matrix}{least['mark']}{bound}",
        "kind": "least",
    }


def _families(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Words]]]:
    """The rows by family, families in the order in which they first come."""
    families: dict[str, list[Words]] = {}
    for row in rows:
        families.setdefault(row["family"], []).append(_row(row))
    return list(families.items())


def _row(row: Mapping[str, Any]) -> Words:
    kind = KINDS[row["outcome"]]
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
        "matrix": f"of the {MATRICES[infimum['matrix']]}" if infimum["matrix"] else "",
        "mark": "proved" if infimum["proved"] else "found",
    }


def _value(value: float, relative: float) -> str:
    if value == 0 or math.isinf(value):
        return "0" if value == 0 else "∞" if value > 0 else "-∞"
    return short_power(format_value(value, relative * abs(value)))


def _rounded_down(bound: float) -> str:
    """Five digits, never more than the bound: rounded up, it would be none."""
    context = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
    return short_power(format(context.create_decimal(f"{bound!r}"), "g")) if bound else "0"


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
