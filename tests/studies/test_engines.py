"""Where jobs are done: the same numbers everywhere, and workers that die or cannot import."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from test_kills import script

from spiritlevel import SpiritlevelError
from spiritlevel.base.scope import fixed_rng
from spiritlevel.studies import Store, sources
from spiritlevel.studies.engines.pool import Pool, Worker
from spiritlevel.studies.messages import Died

MARK = "SPIRITLEVEL_TEST_MARK"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("whole") / "s.db"
    tiny.made().run(path).close()
    return tiny.rows(path)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """By which the processes that a test starts are known."""
    found = uuid.uuid4().hex
    monkeypatch.setenv(MARK, found)
    return found


def left(mark: str) -> list[int]:
    """Processes that bear a mark and live; those that are ending have some time."""
    end = time.monotonic() + 60
    while (found := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def _marked(mark: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            theirs = f"{MARK}={mark}".encode() in (place / "environ").read_bytes()
        except OSError:
            continue
        found += [int(place.name)] if theirs and int(place.name) != os.getpid() else []
    return found


# The same numbers ---------------------------------------------------------------------------------


def test_ray(
    whole: dict[str, Any], tmp_path: Path, mark: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """To the last bit; nothing is printed, no process is left, and SIGTERM is what it was."""
    ray: Any = pytest.importorskip("ray", reason="Ray is not installed")
    before = signal.getsignal(signal.SIGTERM)
    path = tmp_path / "s.db"
    tiny.made().run(path, engine="ray", workers=2, resources={"num_cpus": 1}).close()
    assert tiny.rows(path) == whole
    assert capfd.readouterr() == ("", "")
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before
    assert left(mark) == []


def test_ray_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(
        SpiritlevelError, match=r"ray_address='nowhere'.*cannot be started or reached"
    ):
        tiny.made().run(tmp_path / "s.db", engine="ray", ray_address="nowhere")
    with Store(tmp_path / "s.db") as store:
        assert store.status().claims == ()


def test_ray_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpiritlevelError, match=r'ray cannot be .*pip install "spiritlevel\[ray\]"'):
        tiny.made().run(tmp_path / "s.db", engine="ray")


MODULE = """
import os, signal, sys, threading, time
from pathlib import Path
import tiny
from spiritlevel.studies import Study
from .beside import RATE

def train(config, seed):
    print("hello")
    sys.__stdout__.flush()
    os.system("echo from a shell")
    threading.Thread(target=time.sleep, args=[60], daemon=True).start()
    died = Path(os.environ["DIED"], str(config["dies"]))
    died.touch()
    if died.stat().st_size < config["dies"]:
        died.write_bytes(bytes(died.stat().st_size + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return tiny.train({"width": 2, "rate": RATE}, seed)

study = Study("dying", {"dies": [0, 2, 3]}, train, ["gradient_norm"], seeds=1)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user's own."""
    name = f"package_{uuid.uuid4().hex}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "beside.py").write_text("RATE = 0.1")
    (tmp_path / name / "mod.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DIED", str(tmp_path))
    return tmp_path / name


def test_a_pool(
    package: Path, tmp_path: Path, mark: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Workers die: twice is tried again, three times is an error, and the others are done."""
    module = __import__(f"{package.name}.mod", fromlist=["study"])
    with module.study.run(tmp_path / "s.db", engine="pool", workers=2) as store:
        status = store.status(module.study)
        assert [one.config for one in store.networks(module.study)] == [{"dies": 0}, {"dies": 2}]
        numbers = store.networks(module.study)[1].numbers
    assert [(f.config, f.reason) for f in status.failed] == [
        ({"dies": 3}, "the worker died of signal 9 (SIGKILL), 3 times")
    ]
    assert not status.missing
    with fixed_rng(0):
        assert numbers == tiny.train({"width": 2, "rate": 0.1}, 0).numbers
    out, err = capfd.readouterr()
    assert out == "", "what trainings print goes to the other output"
    assert err.splitlines().count("from a shell") == 7
    assert left(mark) == []


def test_a_pool_has_the_same_numbers(whole: dict[str, Any], tmp_path: Path, mark: str) -> None:
    path = tmp_path / "s.db"
    tiny.made().run(path, engine="pool", workers=1).close()
    assert tiny.rows(path) == whole
    assert left(mark) == []


# Drivers ------------------------------------------------------------------------------------------


def test_drivers_that_begin_at_once(tmp_path: Path) -> None:
    found, said = script("dying.py", "together", tmp_path, 8, 7)
    assert (found, said) == ({"studies": 8, "wrong": []}, "")


def test_interrupts(tmp_path: Path) -> None:
    """Ctrl-C at any moment, also inside torch: it says what is done, and nobody is at work."""
    found, said = script("dying.py", "interrupted", tmp_path, 30, 8)
    assert found["wrong"] == []
    assert (found["said"], said) == (30, "")


UNGUARDED = """
import tiny
from spiritlevel.studies import Study
def train(config, seed):
    return tiny.train({**config, "rate": 0.1}, seed)
study = Study("mine", {"width": [2]}, train, [], seeds=1)
"""


@pytest.mark.parametrize("kind", ["script", "package"])
def test_a_study_that_is_run_where_it_is_imported(tmp_path: Path, mark: str, kind: str) -> None:
    """One worker is started, not workers of workers without end."""
    place = tmp_path / "one" if kind == "package" else tmp_path
    place.mkdir(exist_ok=True)
    text = UNGUARDED + f"study.run({str(tmp_path / 's.db')!r}, engine='pool', workers=1)\n"
    (place / "mine.py").write_text(text)
    (tmp_path / "begin.py").write_text("import one.mine")
    file = tmp_path / ("begin.py" if kind == "package" else "mine.py")
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
    )
    said = r"runs its study while it is imported: put that under if __name__ == .__main__.:"
    assert done.returncode == 1
    assert re.search(said, done.stderr.splitlines()[-1])
    assert left(mark) == []


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module of the study, and the default dtype, which a worker sets for itself."""
    monkeypatch.setitem(sys.modules, "tiny", tiny)
    yield
    torch.set_default_dtype(torch.float32)


# What is sent -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("given_back")
def test_what_is_sent_of_a_study() -> None:
    """The files that it names, also inside of partial, and no library."""
    study = tiny.made(train=functools.partial(tiny.train), version="1")
    source = sources.packed(study)
    assert list(source.modules) == ["tiny"]
    again = sources.unpacked(source)
    assert [run.key for run in again.runs()] == [run.key for run in study.runs()]
    assert again.wanted.keys() == study.wanted.keys()


@pytest.mark.usefixtures("given_back")
def test_the_default_dtype_is_sent() -> None:
    torch.set_default_dtype(torch.float64)
    source = sources.packed(tiny.made())
    torch.set_default_dtype(torch.float32)
    sources.unpacked(source)
    assert torch.get_default_dtype() is torch.float64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit(3)", "tiny.py cannot be imported: SystemExit: 3"),
        ("1 / 0", "tiny.py cannot be imported: ZeroDivisionError: division by zero"),
        ("", "a module of the study cannot be imported by a worker: AttributeError"),
    ],
)
@pytest.mark.usefixtures("given_back")
def test_a_worker_that_cannot_import_says_why(text: str, said: str) -> None:
    source = sources.packed(tiny.made())
    file, package, _ = source.modules["tiny"]
    with pytest.raises(SpiritlevelError, match=said):
        sources.unpacked(replace(source, modules={"tiny": (file, package, text)}))


def test_a_study_of_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file: a version is asked for, and other processes do not know it."""
    notebook = types.ModuleType("__main__")
    code = "import tiny\ndef train(config, seed):\n    return tiny.train(config, seed)\n"
    exec(compile(code, "<cell 1>", "exec"), vars(notebook))
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    options: Any = {"train": notebook.train, "measures": [], "representative": (), "seeds": 1}
    with pytest.raises(SpiritlevelError, match=r'train has no file .* or give version="1"'):
        tiny.made(**options).run(tmp_path / "s.db")
    with tiny.made(**options, version="1").run(tmp_path / "s.db") as store:
        assert len(store.networks()) == 4
    with pytest.raises(SpiritlevelError, match=r'interactive session.*or use engine="here"'):
        tiny.made(**options, version="2").run(tmp_path / "s.db", engine="pool")


def test_a_study_that_cannot_be_sent(tmp_path: Path) -> None:
    study = tiny.made(train=lambda config, seed: tiny.train(config, seed + 1), version="1")
    with pytest.raises(SpiritlevelError, match="'tiny' cannot be sent to other processes"):
        study.run(tmp_path / "s.db", engine="pool")


# A pool, piece by piece ---------------------------------------------------------------------------


def started(pool: Pool, command: str) -> None:
    """A worker that does something else."""
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    found = Worker(process, number=5, ready=True)
    pool.team.append(found)
    threading.Thread(target=pool._read, args=[found], daemon=True).start()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "the worker ended with the exit code 3"),
        ("kill -9 $$", "the worker died of signal 9 (SIGKILL)"),
        ("echo this is no pickle; exit 4", "the worker ended with the exit code 4"),
        # a process that it started holds its pipe open
        ("sleep 120 & exit 5", "the worker ended with the exit code 5"),
    ],
)
def test_the_death_of_a_worker_is_seen(command: str, reason: str) -> None:
    pool, begin = Pool(1), time.monotonic()
    started(pool, command)
    found: list[Any] = []
    while not found:
        found = pool.receive(0.05)
        assert time.monotonic() - begin < 60
    assert found == [(5, Died(reason))]
    assert pool.team == []


def test_workers_that_never_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spiritlevel.studies.engines.pool.START", "import os; os._exit(7)")
    said = "10 workers died before they began: the worker ended with the exit code 7"
    with pytest.raises(SpiritlevelError, match=said):
        tiny.made().run(tmp_path / "s.db", engine="pool", workers=2)
    with Store(tmp_path / "s.db") as store:
        assert store.networks() == []
        assert store.status().claims == ()
