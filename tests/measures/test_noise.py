"""The mean loss under noise, against closed forms of quadratics and of linear classifiers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import conformance
import spiritlevel as sl

SEEDS = range(5)


def quadratic() -> tuple[sl.Objective, torch.Tensor]:
    """The mean of (w_i x_i)^2 at w: its Hessian is diagonal."""
    x = torch.tensor([1.0, 2.0, 0.5, 3.0]).double()
    layer = nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, -1.0, 2.0, 0.1]]))
    y = x * layer.weight.detach()[0]
    data = torch.diag(x), y[:, None]
    return sl.Objective(layer, data, F.mse_loss), x.square() / 4


def test_of_a_quadratic_it_is_a_sum_of_curvatures() -> None:
    point, curvatures = quadratic()
    w = point.vector
    wanted = {
        "expected_sharpness": 0.2**2 * float(curvatures.sum()),
        "adaptive_average": 0.2**2 * float(curvatures @ w.square()),
    }
    for name, value in wanted.items():
        for seed in SEEDS:
            found = sl.MEASURES[name](point, seed=seed, sigma=0.2)
            assert abs(found.value - value) < 3.5 * found.error
            assert found.error < 0.2 * value


def test_normalized_the_scale_of_the_outputs_does_not_count() -> None:
    point = conformance.objective()
    scaled = point.at({name: 9 * point.params[name] for name in ("4.weight", "4.bias")})
    plain, unit = (sl.MEASURES[f"adaptive_average{end}"] for end in ("", "_normalized"))
    assert unit(scaled).value == pytest.approx(unit(point).value, rel=1e-9)
    assert plain(scaled).value > 2 * plain(point).value
    units = torch.logspace(-2, 2, point.size).double()
    elsewhere = point.reparametrize(sl.coordinates.Diagonal(units))
    assert unit(elsewhere).value == pytest.approx(unit(point).value, rel=1e-9)


def test_normalized_to_second_order_it_is_a_trace() -> None:
    """sigma^2 / 2 tr(H diag(theta^2)), H of the normalized loss, by autograd."""
    point = conformance.objective()
    x, y = conformance.data()

    def loss(vector: torch.Tensor) -> torch.Tensor:
        f = torch.func.functional_call(conformance.trained(), point.named(vector), (x,))
        f = f - f.mean(1, keepdim=True)
        return F.cross_entropy(f / f.norm(dim=1, keepdim=True), y)

    hessian = torch.func.hessian(loss)(point.vector)
    sigma = 1e-6  # small enough that no unit changes its side
    wanted = sigma**2 / 2 * float(hessian.diagonal() @ point.vector.square())
    found = sl.MEASURES["adaptive_average_normalized"](point, sigma=sigma)
    assert abs(found.value - wanted) < 3.5 * found.error
    assert found.error < 0.2 * abs(wanted)


def test_noise_that_rounding_takes_away_is_refused() -> None:
    """Numbers around 1e7 are 1 apart in float32, and 1e-9 in float64."""
    layer, x = nn.Linear(4, 1, bias=False).double(), torch.tensor([1.0, 2.0, 0.5, 4.0]).double()
    with torch.no_grad():
        layer.weight.fill_(2.0**24)
    there = sl.Objective(layer, (torch.diag(x), 2.0**24 * x[:, None]), F.mse_loss)
    found = sl.MEASURES["expected_sharpness"](there)
    assert found.value == pytest.approx(1e-4 * float(x.square().mean()), rel=0.2)
    for name, fix in (("expected_sharpness", "more noise"), ("flat_radius", "a larger eps=")):
        with pytest.raises(sl.SpiritlevelError, match=f"try dtype=torch.float64, or {fix}"):
            sl.MEASURES[name](there.to(torch.float32))
