"""Errors, numbers and names of any kind cost one row or one line: never the study, never a row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import spiritlevel as sl
from spiritlevel import Estimate, SpiritlevelError
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results.history import History
from spiritlevel.results.study import Network
from spiritlevel.studies import Store, Study, analyse, read_csv
from spiritlevel.studies.exports import to_csv
from spiritlevel.studies.messages import Finished, Measured

LATIN = os.fsdecode(b"/data/\xff.npy")  # the name of a file that is no UTF-8


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not yet")


class Torn(Mapping[str, float]):
    def __getitem__(self, name: str) -> float:
        raise RuntimeError("torn")

    def __iter__(self) -> Iterator[str]:
        yield "gap"

    def __len__(self) -> int:
        return 1


def train(config: Mapping[str, Any], seed: int) -> Any:
    kind, one = config["kind"], tiny.train({"width": 2, "rate": 0.1}, seed)
    raised: dict[str, BaseException] = {
        "mute": Mute(),
        "latin": ValueError(LATIN),
        "ours": SpiritlevelError(f"no file {LATIN}"),
    }
    if kind in raised:
        raise raised[kind]
    history: Any = object.__new__(History)  # without its fields
    answers: dict[str, Any] = {
        "huge": replace(one, numbers={"gap": 10**400}),
        "torn": replace(one, numbers=Torn()),
        "shy": Shy(),
        "history": replace(one, history=history),
        "init": replace(one, init={"nothing": torch.zeros(2)}),
    }
    return answers.get(kind, one)


KINDS = {
    "mute": "Mute: no message (test_bad_answers.py",
    "latin": "ValueError: /data/\\udcff.npy (test_bad_answers.py",
    "ours": "no file /data/\\udcff.npy",
    "huge": "train returned numbers=a dict: give numbers",
    "torn": "RuntimeError: torn (test_bad_answers.py",
    "shy": "train returned a Shy: return Trained(objective, ..)",
    "history": "AttributeError: ",
    "init": "",
}


def made(**changes: Any) -> Study:
    given: Any = {"train": train, "grid": {"kind": ["fine"]}, "seeds": 1, "representative": ()}
    return tiny.made(**{"measures": [], "version": "1", **given, **changes})


def test_a_training_that_answers_anything_is_a_row(tmp_path: Path) -> None:
    study = made(grid={"kind": [*KINDS, "fine"]}, measures=["loss"], keep_weights=True)
    with study.run(tmp_path / "s.db") as store:
        told = {f.config["kind"]: f.reason for f in store.status(study).failed}
        done = store.networks(study)
        rows = store.database.connection.execute("SELECT DISTINCT run FROM measures").fetchall()
    assert {kind: told[kind][: len(said)] for kind, said in KINDS.items()} == KINDS
    assert told["init"], "an error, whatever it says"
    assert [(one.config["kind"], list(one.values)) for one in done] == [("fine", ["loss"])]
    assert rows == [(done[0].key,)], "what failed is not measured"


def test_so_it_is_in_a_pool(tmp_path: Path) -> None:
    study = made(grid={"kind": ["mute", "latin", "huge", "fine"]})
    with study.run(tmp_path / "s.db", engine="pool", workers=1) as store:
        assert store.counts(study) == (1, 3)


# Measures -----------------------------------------------------------------------------------------


def _raises(objective: Any) -> Any:
    raise ValueError(LATIN)


SAID: dict[str, tuple[Callable[[Any], Any], str]] = {
    "vector": (lambda o: Estimate(torch.tensor([1.0, 2.0])), "value=tensor([1., 2.]): give a nu"),  # type: ignore[arg-type]
    "text": (lambda o: Estimate("1.5"), "value='1.5': give a number"),  # type: ignore[arg-type]
    "none": (lambda o: Estimate(None), "value=None: give a number"),  # type: ignore[arg-type]
    "huge": (lambda o: Estimate(10**400), "Estimate with value=a int: give a number"),
    "width": (lambda o: Estimate(1.0, stderr="small"), "stderr='small': give a number"),  # type: ignore[arg-type]
    "price": (lambda o: Estimate(1.0, matvecs=None), "matvecs=None: give a number"),  # type: ignore[arg-type]
    "status": (lambda o: Estimate(1.0, status="exact"), "status='exact': give a Status"),  # type: ignore[arg-type]
    "remedy": (lambda o: Estimate(1.0, remedy=None), "remedy=None: give a text, or leave it out"),  # type: ignore[arg-type]
    "latin": (_raises, r"ValueError: /data/\udcff.npy (test_bad_answers.py"),
    "shy": (lambda o: Shy(), "returned a Shy; give a function that returns a number"),
}
FINE: dict[str, tuple[Any, float]] = {
    "large": (Estimate(2**70), 2.0**70),
    "tensor": (Estimate(torch.tensor(1.5)), 1.5),  # type: ignore[arg-type]
    "array": (Estimate(np.float32(0.5), stderr=np.float64(0.25)), 0.5),  # type: ignore[arg-type]
    "remedies": (Estimate(2.0, remedy=LATIN), 2.0),
}


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measures that answer anything, for one test."""
    before = dict(MEASURES)
    for name, (function, _) in SAID.items():
        sl.register(f"my_{name}")(function)
    for name, (found, _) in FINE.items():
        sl.register(f"my_{name}")(lambda objective, found=found: found)
    added = {name: entry for name, entry in MEASURES.items() if name not in before}
    for name in added:
        del MEASURES[name]
    for name, entry in added.items():
        monkeypatch.setitem(MEASURES, name, entry)
    return list(added)


def test_a_measure_that_answers_anything_is_a_row(tmp_path: Path, own: list[str]) -> None:
    study = made(measures=own)
    with study.run(tmp_path / "s.db") as store:
        told, [one] = store.status(study), store.networks(study)
    assert told.missing == {}, "no row is dropped"
    for name, (_, said) in SAID.items():
        [reason] = told.refused[f"my_{name}"]
        assert said in reason
    assert {name: one.values[f"my_{name}"] for name in FINE} == {k: v for k, (_, v) in FINE.items()}
    assert one.errors["my_array"] == 0.25


def test_so_it_is_outside_of_studies(own: list[str]) -> None:
    objective = tiny.objective({"width": 2}, 0)
    with pytest.raises(
        SpiritlevelError, match="my_status returned an Estimate with status='exact'"
    ):
        sl.measure(objective, ["my_status"])


def test_names_of_measures_can_be_written() -> None:
    with pytest.raises(SpiritlevelError, match=r"name='.*' cannot be written to a file: choose"):
        sl.register(LATIN)


def _nothing(config: Mapping[str, Any], seed: int) -> Any:
    return None


def test_an_objective_that_is_none(tmp_path: Path) -> None:
    made(keep_weights=True).run(tmp_path / "s.db").close()
    study = made(keep_weights=True, objective=_nothing, measures=["loss"])
    with study.run(tmp_path / "s.db") as store:
        assert store.status(study).refused == {
            "loss": {"objective returned None: return the Objective of a configuration": 1}
        }


# The store ----------------------------------------------------------------------------------------


def test_only_a_row_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """A row that the file does not take is an error, not a row less."""
    study = made(measures=["loss"])
    [run] = study.runs()
    lame: Any = None
    with Store(tmp_path / "s.db", create=True) as store:
        wrong = Measured(run.key, "loss", {"loss": Estimate(1.0, remedy=lame)})
        said = "NOT NULL constraint failed"
        with pytest.raises(SpiritlevelError, match=said), store.database.writing():
            store.add_measure(study, wrong)
        with pytest.raises(SpiritlevelError, match=said), store.database.writing():
            store.add_run(study, Finished(replace(run, seed=lame), numbers={}))
        for value in (1.0, 2.0):
            with store.database.writing():
                new = store.add_run(study, Finished(run, numbers={"gap": value}))
                store.add_measure(study, Measured(run.key, "loss", {"loss": Estimate(value)}))
            assert new is (value == 1.0)
        [one] = store.networks(study)
    assert (one.numbers, one.values) == ({"gap": 1.0}, {"loss": 1.0}), "what was there first"


def test_names_that_a_disk_does_not_take(tmp_path: Path) -> None:
    """Refused before anything is made; the longest that is taken has room for what is beside it."""
    for size in (248, 255, 256, 5000):
        with pytest.raises(SpiritlevelError, match=rf"a name of {size} bytes: give one of at most"):
            made().run(tmp_path / ("ü" + "x" * (size - 2)))
        with pytest.raises(SpiritlevelError, match=r"name|no such file"):
            Store(tmp_path / ("x" * size))
    with pytest.raises(SpiritlevelError, match=r"store=.*: .*too long; give another name"):
        made().run(tmp_path / ("x" * 300) / "s.db")
    with pytest.raises(SpiritlevelError, match="give a file in a folder that there is"):
        Store("a\0b")
    assert not list(tmp_path.iterdir())
    longest = tmp_path / ("x" * 247)
    made(keep_weights=True).run(longest).close()
    with Store(longest) as store:
        assert len(store.networks()) == 1


def test_a_store_that_was_closed(tmp_path: Path) -> None:
    study = made()
    with study.run(tmp_path / "s.db") as store:
        pass
    for ask in (
        store.status,
        store.networks,
        lambda: store.status(study),
        lambda: study.run(store),
    ):
        with pytest.raises(
            SpiritlevelError, match=r"s\.db' is closed: open it again by Store\(path"
        ):
            ask()


# Networks of one's own ----------------------------------------------------------------------------


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path: Path) -> None:
    """In the page, in JSON and in every table."""
    nets = [
        Network(
            *(str(i), {"a": np.int64(i), "b": np.bool_(i % 2)}, np.int64(3)),  # type: ignore[arg-type]
            *({"gap": np.float64(i)}, {"m": torch.tensor(float(i % 7))}, {"m": np.float32(0.5)}),  # type: ignore[arg-type]
        )
        for i in range(12)
    ]
    found = analyse(nets, resamples=50)
    sl.write_report(found, str(tmp_path / "page.html"))
    found.to_json(tmp_path / "findings.json")
    to_csv(nets, tmp_path / "nets.csv")
    plain = [
        Network(
            str(i), {"a": i, "b": bool(i % 2)}, 3, {"gap": float(i)}, {"m": i % 7.0}, {"m": 0.5}
        )
        for i in range(12)
    ]
    assert repr(nets) == repr(plain)
    assert repr(read_csv(tmp_path / "nets.csv")) == repr(plain)
    again: Any = sl.load(tmp_path / "findings.json")
    assert again.networks == tuple(plain)
