"""Keskar's sharpness against closed forms, corners and a large box."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import spiritlevel as sl
from cases import small_net
from quadratics import CURVATURES, at_rest, linear, quadratic
from spiritlevel.base.estimate import Status
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.keskar import keskar, keskar_subspace


@pytest.mark.parametrize("eps", [1e-3, 5e-4])
def test_keskar_in_closed_form(eps: float) -> None:
    """At x = 0 the box is eps wide and the maximum a corner: 50 eps^2 sum lambda."""
    zero = torch.zeros(5, dtype=torch.float64)
    found = keskar(Instruments(quadratic(zero, zero)), eps=eps)
    assert found.value == pytest.approx(50 * eps**2 * float(CURVATURES.sum()), rel=1e-9)
    assert found.status is Status.LOWER_BOUND
    away = at_rest(base=2.0)
    box = eps * (away.vector.abs() + 1)
    corner = 0.5 * float((CURVATURES * box**2).sum())
    found = keskar(Instruments(away), eps=eps)
    assert found.value == pytest.approx(100 * corner / 3, rel=1e-9)


def test_keskar_in_a_subspace() -> None:
    """With as many directions as parameters the pseudo-inverse is the inverse."""
    objective = at_rest()
    found = keskar_subspace(Instruments(objective, seed=4)).value
    a = torch.randn(5, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    a = a / a.norm(dim=0)
    box = 1e-3 * (torch.linalg.solve(a, objective.vector).abs() + 1)
    corners = [a @ (box * torch.tensor(c).double()) for c in itertools.product((-1, 1), repeat=5)]
    best = max(0.5 * float((CURVATURES * c**2).sum()) for c in corners)
    assert found <= 100 * best * (1 + 1e-9)
    assert found >= 100 * best * 0.5  # ten iterations may end in another corner


def test_keskar_of_a_slope_is_a_corner() -> None:
    """100 sum |g_i| eps (|x_i| + 1) / (1 + f)."""
    slope = torch.tensor([0.3, -2.0, 0.5], dtype=torch.float64)
    objective = linear(slope, base=4.0)
    box = 1e-3 * (objective.vector.abs() + 1)
    expected = 100 * float(slope.abs() @ box) / (1 + objective.value())
    assert keskar(Instruments(objective)).value == pytest.approx(expected, rel=1e-9)


def test_the_search_is_that_of_scipy_with_separate_passes() -> None:
    """Value and gradient from one pass: the same ten iterations as from two.

    The draws lie along the order of the weights.
    """
    objective, seed = small_net(), 3
    x, base = objective.vector, objective.value()
    box = 1e-3 * (x.abs() + 1)
    best, spent = [base], [0]

    def fall(z: np.ndarray) -> tuple[float, np.ndarray]:
        there = objective.at(x + box * torch.from_numpy(z))
        best.append(there.value())
        spent[0] += 1
        return -(best[-1] - base) * 1e6, -(box * there.gradient()).numpy() * 1e6

    draws = torch.Generator().manual_seed(seed)
    start = np.empty(len(x))
    start[np.argsort(x.numpy(), kind="stable")] = (
        2 * torch.rand(len(x), generator=draws, dtype=torch.float64) - 1
    )
    options = {"maxiter": 10, "ftol": 0.0, "gtol": 0.0}
    bounds = [(-1.0, 1.0)] * len(x)
    minimize(fall, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    found = keskar(Instruments(objective, seed=seed))
    assert found.value == pytest.approx(100 * (max(best) - base) / (1 + base), rel=1e-9)
    # in the corner of the box rounding decides whether it looks once more
    assert abs(found.matvecs - spent[0]) <= 1


def test_one_pass_gives_value_and_gradient() -> None:
    for objective in (small_net(), small_net().on(list(small_net().batches) * 2)):
        value, slope = objective.value_and_gradient()
        assert value == pytest.approx(objective.value(), rel=1e-12)
        torch.testing.assert_close(slope, objective.gradient(), rtol=1e-12, atol=1e-15)


def test_a_subspace_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spiritlevel.measures.keskar.SUBSPACE_NUMBERS", 100)
    with pytest.raises(sl.SpiritlevelError, match="a matrix of 83 x 83 numbers: too many"):
        keskar_subspace(Instruments(small_net()))
