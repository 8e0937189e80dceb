"""Curvature that the Gauss-Newton matrix, or a search, does not see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize as quasi_newton
from torch import nn

import spiritlevel as sl
from cases import randn


def test_what_gauss_newton_does_not_see_may_matter_to_the_hessian() -> None:
    """A unit that fires on outliers only, where the Huber loss is linear: G is 0, H is not."""
    net = nn.Sequential(
        nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False), nn.ReLU(),
        nn.Linear(2, 1, bias=False),
    ).double()  # fmt: skip
    weights = [[[1.0, 0.0], [-1.0, 0.3]], [[6.0, 0.3], [0.5, 0.2]], [[1.0, 1.0]]]
    with torch.no_grad():
        for p, values in zip(net.parameters(), weights, strict=True):
            p.copy_(torch.tensor(values))
    near = randn(8, 2, seed=1).abs() * torch.tensor([-1.0, 1.0])
    x = torch.cat([randn(4, 2).abs() + 2, near])
    y = torch.cat([torch.full((4, 1), -50.0).double(), net(near).detach() + 0.1])
    objective = sl.Objective(net, (x, y), F.huber_loss)
    group = sl.symmetries(objective)
    found = sl.orbit.minimum(objective, group, norm="frobenius", operator="hessian")
    dense = sl.hessian(objective).dense()
    exponents = torch.from_numpy(group.matrix(objective.shapes).toarray())

    def norm(t: np.ndarray) -> float:
        d = torch.exp(-exponents @ torch.from_numpy(t))
        return float((d[:, None] * dense * d).norm())

    search = {"method": "Nelder-Mead", "options": {"maxiter": 4000, "fatol": 1e-10, "xatol": 1e-8}}
    best = quasi_newton(norm, np.zeros(group.dim), **search).fun
    assert found.value == pytest.approx(best, rel=1e-4)


class Beside(nn.Module):
    """A linear map beside a rectifier whose two weights are out of balance."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(64, 16, bias=False)
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.first.weight.fill_(0.01)
            self.second.weight.fill_((1.08 - 1e-4) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.plain(x[:, 1:]), self.second(F.relu(self.first(x[:, :1])))], 1)


@pytest.mark.parametrize("seed", range(4))
def test_the_norm_at_the_given_point_may_be_one_that_the_search_has_not_seen(seed: int) -> None:
    """The eigenvalue 2/17 1.08 of the rectifier is small at the bottom, where another is largest.

    The columns of the inputs of the linear map are orthogonal, so that all eigenvalues are known.
    """
    draws = torch.Generator().manual_seed(0)
    columns = torch.linalg.qr(torch.randn(128, 64, generator=draws, dtype=torch.float64))[0]
    columns *= (128 * torch.linspace(1, 0.1, 64, dtype=torch.float64)).sqrt()
    x = torch.cat([torch.ones(128, 1, dtype=torch.float64), columns], 1)
    targets = torch.zeros(128, 17, dtype=torch.float64)
    objective = sl.Objective(Beside().double(), (x, targets), F.mse_loss)
    found = sl.orbit.minimum(objective, seed=seed, certify=False)
    assert found.before == pytest.approx(2 / 17 * 1.08, rel=1e-3)
    assert found.value == pytest.approx(2 / 17, rel=5e-3)
    quick = sl.orbit.minimum(objective, seed=seed, certify=False, before=False)
    assert math.isnan(quick.before)
    assert quick.products < found.products
    assert (quick.value, quick.lower_bound) == (found.value, found.lower_bound)
    assert "at the given point" in str(found)
    assert "at the given point" not in str(quick)
