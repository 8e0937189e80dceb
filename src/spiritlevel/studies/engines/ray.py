"""Jobs on a Ray cluster: tasks whose messages come back as they are made."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.base.requiring import required
from spiritlevel.studies.messages import Broken, Died, Ended, Message, Task
from spiritlevel.studies.sources import Source, packed, unpacked
from spiritlevel.studies.study import Study

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
PATIENCE = 20.0  # seconds that a cluster has to answer; Ray itself tries for minutes
# How HTTP/2 begins, which Ray speaks: the greeting, and settings (frames of type 4) from both sides
GREETING, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 4


@dataclass
class Cluster:
    """Ray, started here or joined at an address; one that runs already is used and left running.

    Ray itself repeats nothing (max_retries=0): the driver sends out again what is still missing.
    """

    address: str | None = None
    workers: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    ray: Any = None
    remote: Any = None
    source: Any = None
    flying: dict[Any, int] = field(default_factory=dict)  # generators of messages

    @contextlib.contextmanager
    def opened(self, study: Study) -> Iterator[None]:
        self.ray = required("ray", '"spiritlevel[ray]"')
        source = packed(study)
        with _joined(self.ray, self.address, self.workers):
            asked = {"num_cpus": 1.0, **self.resources}
            options = {k: v for k, v in asked.items() if v or k == "num_cpus"}
            self.remote = self.ray.remote(_work).options(
                max_retries=0, num_returns="streaming", **options
            )
            self.source = self.ray.put(source)
            try:
                yield
            finally:
                for one in self.flying:
                    self.ray.cancel(one, force=True)
                self.flying = {}

    def free(self) -> int:
        return max(0, self._room() - len(self.flying))

    def _room(self) -> int:
        """Tasks that the cluster has resources for; it may grow and shrink."""
        there = self.ray.cluster_resources()
        names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
        asked = {"num_cpus": 1.0, **self.resources}
        fits = [int(there.get(names[k], 0.0) / v) for k, v in asked.items() if v]
        room = max(1, min(fits, default=1))
        return room if self.workers is None else min(room, self.workers)

    def submit(self, number: int, task: Task) -> None:
        self.flying[self.remote.remote(self.source, task)] = number

    def receive(self, seconds: float) -> list[tuple[int, Message]]:
        waiting = list(self.flying)
        ready, _ = self.ray.wait(waiting, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:  # and all others that are
            ready, _ = self.ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [self._next(one) for one in ready]

    def _next(self, one: Any) -> tuple[int, Message]:
        number = self.flying[one]
        try:
            message = self.ray.get(next(one))
        except StopIteration:
            message = Died("the task of Ray ended without a word")
        except self.ray.exceptions.RayError as error:
            message = Died(_cause(self.ray, error))
        if isinstance(message, Ended | Died | Broken):
            del self.flying[one]
        return number, message


def _work(source: Source, task: Task) -> Iterator[Message]:
    """In a worker of Ray."""
    from spiritlevel.studies.running import work

    try:
        study = unpacked(source)
    except SpiritlevelError as error:
        yield Broken(str(error))
        return
    yield from work(study, task)


def _cause(ray: Any, error: Exception) -> str:
    kinds = ray.exceptions
    if isinstance(error, kinds.OutOfMemoryError):
        return "the worker was killed for its memory"
    if isinstance(error, kinds.NodeDiedError):
        return "the node of the worker died"
    if isinstance(error, kinds.WorkerCrashedError):
        return "the worker died"
    return f"the task was lost: {in_one_line(error, 200)}"


@contextlib.contextmanager
def _joined(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """With Ray running; without its statistics, its dashboard and its chatter."""
    if ray.is_initialized():
        if address is not None:
            raise SpiritlevelError(
                "ray_address is given, but Ray runs here already: leave it out, or ray.shutdown()"
            )
        yield
        return
    with _unchanged(), _hushed(ray):
        _start(ray, address, workers)
        try:
            yield
        finally:
            ray.shutdown()


def _start(ray: Any, address: str | None, workers: int | None) -> None:
    named = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS")
    refuse_unanswered(named or "")
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update({k: v for k, v in QUIET.items() if before[k] is None})
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None and not named:  # else it would join whatever runs on this machine
        options |= {"address": "local", "include_dashboard": False, "num_cpus": workers}
    try:
        ray.init(**{"address": address, **options})
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise SpiritlevelError(
            f"ray_address={address!r}: Ray cannot be started or reached: {in_one_line(error)}"
        ) from None
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def refuse_unanswered(address: str) -> None:
    """Where host:port is named, but no cluster is at it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        return  # nothing is named, or Ray knows what is wrong with it
    why, begin = "something else answers", time.monotonic()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as pipe:
            if os.environ.get("RAY_USE_TLS") == "1":  # then nobody greets in the open
                return
            pipe.sendall(GREETING + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
            head = b""
            while len(head) < 4:
                pipe.settimeout(max(begin + PATIENCE - time.monotonic(), 0.01))
                if not (more := pipe.recv(4 - len(head))):
                    break
                head += more
            if len(head) == 4 and head[3] == SETTINGS:
                return
    except TimeoutError:
        why = f"nothing came within {PATIENCE:g} s"
    except OSError as error:
        why = error.strerror or str(error)
    raise SpiritlevelError(
        f"ray_address={address!r} (in a shell --ray-address): no cluster of Ray answers there "
        f"({why}): give the host:port that ray start --head told, or leave it out for a local one"
    )


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """What SIGTERM does, which Ray changes for good."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _hushed(ray: Any) -> Iterator[None]:
    """Ray prints of every worker that dies, into the output of the driver, whatever it is asked."""
    module: Any = getattr(getattr(ray, "_private", None), "worker", None)
    before = getattr(module, "print_to_stdstream", None)
    if before is None:
        yield
        return
    module.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        module.print_to_stdstream = before
