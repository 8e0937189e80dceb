"""What the scatter plots of a study draw: every network once, in few bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spiritlevel.report.pictures import Words
from spiritlevel.results.ranking import Line, configurations
from spiritlevel.results.scales import scale
from spiritlevel.results.study import Findings, Network, Row

COLOURS = 7  # of the marks: more values of an axis share them in groups
SEEN = 2e-3  # relative: a smaller error is no wider than a mark


def scatter_data(findings: Findings, lines: Sequence[Line]) -> Words:
    """Measures, outcome and configuration of every network, and which measures go side by side."""
    made = findings.networks
    places = {row.name: place for place, row in enumerate(findings.rows)}
    return {
        "outcome": _column(
            findings.outcome.replace("_", " "), [n.numbers.get(findings.outcome) for n in made]
        ),
        "axes": [_axis(name, values, made) for name, values in findings.axes.items()],
        "configurations": configurations(made),
        "seeds": [network.seed for network in made],
        "measures": [_measure(row, made) for row in findings.rows],
        "lines": [[places[row.name] for row in line if row is not None] for line in lines],
    }


def _column(name: str, values: Sequence[float | None]) -> Words:
    known = scale(values)
    log = known is not None and known.log
    return {"name": name, "values": [five(v) for v in values], "log": log}


def _measure(row: Row, made: Sequence[Network]) -> Words:
    values = [network.values.get(row.name) for network in made]
    errors = [network.errors.get(row.name) for network in made]
    wide = [_seen(v, e) for v, e in zip(values, errors, strict=True)]
    column = _column(row.title, values)
    tau = row.tau
    told = {"label": row.name, "tau": [five(v) for v in (tau.value, tau.low, tau.high)]}
    return {**column, **told, "invariant": row.invariant, "errors": wide if any(wide) else []}


def _seen(value: float | None, error: float | None) -> float | int:
    """Two digits of an error that can be seen; else 0."""
    if value is None or error is None or not math.isfinite(error):
        return 0
    return _short(float(f"{error:.1e}")) if error > SEEN * abs(value) else 0


def five(value: float | None) -> float | int | None:
    """Five significant digits; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return _short(float(f"{value:.4e}"))


def _short(value: float) -> float | int:
    """12 and not 12.0, which is one number in JSON."""
    return int(value) if value == int(value) and abs(value) < 1e6 else value


def value_words(value: Any) -> str:
    """A value of an axis: six digits tell those of a grid apart."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _axis(name: str, values: Sequence[Any], made: Sequence[Network]) -> Words:
    """The values of an axis, where each network has its own, and which share a colour."""
    known = list(values)
    at = [known.index(n.config[name]) if n.config.get(name) in known else None for n in made]
    groups, labels = _groups(known)
    return {
        "name": name.replace("_", " "),
        "values": [value_words(value) for value in known],
        "at": at,
        "groups": groups,
        "labels": labels,
    }


def _groups(values: Sequence[Any]) -> tuple[list[int], list[str]]:
    """A group for each value; more values than there are colours share them in their order."""
    many = len(values)
    if many <= COLOURS:
        return list(range(many)), [value_words(value) for value in values]
    groups = [place * COLOURS // many for place in range(many)]
    members: list[list[str]] = [[] for _ in range(COLOURS)]
    for value, group in zip(values, groups, strict=True):
        members[group].append(value_words(value))
    joined = [one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in members]
    return groups, joined
