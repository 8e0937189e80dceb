"""A small network, its data, and a watch that sees the first weight: what trainings are made of."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.base.estimate import Estimate
from spiritlevel.base.tensors import same_tree
from spiritlevel.results.data import plain, read
from spiritlevel.results.history import History, Moment, Reading
from spiritlevel.training.feeding import feed

Optimizer = torch.optim.Optimizer


def net(seed: int = 0, *, noisy: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(6), nn.Dropout(0.3)] if noisy else []
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, 3)).double()


def data(n: int = 22) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    return x, torch.randint(0, 3, (n,), generator=g)


def sgd(model: nn.Module, lr: float = 0.2) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def same(a: nn.Module, b: nn.Module) -> bool:
    return same_tree(a.state_dict(), b.state_dict())


def order(epoch: int, n: int = 22, size: int = 8, seed: int = 0) -> list[Tensor]:
    """Which examples are in the batches of an epoch: their numbers, fed as data."""
    numbers = torch.arange(n)
    one = feed((numbers, numbers), size, seed, lambda t: t)
    return [x for x, _ in one.batches(epoch)]


def first_weight(model: nn.Module) -> float:
    return float(next(iter(model.parameters())).detach().reshape(-1)[0])


class Watching:
    """Every third step, and the last; what it sees is the first weight."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.rates: list[float | None] = []

    def look(
        self, model: nn.Module, *, step: int, rate: float | None = None, now: bool = False
    ) -> Moment | None:
        self.rates.append(rate)
        if step % 3 and not now:
            return None
        reading = Reading("first", Estimate(first_weight(model)))
        self.moments.append(Moment(f"step {step}", step, 0.0, rate, (reading,), 0.5))
        return self.moments[-1]

    def history(self, epochs: Any, **told: Any) -> History:
        watched = sum(moment.seconds for moment in self.moments)
        return History(tuple(epochs), tuple(self.moments), {**told, "watched": watched})  # type: ignore[typeddict-item]

    def state_dict(self) -> dict[str, Any]:
        return {"moments": plain(self.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments = read(list[Moment], state["moments"])


def by_adam(model: nn.Module, x: Tensor, y: Tensor, steps: int = 60, rate: float = 0.05) -> None:
    """A plain loop over all the data."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
