"""Gradients of single examples and Gauss-Newton diagonals against BackPACK."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, mlp, randn
from peering import peer

backpack = peer("backpack")
extensions = peer("backpack.extensions")

pytestmark = pytest.mark.filterwarnings("ignore")
N = 9


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


MODELS = {"mlp": (mlp, (4,)), "cnn": (convolutional, (1, 6, 6))}


def extended(name: str, *wanted: Any) -> tuple[sl.Objective, list[nn.Parameter]]:
    """Ours, and the parameters with what BackPACK left at them."""
    make, shape = MODELS[name]
    net, x, y = randomized(make()).double(), randn(N, *shape), labels(N)
    model, loss = backpack.extend(deepcopy(net)), backpack.extend(nn.CrossEntropyLoss())
    with backpack.backpack(*wanted):
        loss(model(x), y).backward()
    return sl.Objective(net, (x, y), F.cross_entropy), list(model.parameters())


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


@pytest.mark.parametrize("name", MODELS)
def test_the_variance_of_gradients(name: str) -> None:
    """Theirs is of the summands of the mean, (1/N) g_i: N times as small, N^2 as squares."""
    objective, params = extended(name, extensions.BatchGrad(), extensions.BatchL2Grad())
    rows = N * torch.cat([p.grad_batch.flatten(1) for p in params], 1)  # type: ignore[attr-defined]
    torch.testing.assert_close(objective.per_example_gradients(), rows)
    squares = N**2 * sum(p.batch_l2 for p in params)  # type: ignore[attr-defined]
    variance = float(squares.mean() - flat([p.grad for p in params]).square().sum())  # type: ignore[misc]
    found = sl.MEASURES["gradient_variance"](objective)
    assert found.value == pytest.approx(variance, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_diagonal_of_gauss_newton(name: str) -> None:
    objective, params = extended(name, extensions.DiagGGNExact())
    theirs = flat([p.diag_ggn_exact for p in params])  # type: ignore[attr-defined]
    torch.testing.assert_close(sl.ggn_diagonal(objective).values, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_the_diagonal_of_the_hessian(name: str) -> None:
    objective, params = extended(name, extensions.DiagHessian())
    theirs = flat([p.diag_h for p in params])  # type: ignore[attr-defined]
    ours = sl.hessian(objective, compile=False).dense().diagonal()
    torch.testing.assert_close(ours, theirs)
