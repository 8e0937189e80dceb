"""Small networks and their slopes: what sharpness-aware steps are held to."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import labels, randn

RATE = 0.3
X, Y = randn(12, 4), labels(12)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def convolutional(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 3)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), *layers).double()


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def slope(model: nn.Module, at: Tensor, x: Tensor = X, y: Tensor = Y) -> Tensor:
    """The gradient of the mean loss at a point, apart from any optimizer."""
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([shape.numel() for shape in shapes.values()])
        params = {n: p.view(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, params, (x,)), y)

    return torch.func.grad(loss)(at)


def closure_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor = X, y: Tensor = Y
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure
