"""Studies whose drivers and workers are killed at random: as a script, it prints what came out.

A process that never differentiates forks drivers and workers, so that torch is imported once;
autograd does not survive a fork.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiny
import torch
import torch._dynamo  # optimizers import it in their first step, and each child would

from spiritlevel.studies.engines import pool, worker
from spiritlevel.studies.store import Store
from spiritlevel.studies.study import Study

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"measures": ("frobenius_distance", "gradient_norm"), "seeds": 3},
    "weights": {
        "measures": ("frobenius_distance", "gradient_norm", "parameter_norm"),
        "keep_weights": True,
        "objective": tiny.objective,
    },
    "stacks": {
        "measures": ("gradient_norm", "steps_to_loss"),
        "train_many": tiny.train_many,
        "stack": 3,
    },
    "curvature": {"measures": ("layer_traces",), "grid": {"width": [2], "rate": [0.1, 0.5]}},
}


def studied(kind: str) -> Study:
    return tiny.made(**{"representative": (), "settings": {"tol": 0.1}, **KINDS[kind]})


def forked(action: Callable[[], Any]) -> int:
    """A process that does this and ends, whatever comes."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass
class Course:
    """One store whose drivers die again and again, and what was wrong with it."""

    kind: str
    folder: Path
    wrong: list[str] = field(default_factory=list)
    kept: dict[str, set[str]] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)  # key -> when it was seen
    span: float = 0.1  # seconds that a whole run takes

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.store, self.log = self.folder / "a study.db", self.folder / "log"
        self.whole = self.folder / "whole.db"
        self.study = studied(self.kind)

    def run(self, path: Path, **options: Any) -> None:
        os.environ["TINY_LOG"] = str(self.log if path == self.store else self.folder / "other")
        self.study.run(path, **options)

    def uninterrupted(self) -> None:
        begin = time.monotonic()
        assert ended(forked(lambda: self.run(self.whole))) == 0
        self.span = time.monotonic() - begin

    def look(self) -> None:
        """What was there is there, and as it was."""
        if not self.store.exists():
            self.wrong += ["the store is gone"] if self.kept else []
            return
        now = {name: set(rows) for name, rows in tiny.rows(self.store).items()}
        for name, rows in self.kept.items():
            self.wrong += [f"lost of {name}: {row}" for row in rows - now[name]]
        self.kept = now
        with Store(self.store) as store:
            [[sound]] = store.database.connection.execute("PRAGMA integrity_check").fetchall()
            self.wrong += [] if sound == "ok" else [sound]
            for job in self.study.jobs():
                task = store.task(self.study, job)
                trained = self.kind == "weights" and not any(ask.missing for ask in task)
                if trained or not task:
                    for run in job:
                        self.finished.setdefault(run.key, time.time_ns())

    def judged(self) -> None:
        """Nothing was lost, doubled, done again or done otherwise."""
        self.look()
        if tiny.rows(self.store) != tiny.rows(self.whole):
            self.wrong.append("other numbers than of the uninterrupted study")
        if weights := sorted(self.folder.glob("whole.db.weights/*.safetensors")):
            for one in weights:
                other = self.folder / "a study.db.weights" / one.name
                if one.read_bytes() != other.read_bytes():
                    self.wrong.append(f"other weights: {one.name}")
        keys = {
            f"{run.config['width']} {run.config['rate']} {run.seed}": run.key
            for run in self.study.runs()
        }
        for line in self.log.read_text().splitlines():
            name, _, when = line.rpartition(" ")
            if int(when) > self.finished[keys[name]]:
                self.wrong.append(f"done again: {line}")
        with Store(self.store) as store:
            self.wrong += [f"still at it: {c}" for c in store.status().claims if c.alive]


def dies_at(statement: int) -> None:
    """This process, when SQLite is about to do its so manieth statement."""
    left, connect = [statement], sqlite3.connect

    def count(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*args, **options)
        made.set_trace_callback(count)
        return made

    sqlite3.connect = traced  # type: ignore[assignment]


def killed(course: Course, draws: random.Random, engine: str) -> bool | None:
    """A driver that dies at a random moment or statement; None if it came to its end before."""
    by_time, statement = draws.random() < 0.5, int(2 ** draws.uniform(0, 7))

    def action() -> None:
        if not by_time:
            dies_at(statement)
        course.run(course.store, engine=pool.Pool(2) if engine == "pool" else "here")

    child = forked(action)
    if by_time:
        time.sleep(draws.uniform(0.0, course.span / 2))
        os.kill(child, signal.SIGKILL)
    code = ended(child)
    if code not in (0, -signal.SIGKILL):
        course.wrong.append(f"a driver ended with {code}")
    return None if code == 0 else by_time


def drivers(folder: Path, kills: int, seed: int, engine: str = "here") -> dict[str, Any]:
    """Drivers die until so many have; every store is finished by the one that is spared."""
    draws, died, found = random.Random(seed), [], []
    while len(died) < kills:
        kinds = list(KINDS)
        course = Course(kinds[len(found) % len(kinds)], folder / f"{len(found)}")
        course.uninterrupted()
        most = min(kills, len(died) + math.ceil(kills / len(kinds)))  # each kind has its turn
        while len(died) < most:
            how = killed(course, draws, engine)
            course.look()
            if how is None:
                break
            died.append(how)
        code = ended(forked(lambda course=course: course.run(course.store)))
        course.wrong += [] if code == 0 else [f"the last driver ended with {code}"]
        course.judged()
        found.append(course)
    return {
        "killed": len(died),
        "by time": sum(died),
        "studies": len(found),
        "wrong": [f"{c.folder.name} {c.kind}: {w}" for c in found for w in c.wrong],
    }


class Forked:
    """What the pool uses of Popen, for a process that has imported torch already."""

    pids: list[int] = []  # noqa: RUF012

    def __init__(self, command: list[str], *_: Any, env: dict[str, str], **options: Any) -> None:
        (here, give), (take, there) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                os.setsid()
                os.dup2(here, 0)
                os.dup2(there, 1)
                os.closerange(3, 256)
                os.environ.update(env)
                sys.stdin, sys.argv = os.fdopen(0), command[2:]
                worker.main()
            os._exit(1)
        self.pids.append(self.pid)
        os.close(here)
        os.close(there)
        self.stdin, self.stdout = os.fdopen(give, "wb"), os.fdopen(take, "rb")

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, _: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = ended(self.pid)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def workers(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """The workers of a pool die at random until so many have; the study is finished by others."""
    draws, died, found = random.Random(seed), 0, []
    while died < kills:
        kinds = list(KINDS)
        course = Course(kinds[len(found) % len(kinds)], folder / f"{len(found)}")
        course.uninterrupted()
        tally = folder / f"{len(found)}.died"
        code = ended(forked(lambda c=course, t=tally: _bereaved(c, draws, t)))
        died += len(tally.read_text().split())
        draws.random()  # what the children drew, they drew from a copy
        # a job whose workers died three times is a row with that error
        again = ended(forked(lambda course=course: course.run(course.store, retry=True)))
        course.wrong += [] if (code, again) == (0, 0) else [f"drivers ended with {code}, {again}"]
        course.judged()
        found.append(course)
    return {
        "killed": died,
        "studies": len(found),
        "wrong": [f"{c.folder.name} {c.kind}: {w}" for c in found for w in c.wrong],
    }


def _bereaved(course: Course, draws: random.Random, tally: Path) -> None:
    """A driver of a pool, with a thread that kills its workers."""
    engine, over = pool.Pool(2), threading.Event()

    def kill() -> None:
        while not over.wait(draws.uniform(0.0, course.span / 4)):
            ready = [one for one in engine.team if one.ready and one.process.returncode is None]
            if ready:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draws.choice(ready).process.pid, signal.SIGKILL)
                    with tally.open("a") as file:
                        file.write("1 ")

    tally.touch()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        course.run(course.store, engine=engine)
    finally:
        over.set()
        killer.join()


def together(folder: Path, times: int, seed: int) -> dict[str, Any]:
    """Three drivers begin at once on a store that is not there; each training is made once."""
    found = []
    for number in range(times):
        course = Course(["plain", "stacks"][number % 2], folder / f"{number}")
        course.uninterrupted()
        os.environ["TINY_NAP"] = "0.01"
        children = [forked(lambda c=course: c.run(c.store)) for _ in range(3)]
        os.environ["TINY_NAP"] = "0"
        course.wrong += [f"a driver ended with {c}" for c in map(ended, children) if c]
        names = [line.rpartition(" ")[0] for line in course.log.read_text().splitlines()]
        course.wrong += [f"made twice: {n}" for n in set(names) if names.count(n) > 1]
        course.judged()
        found.append(course)
    return {"studies": len(found), "wrong": [w for c in found for w in c.wrong]}


def interrupted(folder: Path, times: int, seed: int) -> dict[str, Any]:
    """Ctrl-C at random moments, once or twice: what it says is what is in the store."""
    draws, found, said, number = random.Random(seed), [], 0, 0
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # for children while they begin
    while said < times:
        course = Course([*KINDS][len(found) % 4], folder / f"{len(found)}")
        course.uninterrupted()
        while said < times:
            number += 1
            note = folder / f"{number}.said"
            pooled = draws.random() < 0.3
            child = forked(lambda c=course, n=note, p=pooled: _noted(c, n, p))
            time.sleep(draws.uniform(0.0, course.span / 2))
            os.kill(child, signal.SIGINT)
            code = ended(child)
            error = note.with_suffix(".error")
            course.wrong += [f"ended with {code}: {error.read_text()}"] if code else []
            course.look()
            if not note.exists():  # it came before the driver began
                continue
            if not (words := note.read_text()):
                break  # it had come to its end
            said += 1
            done, planned = len(course.kept["runs"]), len(course.study.runs())
            expected = f"{done} of {planned} runs are done, and kept in {course.store}: run again"
            course.wrong += [] if words == f"{expected} to go on" else [words]
        code = ended(forked(lambda c=course: c.run(c.store)))
        course.wrong += [f"the last driver ended with {code}"] if code else []
        course.judged()
        found.append(course)
    return {"said": said, "studies": len(found), "wrong": [w for c in found for w in c.wrong]}


def _noted(course: Course, note: Path, pooled: bool) -> None:
    """What a driver says when it is interrupted; nothing if it was not."""
    os.dup2(os.open(note.with_suffix(".error"), os.O_WRONLY | os.O_CREAT), 2)
    part = note.with_suffix(".part")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            course.run(course.store, engine=pool.Pool(2) if pooled else "here")
        except KeyboardInterrupt as error:
            if said := str(error):
                with Store(course.store) as store:  # nobody is said to be at work
                    said += "".join(map(str, store.status().claims))
                part.write_text(said)
                part.replace(note)
        else:
            note.touch()


def main() -> None:
    torch.set_num_threads(1)
    pool.subprocess.Popen = Forked  # type: ignore[attr-defined]
    what, folder, kills, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    modes = {"workers": workers, "together": together, "interrupted": interrupted}
    if what in modes:
        found = modes[what](folder, kills, seed)
    else:
        found = drivers(folder, kills, seed, "pool" if what == "pooled" else "here")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
