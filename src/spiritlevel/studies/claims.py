"""Who is at work on which runs: two drivers on one store never do the same."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sqlite3
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.studies.database import Database, say

_working: set[str] = set()  # the owners of this process that are at work
LEASE = 60.0  # seconds without a heartbeat after which an owner on another host is gone
BEAT = 10.0


@dataclass(frozen=True)
class Owner:
    """A driver: a process on a host, told from a later one of the same number by its start."""

    id: str
    host: str
    pid: int
    started: str
    heartbeat: float

    @property
    def alive(self) -> bool:
        """Seen at once on this host; on another one by its heartbeat."""
        if self.host == here():
            # one that could not leave, on a full disk, must not keep its own process out
            own = self.pid != os.getpid() or self.id in _working
            return own and started(self.pid) == self.started
        return time.time() - self.heartbeat < LEASE


def me() -> Owner:
    """This process, as an owner of its own."""
    pid = os.getpid()
    return Owner(uuid.uuid4().hex, here(), pid, started(pid), time.time())


@functools.cache
def here() -> str:
    """The name of this host; its boot and its process numbers, which containers have of their own,
    tell it from others of the same name.
    """
    marks = []
    with contextlib.suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        marks.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    mark = hashlib.sha256("".join(marks).encode()).hexdigest()[:8]
    return f"{platform.node()}#{mark}"


def started(pid: int) -> str:
    """When a process began, in the system's own words; empty if there is none."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else fields[19]  # a zombie does nothing more
    told = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


def owners(connection: sqlite3.Connection) -> dict[str, Owner]:
    """All drivers that have registered and not left."""
    rows = connection.execute("SELECT id, host, pid, started, heartbeat FROM owners")
    return {row[0]: Owner(*row) for row in rows}


def held(connection: sqlite3.Connection) -> dict[str, str]:
    """Who claims which run."""
    return dict(connection.execute("SELECT run, owner FROM claims"))


def taken(connection: sqlite3.Connection, owner: Owner, keys: Iterable[str]) -> bool:
    """Claim all these runs, unless a driver that is alive has claimed one of them."""
    keys = list(keys)
    found = [
        connection.execute("SELECT owner FROM claims WHERE run = ?", [key]).fetchone()
        for key in keys
    ]
    others = {row[0] for row in found if row} - {owner.id}
    if others:
        known = owners(connection)
        if any(known[other].alive for other in others if other in known):
            return False
    rows = [(key, owner.id) for key in keys]
    connection.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?)", rows)
    return True


def released(connection: sqlite3.Connection, owner: Owner, keys: Iterable[str]) -> None:
    """Give claims back."""
    rows = [(key, owner.id) for key in keys]
    connection.executemany("DELETE FROM claims WHERE run = ? AND owner = ?", rows)


@dataclass
class Pulse:
    """A thread that says every some seconds that its owner lives."""

    path: Path
    owner: Owner
    stopped: threading.Event = field(default_factory=threading.Event)

    def beat(self) -> None:
        while not self.stopped.wait(BEAT):
            # a disk that is full for a moment: the driver meets it too, when it writes
            with contextlib.suppress(SpiritlevelError):
                said = "UPDATE owners SET heartbeat = ? WHERE id = ?"
                say(self.path, said, [time.time(), self.owner.id])


@contextlib.contextmanager
def owning(database: Database) -> Iterator[Owner]:
    """Register as an owner while inside; those that are gone are forgotten with their claims."""
    owner = me()
    pulse = Pulse(database.path, owner)
    thread = threading.Thread(target=pulse.beat, daemon=True)
    try:
        _working.add(owner.id)
        _enter(database, owner)
        thread.start()
        yield owner
    finally:
        _working.discard(owner.id)
        pulse.stopped.set()
        if thread.is_alive():
            thread.join()
        _leave(database, owner)


def _enter(database: Database, owner: Owner) -> None:
    with database.writing() as connection:
        gone = [[one.id] for one in owners(connection).values() if not one.alive]
        connection.executemany("DELETE FROM claims WHERE owner = ?", gone)
        connection.executemany("DELETE FROM owners WHERE id = ?", gone)
        row = [owner.id, owner.host, owner.pid, owner.started, owner.heartbeat]
        connection.execute("INSERT INTO owners VALUES (?, ?, ?, ?, ?)", row)


def _leave(database: Database, owner: Owner) -> None:
    """What cannot be given back, on a full disk, is taken over by whoever comes next."""
    with contextlib.suppress(SpiritlevelError), database.writing() as connection:
        connection.execute("DELETE FROM claims WHERE owner = ?", [owner.id])
        connection.execute("DELETE FROM owners WHERE id = ?", [owner.id])
