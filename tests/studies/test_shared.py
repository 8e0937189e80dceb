"""What workers share with others: measures of the user's own, and the memory of a GPU."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import spiritlevel as sl
from spiritlevel.studies import load_study
from spiritlevel.studies.engines.pool import START
from spiritlevel.studies.sources import packed

OWN = """
import spiritlevel as sl
import tiny

if "own_sum" not in sl.MEASURES:
    @sl.register("own_sum")
    def own_sum(objective):
        return float(objective.vector.sum())

study = tiny.made(measures=["own_sum"], representative=(), name="own")
"""


@pytest.fixture
def registry() -> Iterator[None]:
    """As it was, afterwards."""
    yield
    sl.MEASURES.pop("own_sum", None)
    sys.modules.pop("ownfile", None)


@pytest.mark.usefixtures("registry")
def test_a_worker_knows_the_measures_of_the_file(tmp_path: Path) -> None:
    """Its training may come from elsewhere, so that only the measure asks for the file."""
    (tmp_path / "ownfile.py").write_text(OWN, encoding="utf-8")
    study = load_study(tmp_path / "ownfile.py")
    assert "ownfile" in packed(study).modules  # as it is now, whatever is written to it later
    found = []
    for engine in ("here", "pool"):
        with study.run(tmp_path / f"{engine}.db", engine=engine) as store:
            found.append([one.values["own_sum"] for one in store.networks(study)])
    assert found[0] == found[1]
    assert len(set(found[0])) == len(study.runs())


class Lacking:
    """Raises what torch raises where a GPU is full, so many times."""

    def __init__(self, times: int) -> None:
        self.left, self.calls = times, 0

    def __call__(self) -> None:
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


def trained_when_there_is_room(lacking: Lacking) -> Any:
    def train(config: Any, seed: int) -> Any:
        lacking()
        return tiny.train(config, seed)

    return train


def small(**changes: Any) -> Any:
    given = {"grid": {"width": [2], "rate": [0.1]}, "seeds": 1, "representative": ()}
    return tiny.made(**{**given, "version": "1", **changes})


def test_a_training_that_lacked_memory_is_tried_again(tmp_path: Path) -> None:
    """Others were at work on the GPU: twice there was no room, then there was."""
    lacking = Lacking(2)
    study = small(train=trained_when_there_is_room(lacking))
    with study.run(tmp_path / "a.db") as store:
        assert store.counts(study) == (1, 0)
        assert lacking.calls == 3


def test_a_training_that_never_fits_is_a_row_with_its_error(tmp_path: Path) -> None:
    lacking = Lacking(100)
    study = small(train=trained_when_there_is_room(lacking))
    with pytest.warns(UserWarning, match="all 1 runs failed, the first, "):
        store = study.run(tmp_path / "a.db")
    with store:
        assert store.counts(study) == (0, 1)
        [failure] = store.status(study).failed
        assert "CUDA out of memory" in failure.reason
        assert failure.reason.endswith("3 times")
        assert lacking.calls == 3


@pytest.mark.parametrize("times", [1, 2])
def test_a_measure_that_lacked_memory_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """After all others; and no training is repeated for it."""
    lacking, order = Lacking(times), []

    def greedy(objective: sl.Objective) -> float:
        order.append("greedy")
        lacking()
        return 1.0

    def modest(objective: sl.Objective) -> float:
        order.append("modest")
        return 2.0

    for function in (greedy, modest):
        sl.register(function.__name__)(function)
        monkeypatch.setitem(sl.MEASURES, function.__name__, sl.MEASURES.pop(function.__name__))
    trainings = Lacking(0)
    study = small(train=trained_when_there_is_room(trainings), measures=["greedy", "modest"])
    with study.run(tmp_path / "a.db") as store:
        [network] = store.networks(study)
        refused = store.status(study).refused
    assert order == ["greedy", "modest", "greedy"]
    assert trainings.calls == 1
    assert network.values["modest"] == 2.0
    if times == 1:
        assert network.values["greedy"] == 1.0
        assert refused == {}
    else:
        [reason] = refused["greedy"]
        assert "CUDA out of memory" in reason


def test_a_worker_that_cannot_import_ends_quietly() -> None:
    """No word of the interpreter about the thread that still listens to the driver."""
    source = packed(tiny.made())
    file, package, _ = source.modules["tiny"]
    broken = replace(source, modules={"tiny": (file, package, "1 / 0")})
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    paths = os.pathsep.join(place for place in sys.path if place)
    with subprocess.Popen(
        [sys.executable, "-c", START, "1"], env={**os.environ, "PYTHONPATH": paths}, **pipes
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        pickle.dump(broken, worker.stdin)
        worker.stdin.flush()
        assert "ZeroDivisionError" in pickle.load(worker.stdout).reason
        assert worker.wait(60) == 0
        assert worker.stderr.read() == b""
