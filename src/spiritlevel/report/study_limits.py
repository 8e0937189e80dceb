"""What a study does not say, from its own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spiritlevel.report.study_data import value_words
from spiritlevel.results.ranking import configurations, known
from spiritlevel.results.study import Findings, Network

FEW = 5  # seeds: with fewer of them the noise of an outcome is hardly known


def limits(findings: Findings) -> list[str]:
    """Sentences, each only where the data give reason for it."""
    found = [_orders(findings), _grid(findings), _still(findings), _many(findings)]
    found += [_turned(findings), _seeds(findings.networks), _lost(findings), _missing(findings)]
    return [sentence for sentence in found if sentence]


def _orders(findings: Findings) -> str:
    outcome = findings.outcome.replace("_", " ")
    return (
        f"A tau tells how alike two orders are. No network was changed here to see whether its "
        f"{outcome} follows: what ranks it need not cause it."
    )


def _grid(findings: Findings) -> str:
    many, there = len(set(configurations(findings.networks))), len(findings.networks)
    if not many:
        return ""
    axes = listed([axis.replace("_", " ") for axis in findings.axes])
    varied = f", which differ in {axes}" if axes else ""
    return (
        f"All of it is about {there:,} networks of {many:,} "
        f"{'configuration' if many == 1 else 'configurations'}{varied}. Intervals and p say what "
        "other draws of such configurations would give, and not what another grid, data set or "
        "kind of network would."
    )


def _still(findings: Findings) -> str:
    """Parts of the configuration that have one value."""
    seen: dict[str, list[Any]] = {}
    for network in findings.networks:
        for axis, value in network.config.items():
            values = seen.setdefault(axis, [])
            if value not in values:
                values.append(value)
    fixed = [
        f"{axis.replace('_', ' ')} ({value_words(v[0])})" for axis, v in seen.items() if len(v) == 1
    ]
    return f"Nothing is said of what did not vary: {listed(fixed)}." if fixed else ""


def _many(findings: Findings) -> str:
    rows = [row for row in findings.rows if known(row.tau)]
    if len(rows) < 2:
        return ""
    chance = 0.05 * len(rows)
    missed = "one" if chance < 0.75 else f"about {max(round(chance), 1)}"
    return (
        f"{len(rows)} measures were ranked on the same networks. The p are adjusted for that "
        f"(Holm), the intervals are not: of {len(rows)} intervals of 95 %, {missed} may miss, "
        "and the best of many looks better than it is."
    )


def _turned(findings: Findings) -> str:
    """Measures that order some environment wrongly in every pair of its seeds."""
    told = [row.signs for row in findings.rows if row.signs is not None]
    wrong = sum(signs.largest >= 1 for signs in told)
    if not wrong:
        return ""
    who = "Every measure" if wrong == len(told) else f"{wrong} of {len(told)} measures"
    does = "puts" if wrong in (1, len(told)) else "put"
    return (
        f"{who} {does} some two configurations in the wrong order in every comparison that counts: "
        "the largest sign error is 1. A good tau is no promise for two networks."
    )


def _seeds(networks: Sequence[Network]) -> str:
    """The least number of networks that a configuration has."""
    numbers = configurations(networks)
    least = min((numbers.count(number) for number in set(numbers)), default=FEW)
    if least >= FEW:
        return ""
    seeds = "one seed" if least == 1 else f"{least} seeds"
    return (
        f"Some configurations have {seeds}: how far their outcome hangs on chance is hardly known."
    )


def _lost(findings: Findings) -> str:
    failed = findings.provenance["failed"]
    if not failed:
        return ""
    were = "network failed and is" if failed == 1 else "networks failed and are"
    return (
        f"{failed:,} {were} in no number of this page. If they failed for a reason that has to do "
        "with the outcome, the ranking is of what was left."
    )


def _missing(findings: Findings) -> str:
    there = len(findings.networks)
    part = [f"{row.title} ({row.n:,})" for row in findings.rows if row.n < there]
    few = part[:4] + ([f"{len(part) - 4} others"] if len(part) > 4 else [])
    have = "does not have all networks" if len(part) == 1 else "do not have all networks"
    return f"{listed(few)} {have}: its tau is of those that have it." if part else ""


def listed(words: Sequence[str]) -> str:
    """width, rate and batch."""
    *others, last = words or [""]
    return f"{', '.join(others)} and {last}" if others else last
