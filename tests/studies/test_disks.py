"""Disks that are full or cannot be written, and drivers that are gone."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

from spiritlevel import SpiritlevelError
from spiritlevel.studies import Store, Study, claims


def light(**changes: Any) -> Study:
    given: Any = {
        "grid": {"width": [2, 3], "rate": [0.1]},
        "measures": ("gradient_norm", "layer_traces"),
        "representative": (),
        "seeds": 1,
        "settings": {"tol": 0.1},
    }
    return tiny.made(**{**given, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "s.db"
    light().run(path).close()
    return path


# Disks --------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[Callable[..., Path]]:
    """A small file system of its own, which only root may have."""
    place = Path(tempfile.mkdtemp())
    mounted = []

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip("nothing can be mounted here")
        if not mounted:
            mounted.append(place)
        return place

    try:
        yield mount
    finally:
        for one in mounted:
            subprocess.run(["umount", "-l", str(one)], check=True)
        place.rmdir()


def test_a_disk_that_cannot_be_written(made: Path, disk: Callable[..., Path]) -> None:
    place = disk("size=2m")
    path = Path(shutil.copy(made, place / "s.db"))
    before = tiny.rows(path)
    disk("remount,ro")
    _only_read(path, before)


def test_a_folder_that_cannot_be_written(made: Path) -> None:
    """As another user, who may read it only; with what a kill left behind."""
    place = Path(tempfile.mkdtemp())
    try:
        path = Path(shutil.copy(made, place / "s.db"))
        before = tiny.rows(path)
        path.chmod(0o444)
        place.chmod(0o555)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                _only_read(path, before)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        place.chmod(0o755)
        shutil.rmtree(place)


def _only_read(path: Path, before: Any) -> None:
    with Store(path) as store:
        assert len(store.networks(light())) == 2
        assert store.status(light()).done == 2
        with pytest.raises(SpiritlevelError, match=r"s\.db' cannot be written \(.* is read-only\)"):
            light().run(store)
    with pytest.raises(SpiritlevelError, match="copy it to where it can be, or name another file"):
        light(seeds=2).run(path)
    assert tiny.rows(path) == before
    with pytest.raises(SpiritlevelError, match=r"new\.db': .*; what was written before is kept"):
        light().run(path.with_name("new.db"))


def test_a_full_disk(disk: Callable[..., Path], tmp_path: Path) -> None:
    """One error, nothing lost, reading goes on, and so does the study, in the same process."""
    place = disk("size=400k")
    study = light(seeds=3, grid={"width": [2, 3], "rate": [0.1]})
    few = light(seeds=1, grid=study.grid)
    few.run(place / "s.db").close()
    before = tiny.rows(place / "s.db")
    ballast = place / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(place).free - 4096 * 12))
    with pytest.raises(SpiritlevelError, match=r"full.*; what was written before is kept: mend"):
        study.run(place / "s.db")
    with Store(place / "s.db") as store:
        assert store.counts(few) == (2, 0)
        done = len(store.networks())
        assert 2 <= done < 6
    assert all(set(before[name]) <= set(tiny.rows(place / "s.db")[name]) for name in before)
    ballast.unlink()
    study.run(place / "s.db").close()
    study.run(tmp_path / "whole.db").close()
    assert tiny.rows(place / "s.db") == tiny.rows(tmp_path / "whole.db")


def test_a_disk_that_is_full_to_the_last_byte(disk: Callable[..., Path]) -> None:
    place = disk("size=400k")
    few = light(seeds=1, grid={"width": [2], "rate": [0.1]})
    few.run(place / "s.db").close()
    (place / "ballast").write_bytes(bytes(shutil.disk_usage(place).free))
    with Store(place / "s.db") as store:
        assert len(store.networks(few)) == 1
    with pytest.raises(SpiritlevelError, match="what was written before is kept: mend"):
        light().run(place / "s.db")
    with pytest.raises(SpiritlevelError, match="what was written before is kept: mend"):
        light().run(place / "new.db")
    (place / "ballast").unlink()
    with Store(place / "s.db") as store:
        assert len(store.networks(few)) == 1


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A limit of the system on the size of files, where nothing can be mounted."""
    study = light(seeds=3, grid={"width": [2], "rate": [0.1]})
    path = tmp_path / "s.db"
    light(seeds=1, grid=study.grid).run(path).close()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
            with pytest.raises(SpiritlevelError, match="what was written before is kept: mend"):
                study.run(path)
            with Store(path) as store:
                assert store.counts(study)[0] >= 1
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    study.run(path).close()
    study.run(tmp_path / "whole.db").close()
    assert tiny.rows(path) == tiny.rows(tmp_path / "whole.db")


# Owners -------------------------------------------------------------------------------------------


def _claimed(path: Path, run: str, **changes: Any) -> None:
    """Somebody else is at a run."""
    row = {"host": "elsewhere#1", "pid": 1, "started": "x", "heartbeat": time.time(), **changes}
    with Store(path) as store, store.database.writing() as connection:
        values = ["other", row["host"], row["pid"], row["started"], row["heartbeat"]]
        connection.execute("INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?, ?)", values)
        connection.execute("INSERT INTO claims VALUES (?, 'other')", [run])


@pytest.mark.parametrize(
    "gone",
    [
        {"heartbeat": 0.0},
        {"host": claims.here(), "pid": 2**22 + 1},
        {"host": claims.here(), "pid": 1, "started": "another one of this number"},
        {"host": claims.here(), "pid": os.getpid(), "started": claims.started(os.getpid())},
    ],
)
def test_claims_of_those_that_are_gone_are_taken_over(tmp_path: Path, gone: dict[str, Any]) -> None:
    """On another host without a heartbeat; a process that ended, or that could not leave."""
    study = light(seeds=1, grid={"width": [2], "rate": [0.1]})
    path = tmp_path / "s.db"
    Store(path, create=True).close()
    _claimed(path, study.runs()[0].key, **gone)
    with study.run(path) as store:
        assert store.counts(study) == (1, 0)
        assert store.status().claims == ()


def test_claims_of_another_host_hold_while_its_heart_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = light(seeds=1, grid={"width": [2, 3], "rate": [0.1]})
    path, log = tmp_path / "s.db", tmp_path / "log"
    monkeypatch.setenv("TINY_LOG", str(log))
    monkeypatch.setattr(claims, "LEASE", 3.0)
    Store(path, create=True).close()
    begin = time.time()
    _claimed(path, study.runs()[0].key)
    with Store(path) as store:
        [claim] = store.status(study).claims
        assert (claim.host, claim.runs, claim.alive) == ("elsewhere#1", 1, True)
    study.run(path).close()
    assert time.time() - begin > 2.9
    assert [line[0] for line in log.read_text().splitlines()] == ["3", "2"]


def test_the_heart_beats_through_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    with Store(path, create=True) as store:
        monkeypatch.setattr(claims, "BEAT", 0.02)
        query = store.database.connection.execute
        with claims.owning(store.database) as owner:
            path.rename(tmp_path / "moved.db")
            time.sleep(0.1)
            (tmp_path / "moved.db").rename(path)
            with store.database.writing():
                query("UPDATE owners SET heartbeat = 0")
            end = time.monotonic() + 60
            while query("SELECT heartbeat FROM owners").fetchall() == [(0,)]:
                assert time.monotonic() < end, "no beat"
                time.sleep(0.02)
            assert query("SELECT heartbeat FROM owners").fetchone()[0] > owner.heartbeat
        assert query("SELECT * FROM owners").fetchall() == []
