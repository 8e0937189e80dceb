"""How far a study has come, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spiritlevel.base.spoken import duration
from spiritlevel.studies.claims import held, owners
from spiritlevel.studies.messages import FAILED, REFUSED

if TYPE_CHECKING:
    from spiritlevel.studies.store import Store
    from spiritlevel.studies.study import Study

SHOWN = 5  # reasons that the text lists


@dataclass(frozen=True)
class Failure:
    """A run that failed, and of what."""

    key: str
    config: dict[str, Any]
    seed: int
    reason: str


@dataclass(frozen=True)
class Claim:
    """A driver, and how many runs it has claimed."""

    host: str
    pid: int
    runs: int
    alive: bool


@dataclass(frozen=True)
class Standing:
    """What is planned, done and failed; measures missing and refused, by label; who is at it.

    `seconds` is the time that workers took; `left` is what it will take at this pace, by the runs
    that are claimed now (one if none is), None where nothing is known yet. Without its study a
    store knows neither what was planned nor what is missing.
    """

    planned: int | None
    done: int
    failed: tuple[Failure, ...]
    missing: dict[str, int]
    refused: dict[str, dict[str, int]]  # label -> reason -> how often
    claims: tuple[Claim, ...]
    seconds: float
    left: float | None

    @property
    def lost(self) -> str:
        """Of what, if all runs failed."""
        if self.done or not self.failed or len(self.failed) != self.planned:
            return ""
        first = self.failed[0]
        return (
            f"all {self.planned} runs failed, the first, {first.config} seed {first.seed}, of "
            f"{first.reason}"
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """In words."""
        planned = "" if self.planned is None else f" of {self.planned}"
        told = [f"{self.done}{planned} runs done, {len(self.failed)} failed"]
        told += [f"  {f.config} seed {f.seed}: {f.reason}" for f in self.failed[:SHOWN]]
        told += [f"  and {len(self.failed) - SHOWN} more"] if len(self.failed) > SHOWN else []
        told += [f"{label}: missing of {n} runs" for label, n in self.missing.items()]
        for label, reasons in self.refused.items():
            told += [f"{label}: refused for {sum(reasons.values())} runs: {next(iter(reasons))}"]
        told += [
            f"{c.runs} runs claimed by process {c.pid} on {c.host.partition('#')[0]}"
            + ("" if c.alive else ", which is gone")
            for c in self.claims
        ]
        left = f", about {duration(self.left)} left" if self.left else ""
        told += [] if planned else ["how many were planned is known with the study only"]
        return [*told, f"{duration(self.seconds)} spent{left}"]


def standing(store: Store, study: Study | None) -> Standing:
    """Of the plan of a study; without one, of all that the store holds."""
    query = store.database.connection.execute
    rows = {
        row[0]: row
        for row in query("SELECT key, config, seed, state, error, seconds FROM runs").fetchall()
    }
    keys = list(rows) if study is None else [run.key for run in study.runs()]
    known = [rows[key] for key in keys if key in rows]
    done = [row[0] for row in known if row[3] == "done"]
    failures = [Failure(r[0], json.loads(r[1]), r[2], r[4]) for r in known if r[3] == "failed"]
    missing = {} if study is None else _missing(store, study, done)
    spent, left = _times(store, known, len(keys), missing)
    return Standing(
        planned=None if study is None else len(keys),
        done=len(done),
        failed=tuple(failures),
        missing=missing,
        refused=_refused(store, set(done), study),
        claims=_claims(store),
        seconds=spent,
        left=None if study is None else left,
    )


def _missing(store: Store, study: Study, done: list[str]) -> dict[str, int]:
    query = "SELECT DISTINCT run, definition FROM measures"
    there = set(store.database.connection.execute(query).fetchall())
    counts = {
        label: sum((key, one.definition) not in there for key in done)
        for label, one in study.wanted.items()
    }
    return {label: n for label, n in counts.items() if n}


def _refused(store: Store, done: set[str], study: Study | None) -> dict[str, dict[str, int]]:
    wanted = None if study is None else {one.definition for one in study.wanted.values()}
    found: dict[str, dict[str, int]] = {}
    query = "SELECT run, label, definition, remedy FROM measures WHERE status IN (?, ?)"
    for run, label, definition, why in store.database.connection.execute(query, [FAILED, REFUSED]):
        if run in done and (wanted is None or definition in wanted):
            reasons = found.setdefault(label, {})
            reasons[why] = reasons.get(why, 0) + 1
    return found


def _claims(store: Store) -> tuple[Claim, ...]:
    runs, known = list(held(store.database.connection).values()), owners(store.database.connection)
    return tuple(Claim(one.host, one.pid, runs.count(one.id), one.alive) for one in known.values())


def _times(
    store: Store, known: list[Any], planned: int, missing: dict[str, int]
) -> tuple[float, float | None]:
    """Seconds spent, and those left: runs and measures at their mean so far."""
    keys = {row[0] for row in known}
    query = "SELECT run, label, seconds FROM measures"
    took = [row for row in store.database.connection.execute(query) if row[0] in keys]
    spent = sum(row[5] or 0.0 for row in known) + sum(row[2] for row in took)
    todo = planned - len(known)
    if not known or not (todo or missing):
        return spent, 0.0 if known else None
    by_label: dict[str, list[float]] = {}
    for _, label, seconds in took:
        by_label.setdefault(label, []).append(seconds)
    means = {label: sum(each) / len(each) for label, each in by_label.items()}
    left = todo * spent / len(known) + sum(n * means.get(k, 0.0) for k, n in missing.items())
    busy = sum(claim.runs for claim in _claims(store) if claim.alive)
    return spent, left / max(busy, 1)
