"""The course of a training in words: every text and number that its page shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spiritlevel.base.spoken import short_power
from spiritlevel.report.numbers import estimate_words
from spiritlevel.report.pictures import Words, course_words, said
from spiritlevel.report.plain import network_words
from spiritlevel.results.course import Change, Verdict
from spiritlevel.results.history import History, Moment, Reading
from spiritlevel.results.scales import scale

# Colour is never alone: each kind of verdict has its own sign.
KINDS = {
    Verdict.ALL: ("moves", "≠"),
    Verdict.MOST: ("moves", "≠"),
    Verdict.REVERSED: ("moves", "≠"),
    Verdict.HIDDEN: ("moves", "≠"),
    Verdict.PART: ("moves", "≠"),
    Verdict.LITTLE: ("stays", "✓"),
    Verdict.NONE: ("stays", "✓"),
    Verdict.STILL: ("still", "="),
    Verdict.UNRESOLVED: ("still", "○"),
    Verdict.UNKNOWN: ("still", "○"),
    Verdict.UNDECIDED: ("still", "○"),
}


def history_words(history: History) -> Words:
    """What the template shows of the course of a training."""
    names = [name for name in history.names if name != "loss"]
    known = [r for m in history.moments for r in m.readings]
    return {
        "headline": history.headline,
        "interrupted": history.provenance["interrupted"],
        "keys": _keys(history),
        "changes": [_change(one) for one in history.changes],
        "edge": history.sentences[max(len(history.changes), 1) :],
        "columns": [_title(history, name) for name in names],
        "rows": [_row(moment, names) for moment in history.moments],
        "stepped": any(m.name != f"step {m.step}" for m in history.moments),
        "rated": any(m.rate is not None for m in history.moments),
        "epochs": [_epoch(e) for e in history.epochs],
        "full": any(e.full is not None for e in history.epochs),
        "bottoms": any(r.least is not None for r in known),
        "invariant": any(r.invariant for r in known),
        "edged": any(m.edge_share is not None for m in history.moments),
        "drawn": len(history.moments) + len(history.epochs) > 1,
        "notes": history.remarks(),
        "cost": _cost(history),
        "data": _data(history, names),
    }


def _keys(history: History) -> list[Words]:
    """The loss, what became of the first measure here, and on the bottom."""
    keys: list[Words] = []
    losses = [(m.name, m.loss) for m in history.moments]
    losses = losses or [(f"epoch {e.number}", e.loss) for e in history.epochs]
    if losses:
        (a, first), (b, last) = losses[0], losses[-1]
        note = f"at {b}" if len(losses) == 1 else f"at {b}, from {said(first)} at {a}"
        keys.append({"label": "Loss", "number": said(last), "note": note, "kind": "still"})
    for one in history.changes[:1]:
        known = [r for _, r in history.readings(one.name)]
        keys.append(
            _key(f"{_capital(one.title)}, here", [r.estimate.value for r in known], "moves")
        )
        bottoms = [r.least.value for r in known if r.least is not None]
        keys.append(_key("On the bottom of the orbit", bottoms, "stays"))
    return keys


def _key(label: str, values: Sequence[float], kind: str) -> Words:
    note = f"at the end, from {said(values[0])}" if len(values) > 1 else ""
    return {"label": label, "number": said(values[-1]), "note": note, "kind": kind}


def _change(one: Change) -> Words:
    kind, sign = KINDS[one.verdict]
    return {"name": one.name, "text": _capital(one.text), "kind": kind, "sign": sign}


def _title(history: History, name: str) -> Words:
    found = [r for _, r in history.readings(name)]
    return {"name": name, "title": found[0].shown if found else name}


def _row(moment: Moment, names: Sequence[str]) -> Words:
    share = moment.edge_share
    return {
        "name": moment.name,
        "step": f"{moment.step:,}",
        "loss": _four(moment.loss),
        "rate": "" if moment.rate is None else _four(moment.rate),
        "share": "" if share is None else f"{share.value:.3g}",
        "readings": [_reading(moment.get(name)) for name in names],
        "notes": list(moment.notes),
    }


def _reading(reading: Reading | None) -> Words | None:
    if reading is None:
        return None
    least = None if reading.least is None else estimate_words(reading.least)
    return {**estimate_words(reading.estimate), "least": least, "invariant": reading.invariant}


def _epoch(epoch: Any) -> Words:
    return {
        "number": epoch.number,
        "step": f"{epoch.step:,}",
        "loss": _four(epoch.loss),
        "full": "" if epoch.full is None else _four(epoch.full),
        "rate": _four(epoch.rate),
        "seconds": f"{epoch.seconds:.2f}",
    }


def _data(history: History, names: Sequence[str]) -> Words:
    """What is drawn: a panel for the losses and one for each measure, over the steps."""
    losses = [m.loss for m in history.moments]
    met = [e.loss for e in history.epochs]
    known = scale([*losses, *met])
    loss = {
        "title": "loss",
        "log": known is not None and known.log,
        "here": course_words([m.step for m in history.moments], losses),
        "met": course_words([e.step for e in history.epochs], met),
        "invariant": True,
        "least": None,
        "edge": None,
    }
    steps = [m.step for m in history.moments] or [e.step for e in history.epochs]
    labels = [m.name for m in history.moments] or [f"epoch {e.number}" for e in history.epochs]
    panels = [loss, *(_panel(history, name) for name in names)]
    return {"steps": steps, "labels": labels, "panels": panels}


def _panel(history: History, name: str) -> Words:
    pairs = history.readings(name)
    bottoms = [(m.step, r.least) for m, r in pairs if r.least is not None]
    edges = [(m.step, m.edge) for m, _ in pairs if m.edge and name == "lambda_max"]
    values = [r.estimate.value for _, r in pairs]
    known = scale([*values, *(e.value for _, e in bottoms), *(edge for _, edge in edges)])
    return {
        "title": _title(history, name)["title"],
        "log": known is not None and known.log,
        "here": course_words([m.step for m, _ in pairs], values, [r.estimate for _, r in pairs]),
        "met": None,
        "invariant": any(r.invariant for _, r in pairs),
        "least": course_words(
            [step for step, _ in bottoms],
            [e.value for _, e in bottoms],
            [e for _, e in bottoms],
        )
        if bottoms
        else None,
        "edge": course_words([s for s, _ in edges], [e for _, e in edges]) if edges else None,
    }


def _four(value: float) -> str:
    return short_power(f"{value:.4g}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cost(history: History) -> list[tuple[str, str]]:
    p = history.provenance
    put_off = p.get("put_off", 0)
    return [
        *network_words(p),
        *([("optimizer", p["optimizer"])] if p["optimizer"] else []),
        *([("ended", p["stopped"])] if p["stopped"] else []),
        ("seconds", f"{p['seconds']:.1f}"),
        ("of which watching", f"{p['watched']:.1f} ({history.share:.0%})"),
        *([("looks put off", str(put_off))] if put_off else []),
        *p["versions"].items(),
    ]
