"""The one loop of all engines: claim a job, send it out, write what comes back."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from tqdm import tqdm

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.interrupts import heard_interrupts
from spiritlevel.base.progress import bar
from spiritlevel.studies.claims import Owner, owning, released, taken
from spiritlevel.studies.engines.base import Engine
from spiritlevel.studies.messages import (
    Broken,
    Died,
    Ended,
    Finished,
    Measured,
    Message,
    Task,
)
from spiritlevel.studies.sources import refuse_recursion
from spiritlevel.studies.store import Store
from spiritlevel.studies.study import Job, Study

ATTEMPTS = 3  # of a job whose worker dies
STILLBORN = 10  # workers in a row that die before they begin
TICK = 0.2  # seconds between two looks at what others do


def drive(study: Study, store: Store, engine: Engine, *, retry: bool = False) -> None:
    """Do what the store does not hold; only this process writes to it."""
    refuse_recursion()
    store.database.require_writable()
    jobs = study.jobs()
    if retry:
        store.forget_failures(run.key for job in jobs for run in job)
    done, failed = store.counts(study)
    planned = sum(map(len, jobs))
    with heard_interrupts() as heard, contextlib.ExitStack() as stack:
        try:
            waiting = deque(n for n, job in enumerate(jobs) if store.task(study, job))
            if waiting:
                owner = stack.enter_context(owning(store.database))
                stack.enter_context(engine.opened(study))
                progress = stack.enter_context(bar(planned, study.name, done=done + failed))
                Driver(study, store, engine, owner, progress, heard, failed, jobs, waiting).drive()
        except BaseException as error:
            # inside torch, Ctrl-C may come out as another error
            if not heard and not isinstance(error, KeyboardInterrupt):
                raise
            raise KeyboardInterrupt(_stopped(study, store, planned)) from None


def _stopped(study: Study, store: Store, planned: int) -> str:
    done, failed = store.counts(study)
    failures = f", {failed} failed" if failed else ""
    return (
        f"{done} of {planned} runs are done{failures}, and kept in {store.path}: run again to go on"
    )


@dataclass
class Driver:
    """What is waiting, what is in the air and how often its workers died."""

    study: Study
    store: Store
    engine: Engine
    owner: Owner
    progress: tqdm
    heard: list[bool]
    failed: int
    jobs: list[Job]
    waiting: deque[int] = field(default_factory=deque)
    flying: set[int] = field(default_factory=set)
    deaths: Counter[int] = field(default_factory=Counter)
    stillborn: int = 0

    def drive(self) -> None:
        while self.waiting or self.flying:
            for _ in range(len(self.waiting)):
                if not self.engine.free():
                    break
                number = self.waiting.popleft()
                task = self._claimed(self.jobs[number])
                if task is None:  # another driver is at it: look again when it may be done
                    self.waiting.append(number)
                elif task:
                    self._send(number, task)
            if self.flying:
                self._hear(self.engine.receive(TICK))
            elif self.waiting:
                time.sleep(TICK)

    def _claimed(self, job: Job) -> Task | None:
        """What is missing of a job, now ours; None if somebody else has it."""
        with self.store.database.writing() as connection:
            task = self.store.task(self.study, job)
            missing = [ask.run.key for ask in task if ask.missing or ask.labels]
            if not missing:
                return ()
            return task if taken(connection, self.owner, missing) else None

    def _send(self, number: int, task: Task) -> None:
        self.flying.add(number)
        self.engine.submit(number, self.store.with_weights(self.study, task))

    def _hear(self, messages: list[tuple[int, Message]]) -> None:
        """Write all that came in one commit, then see to those that died."""
        if self.heard:  # what failed now may have failed of Ctrl-C
            messages = [(n, m) for n, m in messages if not _is_failure(m)]
        if messages:
            self._write(messages)
        for number, message in messages:
            if isinstance(message, Broken):
                raise SpiritlevelError(message.reason)
            if isinstance(message, Died):
                self._again(number, message)
            else:
                self.stillborn = 0
        if self.heard:
            raise KeyboardInterrupt

    def _write(self, messages: list[tuple[int, Message]]) -> None:
        self.store.keep_weights(m for _, m in messages if isinstance(m, Finished))
        with self.store.database.writing() as connection:
            for number, message in messages:
                if isinstance(message, Finished):
                    self._count(self.store.add_run(self.study, message), bool(message.error))
                elif isinstance(message, Measured):
                    self.store.add_measure(self.study, message)
                elif isinstance(message, Ended):
                    self.flying.discard(number)
                    released(connection, self.owner, (run.key for run in self.jobs[number]))

    def _count(self, new: bool, failed: bool) -> None:
        self.progress.update(new)
        self.failed += new and failed
        if self.failed:
            self.progress.set_postfix_str(f"{self.failed} failed")

    def _again(self, number: int, death: Died) -> None:
        """A job that came to no end is tried again after all others, with what is still missing."""
        job = self.jobs[number]
        self.flying.discard(number)
        self.stillborn = 0 if death.ready else self.stillborn + 1
        if self.stillborn >= STILLBORN:
            raise SpiritlevelError(f"{STILLBORN} workers died before they began: {death.reason}")
        self.deaths[number] += death.ready
        task = self.store.task(self.study, job)
        if self.deaths[number] >= ATTEMPTS:
            self.deaths[number] = 0
            self._give_up(task, f"{death.reason}, {ATTEMPTS} times")
            task = self.store.task(self.study, job)
        if task:
            self.waiting.append(number)
        else:
            with self.store.database.writing() as connection:
                released(connection, self.owner, (run.key for run in job))

    def _give_up(self, task: Task, reason: str) -> None:
        """The trainings failed; or, where all are done, the measure that was next."""
        lost = [ask for ask in task if ask.missing]
        with self.store.database.writing():
            for ask in lost:
                self._count(self.store.add_run(self.study, Finished(ask.run, reason)), True)
            if not lost:
                ask = next(ask for ask in task if ask.labels)
                label, nothing = ask.labels[0], {ask.labels[0]: Estimate(float("nan"))}
                found = Measured(ask.run.key, label, nothing, reason, failed=True)
                self.store.add_measure(self.study, found)


def _is_failure(message: Message) -> bool:
    return bool(getattr(message, "error", "") or getattr(message, "refusal", ""))
