"""Optimizers and schedules by the names that the command knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from spiritlevel import training
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective import Objective
from spiritlevel.training.schedules import RaiseThenDecay


@dataclass(frozen=True)
class Subject:
    """What an optimizer may ask for: the model, its loss over all the data, and a seed."""

    model: nn.Module
    objective: Callable[[], Objective]  # made where it is needed
    seed: int

    @property
    def params(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]


@dataclass(frozen=True)
class Entry:
    """How an optimizer is made, the learning rate if none is given, and its rho if it has one."""

    make: Callable[..., Optimizer]  # (subject, lr=, rho= where it has one)
    rate: float
    rho: float | None = None


SGD: dict[str, Any] = {"momentum": 0.9}

OPTIMIZERS: dict[str, Entry] = {
    "sgd": Entry(lambda s, lr: torch.optim.SGD(s.params, lr=lr, **SGD), 0.1),
    "adam": Entry(lambda s, lr: torch.optim.Adam(s.params, lr=lr), 0.01),
    "adamw": Entry(lambda s, lr: torch.optim.AdamW(s.params, lr=lr), 0.01),
    "sam": Entry(
        lambda s, lr, rho: training.SAM(s.params, rho=rho, model=s.model, lr=lr, **SGD), 0.1, 0.05
    ),
    "asam": Entry(
        lambda s, lr, rho: training.SAM(
            s.params, rho=rho, adaptive="element", model=s.model, lr=lr, **SGD
        ),
        *(0.1, 0.5),
    ),
    "entropy-sgd": Entry(
        # the noise that the paper prints is meant for a sum over all examples
        lambda s, lr: training.EntropySGD(s.params, noise=0.01, model=s.model, seed=s.seed, lr=lr),
        1.0,
    ),
    "sgld": Entry(
        lambda s, lr: training.SGLD(
            s.params, lr=lr, temperature=1 / s.objective().examples, seed=s.seed
        ),
        0.1,
    ),
    "replicated-sgd": Entry(
        lambda s, lr: training.ReplicatedSGD(s.params, seed=s.seed, lr=lr, **SGD), 0.1
    ),
    "flat-minimum-search": Entry(
        lambda s, lr: training.FlatMinimumSearch(
            s.params, weight=1e-5, model=s.model, lr=lr, **SGD
        ),
        0.1,
    ),
    "path-sgd": Entry(lambda s, lr: training.PathSGD(s.params, model=s.model, lr=lr), 0.5),
    "saddle-free-newton": Entry(
        lambda s, lr: training.SaddleFreeNewton(
            s.params, objective=s.objective(), damping=0.1, lr=lr, seed=s.seed
        ),
        1.0,
    ),
}

SCHEDULES: dict[str, Callable[[Optimizer, int], Any]] = {
    "constant": lambda optimizer, epochs: None,
    "cosine": lr_scheduler.CosineAnnealingLR,
    "steps": lambda optimizer, epochs: lr_scheduler.MultiStepLR(
        optimizer, [max(epochs // 2, 1), max(3 * epochs // 4, 2)]
    ),
    "warm-restarts": lambda optimizer, epochs: lr_scheduler.CosineAnnealingWarmRestarts(
        optimizer, max(epochs // 4, 1)
    ),
    "raise-then-decay": lambda optimizer, epochs: RaiseThenDecay(
        optimizer, peak=10, rise=max(epochs // 4, 1), fall=max(epochs // 2, 1), end=0.1
    ),
}


def optimizer_named(
    name: str, subject: Subject, lr: float | None = None, rho: float | None = None
) -> Optimizer:
    """The optimizer of this name, with the rates that it is known for where none is given."""
    entry = OPTIMIZERS.get(name)
    if entry is None:
        raise _unknown("--optimizer", name, OPTIMIZERS)
    if rho is not None and entry.rho is None:
        have = ", ".join(known for known, one in OPTIMIZERS.items() if one.rho is not None)
        raise SpiritlevelError(f"--rho is {rho:g}, but {name} has none; those that do are {have}")
    radius = {} if entry.rho is None else {"rho": entry.rho if rho is None else rho}
    return entry.make(subject, lr=entry.rate if lr is None else lr, **radius)


def schedule_named(name: str, optimizer: Optimizer, epochs: int) -> Any:
    """The schedule of this name over so many epochs; None where the rate stays."""
    if name not in SCHEDULES:
        raise _unknown("--schedule", name, SCHEDULES)
    return SCHEDULES[name](optimizer, epochs)


def _unknown(option: str, name: str, there: Any) -> SpiritlevelError:
    return SpiritlevelError(f"{option} is {name!r}; there are: {', '.join(there)}")
