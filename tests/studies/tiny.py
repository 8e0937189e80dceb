"""A study of tiny networks, whose trainings leave a line in a log where one is named."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.studies.study import Study, Trained

EXAMPLES = 12
MEASURES = ("hessian_trace", "layer_traces", "frobenius_distance", "steps_to_loss")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    return torch.randn(EXAMPLES, 3, generator=g), torch.randint(0, 2, (EXAMPLES,), generator=g)


def net(config: Mapping[str, Any]) -> nn.Sequential:
    width = config["width"]
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))


def objective(config: Mapping[str, Any], seed: int) -> sl.Objective:
    return sl.Objective(net(config), data(), F.cross_entropy)


def logged(config: Mapping[str, Any], seed: int) -> None:
    """A line is appended whole or not at all, from whatever process."""
    if log := os.environ.get("TINY_LOG"):
        line = f"{config['width']} {config['rate']} {seed} {time.time_ns()}\n"
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line.encode())
        os.close(handle)


def train(config: Mapping[str, Any], seed: int) -> Trained:
    logged(config, seed)
    model, (x, y) = net(config), data()
    init = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=config["rate"]), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    time.sleep(float(os.environ.get("TINY_NAP", "0")))
    numbers = {"gap": model(x).sum().item(), "last": losses[-1]}
    return Trained(sl.Objective(model, (x, y), F.cross_entropy), numbers, init, losses)


def train_many(pairs: Sequence[tuple[Mapping[str, Any], int]]) -> list[Trained]:
    """One after the other, and each a little other for those before it: as a stack may round."""
    found, before = [], 0.0
    for config, seed in pairs:
        torch.manual_seed(seed)
        one = train(config, seed)
        before = before / 2 + one.numbers["gap"]
        found.append(Trained(one.objective, {**one.numbers, "gap": before}))
    return found


def made(**changes: Any) -> Study:
    given: dict[str, Any] = {
        "name": "tiny",
        "grid": {"width": [2, 3], "rate": [0.1, 0.5]},
        "train": train,
        "measures": MEASURES,
        "seeds": 2,
        "representative": ("hessian_trace",),
        "settings": {"tol": 0.1, "rtol": 0.5, "budget": 20},
    }
    return Study(**{**given, **changes})


study = made()


def rows(path: Path) -> dict[str, Any]:
    """Every number of a store but times and places, in an order of its own."""
    with sl.studies.Store(path) as store:
        query = store.database.connection.execute
        runs = query("SELECT key, config, seed, definition, state, error, numbers FROM runs")
        names = "run, label, definition, value, stderr, residual, bound, status, remedy, matvecs"
        measures = query(f"SELECT {names} FROM measures")
        return {
            "runs": sorted(map(repr, runs.fetchall())),
            "measures": sorted(map(repr, measures.fetchall())),
        }
