"""Five small trained networks, in float64: what every measure is held to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn

STEPS, RATE = 200, 0.01
LOSSES = [2 * 0.95**step for step in range(STEPS)]  # of a training that got further
NO_EPS = 1e-12  # of norms: what they add would have to move along with a rescaling


@dataclass(frozen=True)
class Trained:
    """A network near a minimum, its data, and how it got there. `head` is its last layer."""

    net: nn.Module
    x: Tensor
    y: Tensor
    head: str
    init: dict[str, Tensor]

    def objective(self, microbatch: int = 40, dtype: torch.dtype | None = None) -> sl.Objective:
        data = (self.x, self.y)
        return sl.Objective(self.net, data, F.cross_entropy, microbatch=microbatch, dtype=dtype)


class Residual(nn.Module):
    """Two blocks on one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 4)
        self.up = nn.ModuleList(nn.Linear(4, 5) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(5, 4) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        return self.head(torch.relu(x))


class Transformer(nn.Module):
    """One layer of two heads over five tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4, eps=NO_EPS)
        self.attend = nn.Linear(4, 12)  # queries, keys and values in one
        self.mix = nn.Linear(4, 4)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        parts = self.attend(self.norm(x)).chunk(3, -1)
        heads = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(*heads)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3, batch_first=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3, eps=NO_EPS),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "mlp": (_mlp, (5,), "4"),
    "convolutional": (_convolutional, (1, 6, 6), "7"),
    "residual": (Residual, (5,), "head"),
    "transformer": (Transformer, (5, 3), "head"),
    "recurrent": (Recurrent, (4, 3), "head"),
}


@functools.cache
def trained(name: str) -> Trained:
    """Fitted by Adam; BatchNorm learns its statistics on the way and keeps them."""
    make, shape, head = SHAPES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = make().double()
    x, y = randn(40, *shape), labels(40)
    init = {n: p.detach().clone() for n, p in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return Trained(net.eval(), x, y, head, init)
