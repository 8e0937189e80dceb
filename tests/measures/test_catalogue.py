"""Measures against closed forms, dense matrices and brute force."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, randn
from quadratics import CURVATURES, at_rest, quadratic
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures import ball, invariant, noise
from spiritlevel.measures.instruments import Instruments


def measured(name: str, objective: sl.Objective, **options: Any) -> Estimate:
    return sl.MEASURES[name](objective, **options)


def test_eps_sharpness_of_a_quadratic() -> None:
    objective = at_rest(base=1.0)
    expected = 0.05**2 * 3.0 / 2 / 2.0
    assert measured("eps_sharpness", objective).value == pytest.approx(expected, rel=1e-6)
    assert measured("eps_sharpness_quadratic", objective).value == pytest.approx(expected, rel=1e-6)


def test_the_perturbation_is_returned() -> None:
    objective = at_rest()
    found = sl.worst_in_ball(objective, 0.3)
    assert float(found.perturbation.norm()) == pytest.approx(0.3, rel=1e-9)
    assert objective.at(objective.vector + found.perturbation).value() == found.loss
    assert found.perturbation.abs().argmax() == 2
    assert found.rise == pytest.approx(0.3**2 * 3.0 / 2, rel=1e-3)
    with pytest.raises(sl.SpiritlevelError, match="radius=0: give a positive number"):
        sl.worst_in_ball(objective, 0)


def test_a_layer_of_zeros_in_the_ball_is_found() -> None:
    """y = relu(x a) b at a = eps: the zero function is in the ball, beyond where gradients see."""

    class Product(nn.Module):
        def __init__(self, a: float, b: float) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.tensor([a], dtype=torch.float64))
            self.b = nn.Parameter(torch.tensor([b], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x * self.a) * self.b

    x = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)
    flat = sl.Objective(Product(1.0, 1.0), (x, x), F.mse_loss)
    sharp = sl.Objective(Product(1e-3, 1e3), (x, x), F.mse_loss)
    assert sl.worst_in_ball(flat, 1e-3).sharpness == pytest.approx(3.5e-6, rel=0.01)
    assert sl.worst_in_ball(sharp, 1e-3).sharpness >= 1.75 * (1 - 1e-9)


def test_adaptive_worst_case_of_a_quadratic() -> None:
    objective = at_rest()
    largest = float((CURVATURES * objective.vector**2).max())
    found = measured("adaptive_worst", objective)
    assert found.value == pytest.approx(0.5**2 * largest / 2, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_noise_of_a_quadratic(seed: int) -> None:
    """E L(w + s z) - L = 1/2 sum lambda s^2, at a minimum and on a slope."""
    slope = quadratic(randn(5, seed=3), randn(5, seed=5))
    for objective in (at_rest(), slope):
        found = measured("expected_sharpness", objective, seed=seed)
        expected = 0.01**2 * float(CURVATURES.sum()) / 2
        assert found.stderr is not None
        assert abs(found.value - expected) <= 4 * found.stderr
        assert found.stderr <= 0.1 * expected
        found = measured("adaptive_average", objective, seed=seed)
        expected = 0.1**2 * float((CURVATURES * objective.vector**2).sum()) / 2
        assert found.stderr is not None
        assert abs(found.value - expected) <= 4 * found.stderr


def test_the_standard_error_of_noise_is_one() -> None:
    """Over many seeds two standard errors hold the truth about 95 times in 100."""
    objective, expected = at_rest(), 0.01**2 * float(CURVATURES.sum()) / 2
    spread = torch.full((5,), 0.01, dtype=torch.float64)
    found = [noise.mean_rise(objective, spread, rtol=0.2, seed=seed) for seed in range(60)]
    held = sum(abs(e.value - expected) <= 2 * e.error for e in found)
    assert 0.85 * len(found) <= held <= len(found)


def rectified() -> sl.Objective:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    return sl.Objective(randomized(net), (randn(20, 4), labels(20)), F.cross_entropy)


@pytest.mark.parametrize("layer", ["0.weight", "2.weight", "4.weight"])
def test_relative_flatness_against_its_definition(layer: str) -> None:
    objective = rectified()
    dense = sl.hessian(objective).dense()
    w, span = objective.params[layer], objective.spans[layer]
    units, inputs = w.shape
    block = dense[span, span].reshape(units, inputs, units, inputs)
    expected = float(torch.einsum("sj,tj,skti,ki->", w, w, block, torch.eye(inputs).double()))
    found = invariant.relative_flatness(Instruments(objective, rtol=0.02, budget=600), layer)
    assert abs(found.value - expected) <= 4 * found.error + 1e-9 * abs(expected)
    if layer == "2.weight":  # the layer that is taken unasked
        again = invariant.relative_flatness(Instruments(objective, rtol=0.02, budget=600))
        assert again.value == found.value
    with pytest.raises(sl.SpiritlevelError, match=r"'0\.bias' is none of the parameters 0\.weight"):
        invariant.relative_flatness(Instruments(objective), "0.bias")


def paths_by_hand(net: nn.Sequential) -> float:
    """Every path, one after another."""
    layers = [m for m in net if isinstance(m, nn.Linear)]
    sizes = [layers[0].in_features, *(m.out_features for m in layers)]
    total = 0.0
    for start in range(len(layers)):  # from the inputs, and from each layer's biases
        for units in itertools.product(*(range(n) for n in sizes[start:])):
            product = 1.0
            for depth, (i, j) in enumerate(itertools.pairwise(units), start):
                product *= float(layers[depth].weight[j, i].detach()) ** 2
            total += product if start == 0 else 0.0
    for start, layer in enumerate(layers):
        for units in itertools.product(*(range(n) for n in sizes[start + 1 :])):
            product = float(layer.bias[units[0]].detach()) ** 2
            for depth, (i, j) in enumerate(itertools.pairwise(units), start + 1):
                product *= float(layers[depth].weight[j, i].detach()) ** 2
            total += product
    return math.sqrt(total)


def test_path_norm_against_every_path() -> None:
    objective = rectified()
    net: Any = objective.module
    assert measured("path_norm", objective).value == pytest.approx(paths_by_hand(net), rel=1e-12)


def test_path_norm_of_an_image_net_is_that_of_its_unrolled_matrix() -> None:
    """Convolution, batch norm, maximum, average: one linear map of squares each."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 3),
    ).double().eval()  # fmt: skip
    norm: Any = net[1]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.weight.data.normal_()
    norm.bias.data.normal_()
    objective = sl.Objective(net, (randn(6, 1, 4, 4), labels(6)), F.cross_entropy)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias - norm.running_mean * scale
    conv: Any = net[0]
    first = F.conv2d(torch.ones(1, 1, 4, 4).double(), conv.weight**2, conv.bias**2, padding=1)
    normed = first * scale.square().view(1, 2, 1, 1) + shift.square().view(1, 2, 1, 1)
    pooled = normed.unfold(2, 2, 2).unfold(3, 2, 2).sum((-1, -2))  # all paths of a maximum
    averaged = pooled.sum((2, 3)) / 16  # four of them, each by (1/4)^2
    last: Any = net[-1]
    expected = float((averaged @ (last.weight**2).T + last.bias**2).sum().sqrt().detach())
    assert measured("path_norm", objective).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.Softmax(1), nn.Linear(5, 3)),
    ],
)
def test_path_norm_is_refused_where_there_are_no_paths(net: nn.Module) -> None:
    objective = sl.Objective(randomized(net), (randn(8, 4), labels(8)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="networks of weights, sums and rectifiers"):
        measured("path_norm", objective)


def test_settings_of_a_measure_are_arguments() -> None:
    objective = at_rest()
    small = partial(ball.eps_sharpness, radius=0.01)(Instruments(objective))
    large = partial(ball.eps_sharpness, radius=0.02)(Instruments(objective))
    assert large.value == pytest.approx(4 * small.value, rel=1e-4)
