"""What a study has computed, in one file: runs, measures, and who is at work."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.results.data import SPECIAL, plain
from spiritlevel.results.history import History
from spiritlevel.results.study import Network
from spiritlevel.studies import exports
from spiritlevel.studies.database import Database, explained
from spiritlevel.studies.definition import canonical
from spiritlevel.studies.messages import FAILED, REFUSED, Ask, Finished, Measured, Run, Task
from spiritlevel.studies.standing import Standing, standing

if TYPE_CHECKING:
    from spiritlevel.studies.study import Job, Study

WIDTHS = ("value", "stderr", "residual", "bound", "matvecs")
# Only a row that is there already is left alone: OR IGNORE would drop one that is wrong, unsaid.
RUN = "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
MEASURE = "INSERT INTO measures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
LONGEST = 255 - len(".weights")  # bytes of a name, to which others beside it add


class Store:
    """Runs and their measures, each written when it is done and synced to the disk.

    A file that is no store is refused. One that cannot be written is read: its networks, its status
    and its exports are there, and a study that would go on says that it cannot.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        if create:
            _refuse_long(path)
        self.database, self.closed = Database(path, create=create), False

    @property
    def path(self) -> Path:
        return self.database.path

    @property
    def weights(self) -> Path:
        """The folder of the weights that studies keep."""
        return self.path.with_name(self.path.name + ".weights")

    def close(self) -> None:
        self.closed = True
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    # What is in it -----------------------------------------------------------------------------

    def networks(self, study: Study | None = None) -> list[Network]:
        """The runs that are done, in the order of the plan; without a study all, by configuration.

        Of a measure that was taken twice, under other settings, a study sees its own, and without
        one the last is seen.
        """
        _refuse_other(study)
        wanted = None if study is None else {one.definition for one in study.wanted.values()}
        values: dict[str, dict[str, Estimate]] = {}
        for run, label, definition, *rest in self._rows(
            "SELECT run, label, definition, value, stderr, residual, bound, status FROM measures "
            "ORDER BY rowid"
        ):
            if wanted is None or definition in wanted:
                values.setdefault(run, {})[label] = _estimate(*rest)
        rows = self._rows("SELECT key, config, seed, numbers FROM runs WHERE state = 'done'")
        found = {
            key: _network(key, config, seed, numbers, values.get(key, {}))
            for key, config, seed, numbers in rows
        }
        if study is None:
            return sorted(found.values(), key=lambda one: (canonical(one.config), one.seed))
        return [_in_order(found[r.key], study) for r in study.runs() if r.key in found]

    def refuse_mixtures(self) -> None:
        """Runs, or values of a measure, of code that was changed since are no one's table."""
        query = "SELECT count(*) FROM runs WHERE state = 'done' GROUP BY definition ORDER BY rowid"
        counts = [str(row[0]) for row in self._rows(query)]
        if len(counts) > 1:
            raise SpiritlevelError(
                f"store={str(self.path)!r} holds the networks of {len(counts)} trainings "
                f"({', '.join(counts[:-1])} and {counts[-1]}): another study, or another version "
                "of its code; name the study's file, which says what belongs together"
            )
        self._refuse_mixed_values()

    def _refuse_mixed_values(self) -> None:
        """Of each measure the last value of a network is seen: all of one definition, or none."""
        done = {row[0] for row in self._rows("SELECT key FROM runs WHERE state = 'done'")}
        query = "SELECT run, label, definition FROM measures ORDER BY rowid"
        last = {(run, label): one for run, label, one in self._rows(query) if run in done}
        first: dict[str, str] = {}
        for (_, label), one in last.items():
            if first.setdefault(label, one) != one:
                raise SpiritlevelError(
                    f"store={str(self.path)!r} holds {label!r} of some networks as it was taken "
                    "under other settings or by other code than of the rest: name the study's "
                    "file, which says what belongs together"
                )

    def history(self, key: str) -> History | None:
        """The course of one training, where it was handed over."""
        doors.a("key", key, str, "the key of a network")
        rows = self._rows("SELECT history FROM runs WHERE key = ?", key)
        if not rows:
            raise SpiritlevelError(f"key={key!r}: no run has it; networks() says which there are")
        return History.from_dict(json.loads(rows[0][0])) if rows[0][0] else None

    def status(self, study: Study | None = None) -> Standing:
        """What is done, what failed and why, what is missing, who is at it, and the time left."""
        _refuse_other(study)
        with self._reading():
            return standing(self, study)

    def to_csv(self, path: str | os.PathLike[str], study: Study | None = None) -> None:
        """One line a network; `read_csv` reads it."""
        exports.to_csv(self.networks(study), path)

    def to_parquet(self, path: str | os.PathLike[str], study: Study | None = None) -> None:
        """The same columns as Parquet; needs pyarrow."""
        exports.to_parquet(self.networks(study), path)

    def to_dataframe(self, study: Study | None = None) -> Any:
        """The same columns as a DataFrame; needs pandas."""
        return exports.to_dataframe(self.networks(study))

    # What a driver reads -----------------------------------------------------------------------

    def counts(self, study: Study) -> tuple[int, int]:
        """How many runs of the plan are done, and how many failed."""
        states = dict(self._rows("SELECT key, state FROM runs"))
        found = [states.get(run.key) for run in study.runs()]
        return found.count("done"), found.count("failed")

    def task(self, study: Study, job: Job) -> Task:
        """What is missing of a job, with all runs that are trained together; empty if nothing."""
        found = tuple(self._ask(study, run) for run in job)
        return found if any(ask.missing or ask.labels for ask in found) else ()

    def _ask(self, study: Study, run: Run) -> Ask:
        rows = self._rows("SELECT state, numbers FROM runs WHERE key = ?", run.key)
        state, numbers = rows[0] if rows else ("", None)
        if state == "failed":
            return Ask(run, False)
        there = self._rows("SELECT DISTINCT definition FROM measures WHERE run = ?", run.key)
        known = {row[0] for row in there}
        labels = [label for label, one in study.wanted.items() if one.definition not in known]
        return Ask(run, not state, tuple(labels), _numbers(numbers) if numbers else None)

    def with_weights(self, study: Study, task: Task) -> Task:
        """For networks that are measured anew: read when a task is sent, since they are large."""
        if study.objective is None or any(ask.missing for ask in task):
            return task
        return tuple(replace(ask, weights=self._held(ask.run)) for ask in task)

    def _held(self, run: Run) -> bytes | None:
        rows = self._rows("SELECT weights FROM runs WHERE key = ?", run.key)
        if not rows or not rows[0][0]:
            return None
        try:
            return (self.weights / rows[0][0]).read_bytes()
        except OSError:  # deleted, to have room: the training is repeated
            return None

    def _rows(self, query: str, *given: Any) -> list[tuple[Any, ...]]:
        with self._reading():
            return self.database.connection.execute(query, given).fetchall()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        if self.closed:
            raise SpiritlevelError(
                f"store={str(self.path)!r} is closed: open it again by Store(path), or ask inside "
                "of its with"
            )
        with explained(self.path):
            yield

    # What a driver writes, inside database.writing() -------------------------------------------

    def add_run(self, study: Study, done: Finished) -> bool:
        """Whether it is new: what is there already stays."""
        numbers = None if done.numbers is None else canonical(plain(dict(done.numbers)))
        row = [
            *(done.run.key, canonical(done.run.config), done.run.seed, study.definition),
            *("failed" if done.error else "done", done.error, numbers, done.history),
            *(done.seconds, _file(done) if done.weights else None, done.host, time.time()),
        ]
        return self.database.connection.execute(RUN, row).rowcount == 1

    def add_measure(self, study: Study, done: Measured) -> None:
        """All parts of it."""
        definition = study.wanted[done.label].definition
        for label, one in done.rows.items():
            status = (FAILED if done.failed else REFUSED) if done.refusal else one.status.value
            value, stderr, residual, bound, matvecs = (_kept(getattr(one, w)) for w in WIDTHS)
            remedy = done.refusal or one.remedy
            row = [done.key, label, definition, value, stderr, residual, bound, status, remedy]
            self.database.connection.execute(MEASURE, [*row, matvecs, one.seconds])

    def keep_weights(self, done: Iterable[Finished]) -> None:
        """Files that are whole or not there; before the rows that name them."""
        with explained(self.path):
            for one in done:
                if one.weights is not None:
                    _write_whole(self.weights, _file(one), one.weights)

    def forget_failures(self, keys: Iterable[str]) -> None:
        """So that they are tried again: runs, and measures that failed by an error."""
        rows = [[key] for key in keys]
        with self.database.writing() as connection:
            connection.executemany("DELETE FROM runs WHERE state = 'failed' AND key = ?", rows)
            query = f"DELETE FROM measures WHERE status = '{FAILED}' AND run = ?"
            connection.executemany(query, rows)


def _refuse_other(study: Any) -> None:
    from spiritlevel.studies.study import Study  # which a table alone does not need

    doors.a("study", study, (Study, type(None)), "the Study, or nothing for all runs")


def _refuse_long(path: Any) -> None:
    """Of a new store: its log and the folder of its weights have names that are longer still."""
    given = Path(path) if isinstance(path, (str, os.PathLike)) else Path()
    size = len(os.fsencode(given.name))
    if size > LONGEST and (size > 255 or not given.exists()):
        raise SpiritlevelError(
            f"store is a name of {size} bytes: give one of at most {LONGEST}, since files beside "
            "it have longer ones"
        )


def _file(done: Finished) -> str:
    return f"{done.run.key}.safetensors"


def _write_whole(folder: Path, name: str, held: bytes) -> None:
    """On the disk under another name first: a kill or a power cut leaves no half of it."""
    folder.mkdir(exist_ok=True)
    part = folder / f"{name}.part"
    with part.open("wb") as file:
        file.write(held)
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / name)
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _kept(value: float | None) -> float | str | None:
    """SQLite has no NaN, and knows no numbers but Python's own."""
    if value is None or type(value) is int:
        return value
    return "NaN" if math.isnan(value) else float(value)


def _read(value: Any) -> Any:
    return SPECIAL[value] if isinstance(value, str) else value


def _numbers(text: str) -> dict[str, float]:
    return {name: float(_read(value)) for name, value in json.loads(text).items()}


def _estimate(value: Any, stderr: Any, residual: Any, bound: Any, status: str) -> Estimate:
    if status in (FAILED, REFUSED):
        return Estimate(math.nan, stderr=math.nan)
    widths = {"stderr": _read(stderr), "residual": _read(residual), "bound": _read(bound)}
    return Estimate(_read(value), **widths, status=Status(status))


def _network(
    key: str, config: str, seed: int, numbers: str, found: Mapping[str, Estimate]
) -> Network:
    return Network(
        key=key,
        config=json.loads(config),
        seed=seed,
        numbers=_numbers(numbers),
        values={label: float(one.value) for label, one in found.items()},
        errors={label: float(one.error) for label, one in found.items()},
    )


def _in_order(network: Network, study: Study) -> Network:
    """Axes and measures in the order of the study, not in that in which they were written."""
    places = {label: place for place, label in enumerate(study.wanted)}

    def place(label: str) -> tuple[int, str]:
        whole = label if label in places else label.rpartition(".")[0]
        return places.get(whole, len(places)), label

    labels = sorted(network.values, key=place)
    axes = dict.fromkeys(name for config in study.configurations for name in config)
    return Network(
        network.key,
        {name: network.config[name] for name in axes if name in network.config},
        network.seed,
        network.numbers,
        {label: network.values[label] for label in labels},
        {label: network.errors[label] for label in labels},
    )
