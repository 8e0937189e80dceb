"""The constructions of Dinh et al.: as sharp as one likes, with the same predictions."""

from __future__ import annotations

import functools
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from architectures import ResNet, mlp, randomized
from cases import labels, randn


@functools.cache
def digits(dtype: torch.dtype = torch.float64) -> sl.Objective:
    return sl.default_objective(dtype=dtype)


@pytest.mark.parametrize("target", [1e2, 1e4, 1e6])
def test_the_digits_net_becomes_as_sharp_as_asked(target: float) -> None:
    found = sl.sharpen(digits(), target=target)
    assert found.reached >= target
    assert found.certificate.relative <= 1e-10
    assert found.certificate.verdict == "exact"
    top = sl.eigenvalues(sl.hessian(found.objective))[0]
    assert top.value >= target * (1 - 1e-3)
    assert top.residual is not None
    assert top.value + top.residual >= found.reached * (1 - 1e-9)  # u'Hu bounds it from below
    assert found.before.value == pytest.approx(2.048, rel=1e-3)
    check = sl.hessian(found.objective).check  # against differences, in units of each parameter
    assert check is not None
    assert check < 1e-6


def test_powers_of_two_round_nothing_in_float32() -> None:
    objective = digits(torch.float32)
    twin = sl.sharpen(objective, target=1e6).objective
    assert torch.equal(twin.predictions(), objective.predictions())
    assert str(sl.verify(objective, twin)).startswith("exact: identical bit for bit")


def test_what_is_sharp_enough_stays() -> None:
    found = sl.sharpen(digits(), target=0.5)
    assert torch.equal(found.objective.vector, digits().vector)
    assert found.reached == pytest.approx(2.048, rel=2e-3)  # and not the curvature of one layer


def test_a_net_with_batch_norm() -> None:
    data = (randn(6, 3, 8, 8), labels(6, classes=10))
    objective = sl.Objective(randomized(ResNet((4, 8), 1, "A")), data, F.cross_entropy)
    found = sl.sharpen(objective, target=1e5)
    assert found.reached >= 1e5
    assert found.certificate.relative <= 1e-10


def test_no_symmetry_nothing_to_sharpen_along() -> None:
    data = (randn(6, 64), labels(6, classes=10))
    objective = sl.Objective(randomized(mlp(nn.GELU)), data, F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match=r"no rescaling symmetry.*gelu in 1"):
        sl.sharpen(objective, target=10.0)
    with pytest.raises(sl.SpiritlevelError, match="target=-1: give a positive number"):
        sl.sharpen(digits(), target=-1)


def fitted(seed: int, sizes: tuple[int, ...], samples: int, bias: bool = False) -> sl.Objective:
    """A net that is its own teacher: an interpolating minimum of the squared error."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside, bias=bias), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).double()
    x = torch.randn(samples, sizes[0], dtype=torch.float64)
    return sl.Objective(net, (x, net(x).detach()), F.mse_loss)


@pytest.mark.parametrize("target", [1e2, 1e5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_many_eigenvalues_at_once(seed: int, target: float) -> None:
    """3-5-4-2 without biases: the smallest layer has 8 weights, so rank - 8 are promised."""
    found = sl.sharpen_many(fitted(seed, (3, 5, 4, 2), 6), target=target)
    assert found.guaranteed == max(found.rank - 8, 0)
    assert found.above >= found.guaranteed
    assert found.certificate.relative <= 1e-10
    assert found.above == int((found.eigenvalues > target).sum())


def test_the_promise_is_not_empty() -> None:
    found = sl.sharpen_many(fitted(0, (3, 5, 4, 2), 6), target=1e4)
    assert found.guaranteed >= 2
    assert found.above >= found.guaranteed


def test_the_analytic_spectrum_is_that_of_the_twin() -> None:
    found = sl.sharpen_many(fitted(1, (3, 4, 3, 2), 5), target=10.0)
    size = found.objective.size
    dense = sl.hessian(found.objective) @ torch.eye(size, dtype=torch.float64)
    truth = torch.linalg.eigvalsh((dense + dense.T) / 2)
    torch.testing.assert_close(found.eigenvalues[-5:], truth[-5:], rtol=1e-6, atol=1e-6)


def test_biases_cost_promises_but_the_bound_holds() -> None:
    found = sl.sharpen_many(fitted(3, (3, 6, 5, 2), 12, bias=True), target=1e3)
    assert 0 <= found.guaranteed <= found.above


@pytest.mark.parametrize("epsilon", [1e-1, 1e-3])
def test_a_layer_of_zeros_lies_in_the_ball(epsilon: float) -> None:
    objective = digits()
    found = sl.zero_in_ball(objective, epsilon)
    assert float(found.perturbation.norm()) == pytest.approx(epsilon, rel=1e-9)
    assert found.certificate.relative <= 1e-10
    twin, value = found.objective, objective.value()
    reached = twin.at(twin.vector + found.perturbation)
    assert found.lower_bound == pytest.approx((reached.value() - value) / (1 + value), rel=1e-9)
    assert found.lower_bound > 1.0  # no digit is told from another any more
    assert float(reached.predictions().std(0).max()) <= 1e-9  # a constant function
    nearby = objective.at(objective.vector + found.perturbation)  # the same step at home
    assert (nearby.value() - value) / (1 + value) < 0.5 * found.lower_bound


def test_the_textbook_case() -> None:
    """y = t2 relu(t1 x), x in {.5, 1, 2}, y = x: at (1, 1) a ball of 1e-3 holds 3.5e-6."""
    net = nn.Sequential(
        nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)
    ).double()
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    x = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)
    found = sl.zero_in_ball(sl.Objective(net, (x, x), F.mse_loss), 1e-3)
    assert found.lower_bound == pytest.approx(1.75, rel=1e-12)  # mean x^2
    with pytest.raises(sl.SpiritlevelError, match="epsilon=0: give a positive number"):
        sl.zero_in_ball(digits(), 0)


def test_too_many_parameters_for_the_whole_spectrum() -> None:
    net = nn.Sequential(nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2))
    objective = sl.Objective(net, (randn(4, 60), labels(4, classes=2)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="needs the whole spectrum: 3782 parameters"):
        sl.sharpen_many(objective, target=10.0)
