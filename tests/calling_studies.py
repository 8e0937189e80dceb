"""One valid call of every function of studies, and of what trains many networks at once."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
import studied
from cases import labels, randn
from spiritlevel.studies import Store, Study, Trained, recipes
from spiritlevel.studies.exports import to_csv
from sweeping import NOBODY

CONFIG: dict[str, Any] = {"data": "digits"}
SMALL: dict[str, Any] = {**CONFIG, "width": 2, "depth": 1, "epochs": 1, "examples": 20}
FILE = """
from calling_studies import study
small = study()
"""
# They take what the library makes, or records of it: a study looks at them when they come.
RESULTS = ("Findings", "studies.Trained")
INSIDE = (
    *(f"Store.{name}" for name in "task with_weights add_run add_measure keep_weights".split()),
    *("Store.forget_failures", "Store.counts", "Findings.below"),
)


# Values that the types and names call wrong and that are right.
RIGHT: dict[tuple[str, str], Callable[[Any], bool]] = {
    **{
        ("studies.Study", name): lambda v: type(v) is list and not v
        for name in ("measures", "representative")
    },
    **{("studies.Study", name): lambda v: isinstance(v, str) for name in ("outcome", "version")},
    ("studies.Study", "settings"): lambda v: v == {},
    # known when it is done
    ("studies.Study", "controls"): lambda v: v in ([], [NOBODY], NOBODY, {NOBODY: 3}),
    ("studies.analyse", "controls"): lambda v: type(v) is list and not v,
    ("studies.analyse", "failed"): lambda v: type(v) is int and v == 0,
    ("studies.analyse", "where"): lambda v: v == {},
    **{
        ("studies.recipes.Recipe", name): lambda v: type(v) is int and v == 0
        for name in "examples labels rate times batch stop patience".split()
    },
    **{
        (f"studies.recipes.{name}", "config"): lambda v: v == {}
        for name in ("recipe", "train", "together")
    },
    ("training.fit_many", "lr"): lambda v: type(v) is int and v == 0,
    ("training.fit_many", "stop"): lambda v: type(v) is int and v in (0, -1),
    ("Study.run", "store"): lambda v: v == NOBODY,  # a new one
    ("Study.run", "resources"): lambda v: v == {},
}
# Needs what is not installed everywhere.
NOT_MADE = {"Store.to_dataframe", "Store.to_parquet"}


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(2, 2)


def train(config: Any, seed: int) -> Trained:
    torch.manual_seed(seed + config["width"])
    objective = sl.Objective(
        nn.Linear(2, 2), (randn(6, 2).float(), labels(6, classes=2)), F.cross_entropy
    )
    return Trained(objective, {"gap": config["width"] + seed})


def study() -> Study:
    return Study("small", {"width": [1, 2, 3]}, train, ["parameter_norm"], seeds=1)


@functools.cache
def folder() -> Path:
    """With a study in a file, its store and its table."""
    found = Path(tempfile.mkdtemp())
    (found / "small.py").write_text(FILE, encoding="utf-8")
    study().run(found / "small.db").close()
    to_csv(studied.networks(), found / "networks.csv")
    return found


def instances() -> dict[str, Any]:
    return {"Findings": studied.full(), "Store": Store(folder() / "small.db"), "Study": study()}


def calls() -> dict[str, dict[str, Any]]:
    made = studied.networks(seeds=2)
    x, y = ([one for n in made for one in part(n)] for part in (_sharpness, _gap))
    rows, pair = {"measure": x, "gap": y, "configs": [n.config for n in made]}, {"x": x, "y": y}
    clusters = {"clusters": [n.key.rpartition("-")[0] for n in made], "resamples": 10}
    data = (randn(6, 2).float(), labels(6, classes=2))
    functions: dict[str, dict[str, Any]] = {
        "Study": {"name": "small", "grid": {"width": [1, 2]}, "train": train},
        "Store": {"path": folder() / "small.db"},
        "analyse": {"networks": made, "resamples": 10},
        "conditional_information": rows,
        "granulated": rows,
        "sign_error": {**rows, "least": 1.0},
        "kendall": pair,
        "kendall_interval": {**pair, **clusters},
        "partial_kendall": {
            **{**pair, **clusters},
            "given": {"width": [n.config["width"] for n in made]},
        },
        "permutation_test": {**pair, "clusters": clusters["clusters"], "draws": 10},
        "holm": {"ps": [0.1, 0.2]},
        "load_study": {"path": folder() / "small.py"},
        "read_csv": {"path": folder() / "networks.csv"},
        "recipes.Recipe": {},
        "recipes.recipe": {"config": CONFIG},
        "recipes.grid": {},
        "recipes.configurations": {},
        "recipes.device": {},
        "recipes.network": {"one": recipes.Recipe()},
        "recipes.train": {"config": SMALL},
        "recipes.together": {"config": SMALL},
        "recipes.train_many": {"tasks": [(SMALL, 0)]},
    }
    return {
        **{f"studies.{name}": given for name, given in functions.items()},
        "training.fit_many": {
            **{"models": [net(0), net(1)], "data": data, "loss": F.cross_entropy},
            **{"lr": 0.1, "epochs": 1},
        },
        "Findings.__getitem__": {"name": "hessian_trace"},
        "Findings.plot": {},
        "Findings.scatter": {"measure": "hessian_trace"},
        **{f"Store.{name}": {} for name in ("networks", "status", "to_dataframe")},
        "Store.to_csv": {"path": "/dev/null"},
        "Store.to_parquet": {"path": "/dev/null"},
        "Store.history": {"key": study().runs()[0].key},
        "Study.run": {"store": folder() / "small.db"},
        "Study.findings": {"store": folder() / "small.db"},
    }


def _sharpness(network: Any) -> list[float]:
    return [network.values["hessian_trace"]]


def _gap(network: Any) -> list[float]:
    return [network.numbers["gap"]]
