"""Noise and boxes that a classifier stands, against closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import bisect
from scipy.stats import norm
from torch import Tensor, nn

import conformance
import spiritlevel as sl
from spiritlevel.base.estimate import Status

N = 300
TOLERATED = 1 / norm.isf(0.1)  # the s with P(1 + s z < 0) = 0.1
SEEDS = range(5)


def separate(weights: Tensor) -> sl.Objective:
    """One weight for each example: decided rightly where it is positive."""
    layer = nn.Linear(len(weights), 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(weights[None])
    data = torch.eye(len(weights)).double(), torch.ones(len(weights), 1).double()
    return sl.Objective(layer, data, F.binary_cross_entropy_with_logits)


EQUAL = separate(torch.full((N,), 3.0))
UNLIKE = separate(torch.logspace(-2, 2, N))


def value(name: str, point: sl.Objective, seed: int = 0, **settings: Any) -> sl.Estimate:
    return sl.MEASURES[name](point, seed=seed, **settings)


def test_noise_that_every_example_stands_alike() -> None:
    found = [value("pac_bayes_sigma", EQUAL, seed) for seed in SEEDS]
    scores = [(e.value - 3 * TOLERATED) / e.error for e in found]
    assert max(map(abs, scores)) < 3
    assert 0.3 < math.sqrt(sum(z * z for z in scores) / len(scores)) < 2
    assert all(e.status is Status.CONVERGED and e.error < 0.06 * e.value for e in found)
    less = value("pac_bayes_sigma", EQUAL, drop=0.3, draws=32)
    assert abs(less.value - 3 / norm.isf(0.3)) < 3 * less.error
    z = norm.isf(0.3)
    predicted = math.sqrt(0.3 * 0.7 / (32 * N)) / (norm.pdf(z) * z)  # that of d log sigma
    assert less.error == pytest.approx(predicted * less.value, rel=0.3)


def test_noise_relative_to_each_weight() -> None:
    for seed in SEEDS:
        found = value("pac_bayes_magnitude_flatness", UNLIKE, seed)
        assert abs(found.value - TOLERATED**-2) < 3 * found.error
        assert found.error < 0.12 * found.value
    w = UNLIKE.vector.numpy()
    drop = lambda s: norm.sf(w / (s**2 * w**2 + 0.05**2) ** 0.5).mean() - 0.1  # noqa: E731
    drowned = float(bisect(drop, 0.01, 1))  # type: ignore[arg-type]
    with_eps = value("pac_bayes_magnitude_flatness", UNLIKE, eps=0.05)
    assert abs(with_eps.value - drowned**-2) < 3 * with_eps.error
    assert drowned**-2 > TOLERATED**-2 + 3 * with_eps.error
    units = torch.logspace(3, -3, N).double()
    elsewhere = UNLIKE.reparametrize(sl.coordinates.Diagonal(units))
    same = value("pac_bayes_magnitude_flatness", elsewhere)
    here = value("pac_bayes_magnitude_flatness", UNLIKE).value
    assert same.value == pytest.approx(here)
    louder = UNLIKE.at(9 * UNLIKE.vector)
    assert value("pac_bayes_magnitude_flatness", louder).value == pytest.approx(here)


def test_the_smallest_box_that_holds_enough_mistakes() -> None:
    """A tenth of the weights lie below 0.1: 31 of 300 have to change their sign."""
    point = separate((torch.arange(N) + 0.5) / N)
    least = 30.5 / N
    found = value("sharpness_flatness", point)
    assert found.status is Status.LOWER_BOUND
    assert found.error == 0
    assert (1.01 * least) ** -2 * 0.999 <= found.value <= least**-2
    relative = value("sharpness_magnitude_flatness", point)
    assert 1.01**-2 * 0.999 <= relative.value <= 1
    both = value("sharpness_magnitude_flatness", point, eps=0.01)
    # 31 weights w <= a w + eps, the largest of them decides
    assert both.value**-0.5 == pytest.approx(1 - 0.01 / least, rel=0.011)


def test_a_box_is_no_larger_than_noise_in_a_net() -> None:
    point = conformance.objective()
    sigma = value("pac_bayes_sigma", point).value
    alpha = value("sharpness_flatness", point).value ** -0.5
    assert alpha < sigma  # who can choose needs less


def test_bounds_are_their_formulas() -> None:
    w = UNLIKE.vector
    init = torch.linspace(-1, 1, N).double()
    n = N
    sigma = value("pac_bayes_sigma", UNLIKE).value
    s = value("pac_bayes_magnitude_flatness", UNLIKE, eps=1e-3).value ** -0.5
    alpha = value("sharpness_flatness", UNLIKE).value ** -0.5

    def magnitudes(v: Tensor) -> float:
        square = float(v @ v)
        terms = [
            math.log((1e-6 + (s**2 + 1) * square / n) / (1e-6 + s**2 * float(x) ** 2)) for x in v
        ]
        return sum(terms) / 4 + math.log(n / s) + 10

    def plain(v: Tensor, size: float, factor: float = 1.0) -> float:
        return factor * float(v @ v) / (4 * size**2) + math.log(n / size) + 10

    wanted = {
        "pac_bayes_orig": plain(w, sigma),
        "pac_bayes_init": plain(w - init, sigma),
        "pac_bayes_magnitude_orig": magnitudes(w),
        "pac_bayes_magnitude_init": magnitudes(w - init),
        "sharpness_orig": plain(w, alpha, math.log(2 * n)),
        "sharpness_init": plain(w - init, alpha, math.log(2 * n)),
    }
    for name, complexity in wanted.items():
        found = value(name, UNLIKE, init=init)
        assert found.value == pytest.approx(math.sqrt(complexity / n), rel=1e-9), name


def test_the_error_of_a_bound_is_that_of_its_noise() -> None:
    sigma = value("pac_bayes_sigma", EQUAL)
    bound = value("pac_bayes_orig", EQUAL)
    square = 9 * N / (4 * sigma.value**2)
    slope = (2 * square + 1) / sigma.value / N / (2 * bound.value)
    assert bound.error == pytest.approx(slope * sigma.error, rel=0.01)


def test_what_cannot_fall_says_so() -> None:
    wrong = separate(torch.full((N,), -1.0))
    with pytest.raises(sl.SpiritlevelError, match="no perturbation lowers the accuracy of 0"):
        value("sharpness_flatness", wrong)
    with pytest.raises(sl.SpiritlevelError, match=r"lower the accuracy by more than 0\.1: give"):
        value("pac_bayes_magnitude_flatness", UNLIKE, eps=100.0)
    with pytest.raises(sl.SpiritlevelError, match="draws=1: give a whole number of at least 2"):
        value("pac_bayes_sigma", EQUAL, draws=1)
    with pytest.raises(sl.SpiritlevelError, match="give init="):
        value("pac_bayes_init", EQUAL)
    regression = sl.Objective(nn.Linear(2, 1), (torch.ones(3, 2), torch.ones(3, 1)), F.mse_loss)
    with pytest.raises(sl.SpiritlevelError, match="none of classes"):
        value("pac_bayes_sigma", regression)


class Wave(nn.Module):
    """cos(b) x: stationary at 0, and right again where b is larger still."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1).double())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(self.b) * x


WAVE = sl.Objective(
    Wave(),
    (torch.ones(4, 1).double(), torch.ones(4, 1).double()),
    F.binary_cross_entropy_with_logits,
)


def test_an_accuracy_that_rises_with_the_noise_leaves_the_size_open() -> None:
    for name in ("pac_bayes_sigma", "pac_bayes_flatness", "pac_bayes_orig"):
        found = value(name, WAVE, 1, draws=2, drop=0.5)
        assert found.status is Status.BUDGET
        assert "raise draws=" in found.remedy
        assert math.isfinite(found.value)
        assert 0 < found.error < math.inf


def test_a_box_around_a_stationary_point() -> None:
    alpha = value("sharpness_flatness", WAVE).value ** -0.5
    assert alpha == pytest.approx(math.pi / 2, rel=0.011)


def test_as_many_mistakes_as_may_be_are_not_too_many() -> None:
    """3 of 10 are wrong, and a fourth may be: in floats 0.4 - 0.3 > 0.1."""
    point = separate(torch.tensor([1.0] * 6 + [-1.0] * 3 + [0.5]))
    alpha = value("sharpness_flatness", point).value ** -0.5
    assert alpha == pytest.approx(1.0, rel=0.011)


def test_small_biases_are_no_scale_of_the_noise() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()

    def tolerated(bias: float) -> float:
        layer = nn.Linear(3, 3).double()
        with torch.no_grad():
            layer.weight.copy_(8 * torch.eye(3))
            layer.bias.fill_(bias)
        data = (x, x.argmax(1))
        point = sl.Objective(layer, data, F.cross_entropy, params=["bias"])
        return value("pac_bayes_sigma", point).value

    assert tolerated(1e-3) == pytest.approx(tolerated(0.0), rel=0.02)
    assert tolerated(1e-8) == pytest.approx(tolerated(0.0), rel=0.02)
