"""The plan of a study and what is computed of it: a changed definition is a new run."""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from spiritlevel import SpiritlevelError
from spiritlevel.studies import Store, Study
from spiritlevel.studies.study import Trained

LIGHT: Any = {
    "measures": ("frobenius_distance", "gradient_norm"),
    "representative": (),
    "grid": {"width": [2, 3], "rate": [0.1]},
    "seeds": 2,
    "settings": {"tol": 0.1},
}


def light(**changes: Any) -> Study:
    return tiny.made(**{**LIGHT, **changes})


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINY_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def trainings(log: Path) -> list[str]:
    """width rate seed, in the order of time."""
    return [line.rpartition(" ")[0] for line in log.read_text().splitlines()]


# The plan -----------------------------------------------------------------------------------------


def test_the_plan() -> None:
    study = light(grid={"width": [2, 3], "rate": np.array([0.1, 0.5])}, seeds=[7, 1])
    assert study.configurations == (
        {"width": 2, "rate": 0.1},
        {"width": 2, "rate": 0.5},
        {"width": 3, "rate": 0.1},
        {"width": 3, "rate": 0.5},
    )
    runs = study.runs()
    assert [(r.config["width"], r.config["rate"], r.seed) for r in runs[:3]] == [
        *((2, 0.1, 7), (2, 0.1, 1), (2, 0.5, 7)),
    ]
    assert len({run.key for run in runs}) == 8
    assert study.jobs() == [(run,) for run in runs]
    listed = light(grid=list(study.configurations), seeds=[7, 1])
    assert [run.key for run in listed.runs()] == [run.key for run in runs]


def test_values_of_several_kinds_are_several_runs() -> None:
    study = light(grid={"x": [1, 1.0, True, "1", 0.0, -0.0]}, seeds=1)
    assert len({run.key for run in study.runs()}) == 6


def test_stacks_are_those_that_may_be_trained_together() -> None:
    options: Any = {"train_many": tiny.train_many, "stack": 3, "seeds": 4}
    study = light(together=lambda config: config["width"], **options)
    assert [[(r.config["width"], r.seed) for r in job] for job in study.jobs()] == [
        [(2, 0), (2, 1), (2, 2)],
        [(2, 3)],
        [(3, 0), (3, 1), (3, 2)],
        [(3, 3)],
    ]
    assert [len(job) for job in light(**options).jobs()] == [3, 3, 2]
    with pytest.raises(SpiritlevelError, match=r"together returned \[2\].*: return a number"):
        light(together=lambda config: [config["width"]], **options).jobs()


def test_stacks_that_are_full_stay_when_seeds_are_added(tmp_path: Path, log: Path) -> None:
    """One that is not yet full is trained again with them, since a network may depend on others."""
    grid = {"width": [2, 3], "rate": [0.1, 0.5]}
    options: Any = {"grid": grid, "train_many": tiny.train_many, "measures": []}
    for size, again in ((2, 0), (4, 0), (3, 2), (64, 8)):
        before, after = (light(seeds=n, stack=size, **options) for n in (2, 3))
        kept = [job for job in before.jobs() if job in after.jobs()]
        assert sum(map(len, kept)) == 8 - again
        path = tmp_path / f"{size}.db"
        before.run(path).close()
        log.unlink()
        after.run(path).close()
        assert len(trainings(log)) == 4 + again
    assert [r.seed for job in after.jobs() for r in job] == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": {}}, "grid is empty: give every axis a value"),
        ({"grid": {"width": []}}, "grid is empty"),
        ({"grid": {"width": 3}}, "the axis 'width' of grid is 3: give a list"),
        ({"grid": {"width": [None]}}, "'width': None; give names with numbers, texts or booleans"),
        ({"grid": {"width": [float("nan")]}}, "'width': nan; give a finite number"),
        ({"grid": {"width": [2, 2]}}, "twice, at 0 and 1: leave one out"),
        ({"grid": [{"a": 1}, {"b": 2}]}, "{'b': 2} without 'a', which others have: give all of"),
        ({"grid": [{"a": 1}, {"b": 2, "a": 1}]}, "{'a': 1} without 'b', which others have"),
        ({"grid": "width"}, "grid is a str; give axes"),
        ({"grid": [3]}, "a configuration of grid is a int; give a dict"),
        ({"seeds": 0}, "seeds=0: give a whole number of at least 1"),
        ({"seeds": True}, "seeds=True: give a whole number"),
        ({"seeds": []}, "give at least one, and each once"),
        ({"seeds": [1, 1]}, "give at least one, and each once"),
        ({"seeds": [-1]}, "a seed of seeds=-1: give a whole number of at least 0"),
        ({"seeds": [2**63]}, "seeds has 9223372036854775808: give whole numbers up to"),
        ({"train": 3}, "train is a int; give a function"),
        ({"train": lambda config, seed: 0}, 'train is no function .* or give version="1"'),
        ({"train": functools.partial(tiny.train)}, 'train is no function .* or give version="1"'),
        ({"measures": "loss"}, r"measures is 'loss'; give a list of names: \['loss'\]"),
        ({"measures": ["los"]}, "los"),
        ({"settings": {"tolerance": 1}}, "a name in settings='tolerance' is not known"),
        ({"settings": {"tol": float("inf")}}, r"settings\['tol'\]=inf: give a finite number"),
        ({"settings": {"seed": [1]}}, r"settings\['seed'\]=\[1\]: give a finite number"),
        ({"stack": 0}, "stack=0"),
        ({"name": 3}, "name is a int; give a text"),
        ({"name": "\ud800"}, r"name is '\\ud800', which no file takes"),
        ({"grid": {"\udcff": [1]}}, r"an axis of grid is '\\udcff', which no file takes"),
        ({"keep_weights": 1}, "keep_weights=1 is not known"),
    ],
)
def test_errors_name_the_fix(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpiritlevelError, match=said):
        light(**changes).runs()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "cloud"}, "engine='cloud' is not known; choose one of 'here', 'pool', 'ray'"),
        ({"workers": 2}, 'workers=2 needs engine="pool" or engine="ray"'),
        ({"workers": 0, "engine": "pool"}, "workers=0: give a whole number of at least 1"),
        ({"ray_address": "auto"}, 'ray_address needs engine="ray"'),
        ({"resources": {"num_gpus": 1}}, 'resources needs engine="ray"'),
        ({"engine": "ray", "resources": {"gpu": 1}}, "a name in resources='gpu' is not known"),
        ({"retry": 1}, "retry=1 is not known"),
    ],
)
def test_nothing_is_made_where_options_are_wrong(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpiritlevelError, match=said):
        light().run(tmp_path / "s.db", **options)
    with pytest.raises(SpiritlevelError, match="train is no function at the top level of a file"):
        light(train=lambda config, seed: tiny.train(config, seed + 1)).run(tmp_path / "s.db")
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_in_settings_are_numbers() -> None:
    labels = [
        s.wanted["gradient_norm"].definition
        for s in (
            light(settings={"tol": np.float64(0.1), "budget": np.int64(3)}),
            light(settings={"tol": 0.1, "budget": 3}),
            light(settings={"tol": 0.1, "budget": 4}),
        )
    ]
    assert labels[0] == labels[1] != labels[2]


# Only what is missing -----------------------------------------------------------------------------


def test_only_what_is_missing_is_computed(tmp_path: Path, log: Path) -> None:
    path = tmp_path / "s.db"
    light(seeds=1, measures=["gradient_norm"]).run(path).close()
    assert trainings(log) == ["2 0.1 0", "3 0.1 0"]
    before = tiny.rows(path)
    light(seeds=1, measures=["gradient_norm"]).run(path).close()
    assert tiny.rows(path) == before
    assert len(trainings(log)) == 2, "nothing is done again"
    light(seeds=2, measures=["gradient_norm"]).run(path).close()
    assert trainings(log)[2:] == ["2 0.1 1", "3 0.1 1"], "only the new seeds"
    light(seeds=2).run(path).close()
    assert len(trainings(log)) == 8, "each once more, for the measure"
    assert set(before["measures"]) < set(tiny.rows(path)["measures"])
    light().run(tmp_path / "whole.db").close()
    assert tiny.rows(path) == tiny.rows(tmp_path / "whole.db")


def test_measures_are_added_from_the_weights(tmp_path: Path, log: Path) -> None:
    """With all that they ask for: the weights before training and the losses."""
    path, options = tmp_path / "s.db", {"keep_weights": True, "objective": tiny.objective}
    light(measures=["gradient_norm"], **options).run(path).close()
    added: Any = {"measures": [*tiny.MEASURES, "gradient_norm", "steps_to_loss(level=0.72)"]}
    light(**added, **options).run(path).close()
    assert len(trainings(log)) == 4, "none is repeated"
    light(**added, **options).run(tmp_path / "whole.db").close()
    assert tiny.rows(path) == tiny.rows(tmp_path / "whole.db")


def _no_objective(config: Any, seed: int) -> Any:
    raise RuntimeError("no such network")


def _other_objective(config: Any, seed: int) -> Any:
    return tiny.objective({"width": 4}, seed)


def test_weights_that_do_not_help(tmp_path: Path, log: Path) -> None:
    path, kept = tmp_path / "s.db", {"keep_weights": True}
    light(measures=[], seeds=1, **kept).run(path).close()
    files = sorted((tmp_path / "s.db.weights").iterdir())
    assert [file.suffix for file in files] == [".safetensors"] * 2
    files[0].write_bytes(b"broken")
    files[1].unlink()
    light(measures=["gradient_norm"], seeds=1, objective=tiny.objective).run(path).close()
    assert len(trainings(log)) == 4, "a broken file and one that is gone: trained again"
    light(measures=[], **kept).run(path).close()
    light(measures=["loss"], objective=_other_objective).run(path).close()
    assert len(trainings(log)) == 10, "of another network: trained again"
    with light(measures=["parameter_norm"], objective=_no_objective).run(path) as store:
        refused = store.status(light(measures=["parameter_norm"])).refused["parameter_norm"]
        assert list(refused) == [
            "RuntimeError: no such network (test_study.py, line "
            f"{_no_objective.__code__.co_firstlineno + 1})"
        ]
        assert len(store.status().failed) == 0


def _stacked(pairs: Any) -> list[Trained | Exception]:
    found: list[Any] = tiny.train_many(pairs)
    bad = [config["width"] == 2 and seed == 1 for config, seed in pairs]
    return [RuntimeError("diverged") if b else one for one, b in zip(found, bad, strict=True)]


def test_a_stack_in_which_one_failed_is_measured_from_its_weights(
    tmp_path: Path, log: Path
) -> None:
    options: Any = {"train_many": _stacked, "keep_weights": True, "objective": tiny.objective}
    light(measures=["gradient_norm"], **options).run(tmp_path / "s.db").close()
    with light(measures=["gradient_norm", "loss"], **options).run(tmp_path / "s.db") as store:
        assert [f.reason for f in store.status().failed] == ["RuntimeError: diverged"]
        assert [list(one.values) for one in store.networks()] == [["gradient_norm", "loss"]] * 3
    assert len(trainings(log)) == 4


def test_what_failed_is_tried_again_when_asked(tmp_path: Path, log: Path) -> None:
    study = light(train=_sick, grid={"width": [2, 3]}, seeds=1)
    os.environ["SICK"] = "3"
    try:
        with study.run(tmp_path / "s.db") as store:
            assert [(f.config["width"], f.reason[:20]) for f in store.status().failed] == [
                (3, "ValueError: sick (te")
            ]
        study.run(tmp_path / "s.db").close()
        assert len(trainings(log)) == 1, "what failed is done"
    finally:
        del os.environ["SICK"]
    study.run(tmp_path / "s.db", retry=True).close()
    assert trainings(log) == ["2 0.1 0", "3 0.1 0"]
    study.run(tmp_path / "whole.db").close()
    assert tiny.rows(tmp_path / "s.db") == tiny.rows(tmp_path / "whole.db")


def _sick(config: Mapping[str, Any], seed: int) -> Trained:
    if os.environ.get("SICK") == str(config["width"]):
        raise ValueError("sick")
    return tiny.train({**config, "rate": 0.1}, seed)


# What train may do --------------------------------------------------------------------------------

SEEN = [0]


def _restless(config: Mapping[str, Any], seed: int) -> Trained:
    """Comes out otherwise every time."""
    SEEN[0] += 1
    one = tiny.train(config, seed)
    return replace(one, numbers={**one.numbers, "gap": float(SEEN[0])})


def test_a_training_that_comes_out_otherwise_is_not_measured(tmp_path: Path) -> None:
    light(train=_restless, measures=[]).run(tmp_path / "s.db").close()
    study = light(train=_restless, measures=["gradient_norm"])
    with study.run(tmp_path / "s.db") as store:
        [(reason, count), *_] = store.status(study).refused["gradient_norm"].items()
        assert count == 1
        assert reason.startswith("the training was repeated for this measure, and gap is 5, not 1")


@pytest.mark.parametrize("least", [1e-9, 9e-4, 0.15, 3e5])
def test_what_is_little_of_a_number_depends_on_the_number(tmp_path: Path, least: float) -> None:
    """A thousandth of it may be rounding, and more is another network, however little that is."""
    for place, (now, same) in enumerate(
        [(least * 1.0009, True), (least * 1.0011, False), (least / 2, False), (0.0, False)]
    ):
        given = iter([least, now])

        def train(config: Any, seed: int, given: Any = given) -> Trained:
            return replace(tiny.train(config, seed), numbers={"gap": next(given)})

        one: Any = {"grid": {"width": [2], "rate": [0.1]}, "seeds": 1, "version": "1"}
        light(train=train, measures=[], **one).run(tmp_path / f"{place}.db").close()
        study = light(train=train, measures=["gradient_norm"], **one)
        with study.run(tmp_path / f"{place}.db") as store:
            assert (not store.status(study).refused) == same


def _reckless(config: Mapping[str, Any], seed: int) -> Trained:
    """Leaves a mess behind, and trains in what it finds."""
    draws = torch.rand(()).item() + random.random() + float(np.random.rand())  # noqa: NPY002
    dtype = float(torch.get_default_dtype() is torch.float64)
    dtype += 2 * (torch.get_float32_matmul_precision() == "high")
    one = tiny.train(config, seed)
    numbers = {**one.numbers, "draws": draws, "dtype": dtype, "threads": torch.get_num_threads()}
    if config["width"] == 2:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        torch.manual_seed(0)
        torch.set_grad_enabled(False)
        torch.set_default_device("meta")
        torch.set_float32_matmul_precision("high")
    return replace(one, numbers=numbers)


def test_a_run_does_not_depend_on_those_before(tmp_path: Path) -> None:
    grid = {"width": [2, 3], "rate": [0.1]}
    state = torch.get_rng_state(), torch.get_num_threads()
    before = torch.get_default_device().type, torch.get_float32_matmul_precision()
    light(train=_reckless, grid=grid).run(tmp_path / "both.db").close()
    for width in (3, 2):
        one = light(train=_reckless, grid={"width": [width], "rate": [0.1]})
        one.run(tmp_path / "apart.db").close()
    assert tiny.rows(tmp_path / "both.db") == tiny.rows(tmp_path / "apart.db")
    assert torch.get_default_dtype() is torch.float32
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (state[1], True)
    assert (torch.get_default_device().type, torch.get_float32_matmul_precision()) == before


KINDS = {
    "exit": SystemExit(3),
    "cancelled": asyncio.CancelledError("late"),
    "memory": MemoryError(),
    "plain": RuntimeError("a\nb"),
}


def _raising(config: Mapping[str, Any], seed: int) -> Any:
    if config["kind"] in KINDS:
        raise KINDS[config["kind"]]
    if config["kind"] == "interrupt":
        raise KeyboardInterrupt
    one = tiny.train({"width": 2, "rate": 0.1}, seed)
    answers: dict[str, Any] = {
        "none": None,
        "outcome": replace(one, numbers={"loss": 1.0}),
        "text": replace(one, numbers={"gap": "1"}),
        "losses": replace(one, losses=[]),
        "tensor": replace(one, numbers={"gap": torch.tensor(0.5)}),
    }
    return answers[config["kind"]]


def test_a_run_that_fails_is_a_row_with_its_error(tmp_path: Path) -> None:
    kinds = [*KINDS, "none", "outcome", "text", "losses", "tensor"]
    study = light(train=_raising, grid={"kind": kinds}, seeds=1, measures=["gradient_norm"])
    with study.run(tmp_path / "s.db") as store:
        told = {f.config["kind"]: f.reason for f in store.status(study).failed}
        done = store.networks(study)
    assert [(one.config, one.numbers) for one in done] == [({"kind": "tensor"}, {"gap": 0.5})]
    line = _raising.__code__.co_firstlineno + 2
    assert told == {
        "exit": f"SystemExit: 3 (test_study.py, line {line})",
        "cancelled": f"CancelledError: late (test_study.py, line {line})",
        "memory": f"MemoryError: no message (test_study.py, line {line})",
        "plain": f"RuntimeError: a (test_study.py, line {line})",
        "none": "train returned None: return Trained(objective, ..)",
        "outcome": "the numbers of train have no 'gap', the outcome of the study; there are: loss",
        "text": "train returned numbers={'gap': '1'}: give numbers",
        "losses": "losses holds none; give the training loss of every step, a list",
    }


def _failing(config: Mapping[str, Any], seed: int) -> Any:
    raise ValueError(f"boom {config['width']}")


def test_where_all_fails_that_is_said_with_the_first_error(tmp_path: Path) -> None:
    study = Study(name="bad", grid={"width": [2, 4]}, train=_failing, measures=["loss"], seeds=1)
    said = r"all 2 runs failed, the first, {'width': 2} seed 0, of ValueError: boom 2 \(test_study"
    with pytest.warns(UserWarning, match=said) as told:
        store = study.run(tmp_path / "s.db")
    assert told[0].filename == __file__
    with store, pytest.raises(SpiritlevelError, match=said):
        study.findings(store)


def test_an_interrupt_inside_a_training_keeps_what_is_done(tmp_path: Path) -> None:
    study = light(train=_raising, grid={"kind": ["tensor", "plain", "interrupt"]}, seeds=1)
    said = r"^1 of 3 runs are done, 1 failed, and kept in .*s\.db: run again to go on$"
    with pytest.raises(KeyboardInterrupt, match=said):
        study.run(tmp_path / "s.db")
    with Store(tmp_path / "s.db") as store:
        assert store.status().claims == ()
        assert store.counts(study) == (1, 1)
