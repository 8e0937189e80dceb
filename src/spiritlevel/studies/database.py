"""The file of a store: SQLite that loses nothing that was committed, opened with care."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import struct
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError

MAGIC = b"SQLite format 3\0"
OURS = 0x53504C56  # "SPLV", where SQLite keeps whose file it is
SCHEMA = 1
BROKEN = ("is malformed", "not a database")  # what SQLite says of a file that it cannot read
PATIENCE = 60.0  # seconds that a writer waits for another one
# Columns of numbers have no type: SQLite would store -0.0 in a REAL column as the integer 0.
TABLES = """
CREATE TABLE runs (
    key TEXT PRIMARY KEY, config TEXT NOT NULL, seed INTEGER NOT NULL, definition TEXT NOT NULL,
    state TEXT NOT NULL, error TEXT NOT NULL, numbers TEXT, history TEXT, seconds REAL,
    weights TEXT, host TEXT, created REAL);
CREATE TABLE measures (
    run TEXT NOT NULL, label TEXT NOT NULL, definition TEXT NOT NULL, value, stderr, residual,
    bound, status TEXT NOT NULL, remedy TEXT NOT NULL, matvecs, seconds REAL,
    PRIMARY KEY (run, definition, label));
CREATE TABLE owners (
    id TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL,
    heartbeat REAL NOT NULL);
CREATE TABLE claims (run TEXT PRIMARY KEY, owner TEXT NOT NULL);
"""


# Stores that this process has open, by device and number of the file. Whoever closes such a file by
# hand gives back all locks that SQLite holds on it in this process (POSIX says so): another process
# that leaves would then delete the log under its writer. So none is opened but by SQLite.
_open_here: Counter[tuple[int, int]] = Counter()
_opening = threading.RLock()


class Database:
    """One connection to a store, and whether it may be written.

    Every commit is synced (synchronous=FULL): neither a killed process nor a power cut loses it.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        self.path = _named(path)
        self._snapshot: tempfile.TemporaryDirectory[str] | None = None
        if create and not self.path.exists():
            _refuse_remains(self.path)
            with explained(self.path):
                _create(self.path)
        self.trouble = ""  # why a file that may be written is only read
        with _opening:
            self._file = _refuse_others(self.path)
            places = (self.path, self.path.parent)
            self.writable = all(os.access(place, os.W_OK) for place in places)
            with explained(self.path):
                self.connection = self._connect() if self.writable else self._look()
            _open_here[self._file] += 1
            self._left = weakref.finalize(self, _leave, self.connection, self._file, os.getpid())

    def _connect(self) -> sqlite3.Connection:
        found = _open(self.path, "mode=rw")
        try:
            found.execute("PRAGMA synchronous = FULL")
            found.execute("SELECT count(*) FROM runs").fetchone()
        except sqlite3.OperationalError as error:  # a disk too full even to share what is read
            self.trouble = str(error)
            found.close()
            return self._look()
        return found

    def _look(self) -> sqlite3.Connection:
        """Read without writing, which WAL allows only where its other files are there or empty."""
        log = _log(self.path)
        if not log.exists() or log.stat().st_size == 0:
            return _open(self.path, "mode=ro&immutable=1")
        try:
            found = _open(self.path, "mode=ro")
            found.execute("SELECT count(*) FROM runs").fetchone()
            return found
        except sqlite3.OperationalError:  # what a kill left behind can only be read from a copy
            if _open_here[self._file]:
                raise
            self._snapshot = tempfile.TemporaryDirectory(prefix="spiritlevel-")
            copy = Path(self._snapshot.name) / "store.db"
            shutil.copyfile(self.path, copy)
            shutil.copyfile(log, copy.with_name("store.db-wal"))
            return _open(copy, "mode=rw")

    def require_writable(self) -> None:
        """Refuse to begin work that could not be kept."""
        if self.trouble:
            raise _explanation(self.path, self.trouble)
        if not self.writable:
            blocked = self.path if not os.access(self.path, os.W_OK) else self.path.parent
            raise SpiritlevelError(
                f"store={str(self.path)!r} cannot be written ({blocked} is read-only): copy it to "
                "where it can be, or name another file"
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing of it."""
        with explained(self.path):
            try:  # Ctrl-C may come at once
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._left()
        if self._snapshot is not None:
            self._snapshot.cleanup()


def _leave(connection: sqlite3.Connection, file: tuple[int, int], pid: int) -> None:
    if pid == os.getpid():  # a fork has no locks of its own on it, and nothing to close
        with _opening:
            connection.close()
            _open_here[file] -= 1


def say(path: Path, statement: str, row: list[Any]) -> None:
    """One statement by a connection of its own, to a store that this process has open."""
    with explained(path), contextlib.closing(_open(path, "mode=rw")) as connection:
        connection.execute(statement, row)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of the disk and of SQLite in one line."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        raise _explanation(path, error) from None


def _explanation(path: Path, error: object) -> SpiritlevelError:
    if any(word in str(error) for word in BROKEN):
        return SpiritlevelError(
            f"store={str(path)!r}: {error}: some of what it held may be lost; put a copy of it in "
            "its place, or name another file"
        )
    return SpiritlevelError(
        f"store={str(path)!r}: {error}; what was written before is kept: mend that (a full disk, a "
        "lock) and run again"
    )


def _named(path: str | os.PathLike[str]) -> Path:
    try:
        # through links, as SQLite does: what lies beside a store is found by its name
        return Path(os.path.realpath(doors.file(path)))
    except SpiritlevelError as error:
        raise SpiritlevelError(str(error).replace("path", "store", 1)) from None


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?{mode}",
        uri=True,
        isolation_level=None,
        timeout=PATIENCE,
        check_same_thread=False,
    )


def _create(path: Path) -> None:
    """Made elsewhere and put into its place whole: who opens it sees a store or nothing."""
    handle, made = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as new:
            new.execute("PRAGMA journal_mode = WAL")
            new.executescript(
                f"BEGIN; {TABLES} PRAGMA application_id = {OURS}; PRAGMA user_version = {SCHEMA};"
                "COMMIT;"
            )
        Path(made).chmod(0o666 & ~_umask())
        with contextlib.suppress(FileExistsError):  # another one was faster
            os.link(made, path)
    finally:
        Path(made).unlink()


def _refuse_remains(path: Path) -> None:
    """SQLite would write the log of a store that was killed and deleted into the new one."""
    log = _log(path)
    if log.exists() and not path.exists():  # in this order: another driver makes the store first
        raise SpiritlevelError(
            f"store={str(path)!r} is gone, but its log {log.name} is there: put the store back "
            "beside it, or delete that too"
        )


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def _refuse_others(path: Path) -> tuple[int, int]:
    """Looks at the first bytes only, so that nothing of another file is touched; which file it is.

    A file that is open here as a store is one.
    """
    try:
        status = path.stat()
        file = status.st_dev, status.st_ino
        if _open_here[file]:
            return file
        with path.open("rb") as opened:
            head = opened.read(100)
    except FileNotFoundError:
        raise SpiritlevelError(
            f"store={str(path)!r}: there is no such file; study.run() makes it"
        ) from None
    except OSError as error:
        raise SpiritlevelError(f"store={str(path)!r} cannot be read: {error}") from None
    whole = len(head) == 100 and head.startswith(MAGIC)
    [version], [owner] = (
        (struct.unpack(">I", head[60:64]), struct.unpack(">I", head[68:72]))
        if whole
        else ((0,), (0,))
    )
    if owner != OURS:
        raise SpiritlevelError(
            f"store={str(path)!r} is no store of a study, and is left as it is: name another file"
        )
    if version != SCHEMA:
        raise SpiritlevelError(
            f"store={str(path)!r} has the schema {version}, and this version reads {SCHEMA}: use "
            "the version of spiritlevel that wrote it, or name another file"
        )
    return file
