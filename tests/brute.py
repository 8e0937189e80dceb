"""Networks small enough for brute force over an orbit and a ball."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn


class Product(nn.Module):
    """y = relu(x a) b: one unit, whose orbit is one curve."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([a], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor([1 / a], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x * self.a) * self.b


def product(a: float = 1.0) -> sl.Objective:
    x = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)
    return sl.Objective(Product(a), (x, x), F.mse_loss)


def tiny(widths: tuple[int, ...], seed: int = 0, *, bias: bool = True) -> sl.Objective:
    """A net with a few units, some steps down from a random start."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for k in range(len(widths) - 1):
            layers += [nn.Linear(widths[k], widths[k + 1], bias=bias), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).double()
    x, y = randn(20, widths[0], seed=seed), labels(20, classes=widths[-1])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return sl.Objective(net, (x, y), F.cross_entropy)


TINY = {
    "two units": lambda: tiny((3, 2, 2)),
    "four units": lambda: tiny((2, 4, 3), 1),
    "no biases": lambda: tiny((3, 3, 2), 2, bias=False),
    "two layers": lambda: tiny((2, 2, 2, 2), 3),
    "two layers without biases": lambda: tiny((2, 2, 2, 2), 4, bias=False),
}
