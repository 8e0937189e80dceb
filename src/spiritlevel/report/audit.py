"""An audit in words: every text that its page shows, ready to be put in place."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.base.estimate import Estimate, Status, format_value
from spiritlevel.base.matrices import CALLED
from spiritlevel.base.spoken import at_most, digits, short_power
from spiritlevel.report.numbers import estimate_words
from spiritlevel.report.plain import network_words
from spiritlevel.results.audit import Audit, Head, OfAudit, Row
from spiritlevel.results.certificate import VERDICTS, Certificate
from spiritlevel.results.data import SPECIAL, plain
from spiritlevel.results.provenance import remarks
from spiritlevel.results.rest import Rest
from spiritlevel.results.symmetry import Freedom, Left
from spiritlevel.results.verdicts import Outcome

Words = dict[str, Any]
NAMED = 6  # parameters of a block that are named; more are counted
FOUR_DIGITS, FIVE_DIGITS = 1e-2, 1e-3  # relative errors that format_value prints so
# Colour is never alone: each kind of verdict has its own sign.
SIGNS = {"stays": "✓", "moves": "≠", "still": "○", "broken": "✗"}
KINDS = {
    Outcome.INVARIANT: "stays",
    Outcome.PROMISED: "stays",
    Outcome.NEARLY: "stays",
    Outcome.VAGUE: "still",
    Outcome.STILL: "still",
    Outcome.MOVED: "moves",
    Outcome.UNITS: "moves",
    Outcome.TURNED: "moves",
    Outcome.OVERFLOW: "moves",
    Outcome.BROKEN: "broken",
    Outcome.LAYERS_BROKEN: "broken",
    Outcome.REFUTED: "broken",
}


def audit_words(audit: Audit) -> Words:
    """What the templates show of an audit, as texts."""
    return {
        "headline": audit.headline,
        "rest": _rest(audit.rest),
        "keys": _keys(audit),
        "families": _families(audit.rows),
        "points": list(dict.fromkeys(p for row in audit.rows for p in row.values)),
        "certificates": _certificates(audit.certificates),
        "certified": _certified(audit.certificates),
        "inputs": audit.inputs,
        "group": _group(audit.group, audit.left),
        "provenance": audit.provenance,
        "notes": remarks(audit.provenance),
        "cost": _cost(audit.provenance),
        "way": _finite(plain(audit.way)),
    }


def _finite(data: Any) -> Any:
    """Plain data with null for what is no number: the figure leaves it out."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, str) and data in SPECIAL else data


def _keys(audit: Audit) -> list[Words]:
    """The numbers that the verdict rests on."""
    keys = []
    if audit.certificates:
        same = "identical bit for bit" if audit.worst == 0 else "of the largest prediction"
        examples = f"{audit.provenance['examples']:,}"
        keys.append(
            {
                "label": "Largest change of any prediction",
                "number": _change(audit.worst),
                "note": f"{same}, on {examples} examples and on {audit.inputs}",
                "kind": "broken" if _certified(audit.certificates) == "refuted" else "stays",
            }
        )
    if audit.head:
        keys.append(_as_trained(audit.head))
    proved = _proved(audit.rows)
    return [*keys, proved] if proved else keys


def _rest(rest: Rest | None) -> Words | None:
    """Whether the point is a minimum, which every number of the page rests on."""
    return {"text": rest.text, "calm": rest.calm} if rest else None


def _as_trained(head: Head) -> Words:
    note = ("" if head.proved else "at most ") + f"{head.most} with the rescalings taken away"
    return {
        "label": f"{_capital(head.title)} of the {CALLED[head.matrix]}, as trained",
        "number": digits(head.here),
        "note": "no least value was searched for" if head.unsearched else note,
        "kind": "moves",
    }


def _proved(rows: Sequence[Row]) -> Words | None:
    """The last least value that is proved, with its matrix: norms come after traces."""
    known = [row for row in rows if row.infimum.proved]
    if not known:
        return None
    row = next((row for row in reversed(known) if row.promised), known[0])
    least = _least(row)
    bound = f": nothing on the orbit is below {least['bound']}" if least["bound"] else ""
    matrix = f"{least['matrix']}, " if least["matrix"] else ""
    return {
        "label": _capital(row.title if row.promised else f"least {row.title}"),
        "number": least["value"],
        "note": f"{matrix}{least['mark']}{bound}",
        "kind": "least",
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _families(rows: Sequence[Row]) -> list[tuple[str, list[Words]]]:
    """The rows by family, families in the order in which they first come."""
    families: dict[str, list[Words]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(_row(row))
    return list(families.items())


def _row(row: Row) -> Words:
    kind = KINDS[row.outcome]
    return {
        "title": row.title,
        "name": row.name,
        "here": estimate_words(row.here),
        "least": _least(row) if kind == "moves" and not row.infimum.unsearched else None,
        "largest": _value(row.largest, FOUR_DIGITS) if kind == "moves" else "",
        "kind": kind,
        "sign": SIGNS[kind],
        "verdict": row.sentence,  # the certificate says for all rows how equal predictions are
        "values": {point: _short(estimate) for point, estimate in row.values.items()},
    }


def _short(estimate: Estimate) -> str:
    return format_value(estimate.value, max(estimate.error, FOUR_DIGITS * abs(estimate.value)))


def _least(row: Row) -> Words:
    infimum, bound = row.infimum, row.infimum.lower_bound
    value = _value(infimum.value, FIVE_DIGITS)
    if not infimum.proved:  # the least of some searched maxima bounds nothing
        searched = row.here.status is Status.LOWER_BOUND
        value = f"~ {value}" if searched else f"≤ {at_most(row.least, 5)}"
    return {
        "value": value,
        "bound": "" if bound is None else _rounded_down(bound),
        "proved": infimum.proved,
        "matrix": f"of the {CALLED[infimum.matrix]}" if infimum.matrix else "",
        "mark": "proved" if infimum.proved else "found",
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


def _certificates(certificates: Mapping[str, Certificate]) -> list[Words]:
    return [
        {
            "point": point,
            "verdict": certificate.verdict,
            "sign": SIGNS["broken" if certificate.verdict == "refuted" else "stays"],
            "relative": _change(certificate.relative),
            "absolute": _change(certificate.absolute),
        }
        for point, certificate in certificates.items()
    ]


def _certified(certificates: Mapping[str, Certificate]) -> str:
    """The weakest verdict of all points."""
    return max((c.verdict for c in certificates.values()), key=VERDICTS.index, default="")


def _group(group: Freedom, left: Sequence[Left]) -> Words:
    return {
        "left": [_capital(one.text) for one in left],
        "freedom": _freedom(group.dim),
        "kinds": [(kind, f"{count:,}") for kind, count in group.kinds.items()],
        "blocked": [(block.by, _some(block.parameters)) for block in group.blocked],
    }


def _freedom(dim: int) -> str:
    if dim == 0:
        return "No rescaling of the parameters keeps the predictions."
    many = f"{dim:,} independent rescalings" if dim > 1 else "One rescaling"
    return f"{many} of the parameters {'change' if dim > 1 else 'changes'} no prediction."


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _cost(provenance: OfAudit) -> list[tuple[str, str]]:
    p = provenance
    return [
        *network_words(p),
        ("strength of the random move", f"{p['strength']:g}"),
        ("products", f"{p['products']:,.0f}"),
        ("seconds", f"{p['seconds']:.1f}"),
        *p["versions"].items(),
    ]
