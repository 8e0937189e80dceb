"""What else a process does with a store that it has open takes no lock from it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from spiritlevel import SpiritlevelError
from spiritlevel.studies import claims
from spiritlevel.studies.messages import Finished
from spiritlevel.studies.store import Store
from spiritlevel.studies.study import Study

COMES_AND_GOES = """
import sys
from spiritlevel.studies.store import Store
with Store(sys.argv[1]) as store:
    print(len(store.networks()))
"""


def seen_elsewhere(path: Path) -> int:
    """By a process that closes the store when it leaves, as `spiritlevel study status` does."""
    done = subprocess.run(
        [sys.executable, "-c", COMES_AND_GOES, path], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def looks_again(path: Path, owner: claims.Owner) -> None:
    Store(path).close()


def is_dropped(path: Path, owner: claims.Owner) -> None:
    Store(path)


def beats(path: Path, owner: claims.Owner) -> None:
    """As the thread of a driver does, without the ten seconds in between."""
    pulse = claims.Pulse(path, owner)
    stops = iter([False, False, True])
    pulse.stopped.wait = lambda timeout=None: next(stops)  # type: ignore[method-assign]
    pulse.beat()


@pytest.mark.parametrize("happens", [looks_again, is_dropped, beats])
def test_the_log_stays_with_its_writer(
    tmp_path: Path, happens: Callable[[Path, claims.Owner], None]
) -> None:
    """Else the next process that leaves deletes it, and all that is written after is lost."""
    path, study = tmp_path / "s.db", tiny.made()
    first, second, third, *_ = study.runs()
    store = Store(path, create=True)
    with claims.owning(store.database) as owner:
        written(store, study, first)
        happens(path, owner)
        assert seen_elsewhere(path) == 1
        written(store, study, second)
        assert seen_elsewhere(path) == 2, "written into a log that is deleted"
        written(store, study, third)
        assert seen_elsewhere(path) == 3
    store.close()


def written(store: Store, study: Study, run: object) -> None:
    with store.database.writing():
        store.add_run(study, Finished(run, "", {"gap": 0.5}))  # type: ignore[arg-type]


def test_a_beat_is_written(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db", create=True) as store, claims.owning(store.database) as owner:
        begin = time.time()
        beats(store.path, owner)
        found = claims.owners(store.database.connection)[owner.id]
        assert found.heartbeat >= begin


def test_another_file_in_the_place_of_a_closed_store_is_looked_at(tmp_path: Path) -> None:
    """What is known of a file is forgotten when its last store is closed."""
    path = tmp_path / "s.db"
    Store(path, create=True).close()
    path.write_bytes(b"something else")
    with pytest.raises(SpiritlevelError, match="is no store of a study"):
        Store(path)
