"""Curvature that the Gauss-Newton matrix does not see."""

from __future__ import annotations

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
