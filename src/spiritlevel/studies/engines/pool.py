"""Jobs in processes of their own, which end with this one and are replaced when they die."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spiritlevel.studies.messages import Broken, Died, Ended, Message, Ready, Task
from spiritlevel.studies.sources import Source, packed
from spiritlevel.studies.study import Study

START = "from spiritlevel.studies.engines.worker import main; main()"
PARTING = 5.0  # seconds that a worker has to end, once it says no more
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(eq=False)
class Worker:
    """A process with a pipe to it for tasks, whose end it lives by, and one back for messages."""

    process: subprocess.Popen[bytes]
    number: int | None = None  # of its task
    ready: bool = False
    silent: bool = False  # dead, and nothing more came

    def send(self, what: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its reader says that it died
            pickle.dump(what, self.process.stdin)
            self.process.stdin.flush()

    def kill(self) -> None:
        """With what it started itself, while its number is its own."""
        if self.process.poll() is None and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def end(self) -> int:
        """Its exit code, once nothing of it is left."""
        try:
            code = self.process.wait(PARTING)
        except subprocess.TimeoutExpired:  # it closed its pipe and lives
            self.kill()
            code = self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # nobody reads what is left in it
            self.process.stdin.close()
        return code

    def death(self) -> str:
        """Of what it died."""
        code = self.end()
        if code >= 0:
            return f"the worker ended with the exit code {code}"
        try:
            name = f" ({signal.Signals(-code).name})"
        except ValueError:
            name = ""
        return f"the worker died of signal {-code}{name}"


@dataclass
class Pool:
    """Processes that are started once, and import the study from the text of its file."""

    workers: int | None = None
    source: Source | None = None
    team: list[Worker] = field(default_factory=list)
    heard: queue.SimpleQueue[tuple[Worker, Any]] = field(default_factory=queue.SimpleQueue)
    size: int = 1

    @contextlib.contextmanager
    def opened(self, study: Study) -> Iterator[None]:
        self.source, self.size = packed(study), self.workers or cores()
        try:
            yield
        finally:
            for worker in self.team:
                worker.kill()
            for worker in self.team:
                worker.end()
            self.team = []

    def free(self) -> int:
        return self.size - sum(worker.number is not None for worker in self.team)

    def submit(self, number: int, task: Task) -> None:
        idle = [worker for worker in self.team if worker.number is None]
        worker = idle[0] if idle else self._started()
        worker.number = number
        worker.send(task)

    def receive(self, seconds: float) -> list[tuple[int, Message]]:
        found: list[tuple[int, Message]] = []
        with contextlib.suppress(queue.Empty):
            found += self._told(*self.heard.get(timeout=seconds))
            while True:
                found += self._told(*self.heard.get_nowait())
        if not found:  # its pipe stays open while a process lives that it had started
            for worker in [one for one in self.team if one.process.poll() is not None]:
                found += self._told(worker, None) if worker.silent else []
                worker.silent = True  # what it had said may be on its way
        return found

    def _told(self, worker: Worker, message: Any) -> list[tuple[int, Message]]:
        number = worker.number
        if worker not in self.team:
            return []
        if isinstance(message, Ready):
            worker.ready = True
            return []
        if message is None:  # its pipe ended
            self.team.remove(worker)
            message = Died(worker.death(), worker.ready)
        if isinstance(message, Ended | Died):
            worker.number = None
        if isinstance(message, Broken):
            return [(-1, message)]
        return [] if number is None else [(number, message)]

    def _started(self) -> Worker:
        threads = max(1, cores() // self.size)
        paths = os.pathsep.join(place for place in sys.path if place)
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, **dict.fromkeys(THREADS, str(threads))},
            start_new_session=True,  # Ctrl-C is for the driver
        )
        worker = Worker(process)
        self.team.append(worker)
        threading.Thread(target=self._read, args=[worker], daemon=True).start()
        worker.send(self.source)
        return worker

    def _read(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        try:
            with worker.process.stdout as pipe:
                while True:
                    self.heard.put((worker, pickle.load(pipe)))
        except Exception:  # its end, or a message torn by it, which pickle meets with any error
            self.heard.put((worker, None))
