"""A small network that is trained while it is watched."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def data(n: int = 24) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=draws, dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()


@torch.no_grad()
def plain_loss(model: nn.Module) -> float:
    x, y = data()
    return float(F.cross_entropy(model(x), y))


def descend(model: nn.Module, steps: int, rate: float = 0.2) -> None:
    x, y = data()
    for _ in range(steps):
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(rate * g)


def dense(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """By torch alone."""
    names = [n for n, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def loss(vector: Tensor) -> Tensor:
        parts = vector.split([s.numel() for s in shapes])
        point = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, point, (x,)), y)

    return torch.func.hessian(loss)(flat)
