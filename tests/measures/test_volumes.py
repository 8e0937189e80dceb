"""Volumes around a point, against those of bodies and of Gaussian balls that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import quad
from scipy.optimize import bisect
from scipy.special import gammaln
from scipy.stats import chi2, norm
from torch import Tensor, nn

import conformance
import spiritlevel as sl
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.rays import Rays, Shape, rays
from spiritlevel.measures.volumes import divergence, log_ball, log_radial

SEEDS = range(4)


class Vector(nn.Module):
    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w.clone())


def function(f: Callable[[Tensor], Tensor], w: Tensor) -> sl.Objective:
    def loss(model: Vector, batch: Tensor) -> tuple[Tensor, int]:
        return len(batch) * f(model.w), len(batch)

    return sl.Objective(Vector(w.double()), torch.zeros(4, 1).double(), loss)


def volume(point: sl.Objective, seed: int = 0, **settings: Any) -> Estimate:
    return sl.MEASURES["log_volume"](point, seed=seed, **settings)


def within(found: Estimate, value: float, errors: float = 3.5) -> bool:
    return abs(found.value - value) <= errors * found.error


def test_an_ellipsoid() -> None:
    """{k x^2 / 2 < eps}: the Hessian tells where there is room, and nothing is left to chance."""
    k = torch.logspace(-1, 3, 20).double()
    point = function(lambda x: (k * x.square()).sum() / 2, torch.zeros(20))
    wanted = log_ball(20) + float((2 * 0.3 / k).log().sum()) / 2
    found = volume(point, eps=0.3, half_width=1e4, directions=8)
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(wanted, abs=0.2)
    assert found.error < 0.2


def test_directions_that_are_drawn_evenly_or_not() -> None:
    k = torch.tensor([1.0, 3.0, 9.0]).double()
    point = function(lambda x: (k * x.square()).sum() / 2, torch.zeros(3))
    wanted = log_ball(3) + float((2 / k).log().sum()) / 2
    vectors = torch.linalg.qr(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))[0]
    wrong = Shape(vectors.double(), torch.tensor([0.6, 1.7]).double())
    for shape in (None, wrong):
        for seed in SEEDS:
            settings = {"shape": shape, "seed": seed, "directions": 128}
            drawn = rays(point, lambda x: point.at(x).value(), 1.0, **settings)
            found = drawn.estimate(3 * drawn.radii.log(), log_ball(3))
            assert found.status is Status.CONVERGED
            assert within(found, wanted)
            assert 0.01 < found.error < 0.5


def test_a_body_that_is_no_ellipsoid() -> None:
    """{sum x^4 < 1}: (2 Gamma(5/4))^n / Gamma(1 + n/4)."""
    n = 4
    point = function(lambda x: x.square().square().sum(), torch.zeros(n))
    wanted = n * (math.log(2) + float(gammaln(1.25))) - float(gammaln(1 + n / 4))
    for seed in SEEDS:
        drawn = rays(point, lambda x: point.at(x).value(), 1.0, seed=seed)
        found = drawn.estimate(n * drawn.radii.log(), log_ball(n))
        assert within(found, wanted)
        assert found.error < 0.2


def test_the_box_and_half_of_it() -> None:
    n, w = 3, 0.5
    flat = function(lambda x: 0 * x.sum(), torch.ones(n))
    slope = function(lambda x: 2 * x[0], torch.ones(n))  # up to 0.1 to one side, the box elsewhere
    for seed in SEEDS:
        found = volume(flat, seed, half_width=w, directions=64)
        assert within(found, n * math.log(2 * w))
        found = volume(slope, seed, eps=0.2, half_width=w, directions=64)
        assert within(found, math.log(0.6 * (2 * w) ** (n - 1)))
        assert found.error < 0.3


def test_few_wide_directions_make_it_a_lower_bound() -> None:
    k = torch.ones(60).double()
    point = function(lambda x: (k * x.square()).sum() / 2, torch.zeros(60))
    drawn = rays(point, lambda x: point.at(x).value(), 0.1, directions=16)
    spread = 20 * torch.randn(16, generator=torch.Generator().manual_seed(0)).double()
    assert drawn.estimate(0 * spread, 0.0).status is Status.CONVERGED
    low = drawn.estimate(spread, 5.0)
    assert low.status is Status.LOWER_BOUND
    assert low.value == pytest.approx(5 + float(spread.mean() + drawn.weights.mean()))
    assert low.error > 0.9 * 20 / 4
    net = volume(conformance.objective(), directions=8)
    assert net.status is Status.LOWER_BOUND
    assert net.error > 0


def test_radii_to_the_first_end_of_the_region() -> None:
    """1 - cos(10 |x|) rises to eps at once, and again and again."""
    point = function(lambda x: 1 - torch.cos(10 * x.norm()), torch.zeros(4))
    wanted = math.acos(1 - 0.1) / 10
    found = sl.MEASURES["flat_radius"](point.at(torch.full((4,), 1e-9).double()))
    assert found.value == pytest.approx(wanted, rel=0.1)
    sphere = function(lambda x: x.square().sum(), torch.zeros(4))
    found = sl.MEASURES["flat_radius"](sphere, eps=0.01)
    assert found.value == pytest.approx(0.1, rel=0.01)
    assert found.error < 0.01
    # the box ends it too: half_width / max |u_i|, on average
    flat = function(lambda x: 0 * x.sum(), torch.zeros(2))
    mean = quad(lambda a: 1 / math.cos(a), 0, math.pi / 4)[0] / (math.pi / 4)
    for seed in SEEDS:
        found = sl.MEASURES["flat_radius"](flat, seed=seed, half_width=3.0)
        assert within(found, 3 * mean)
        assert found.error < 0.3


def test_what_ends_at_once_says_so() -> None:
    point = function(
        lambda x: torch.where(x.norm() > 1e-40, 1.0, 0.0) + 0 * x.sum(), torch.zeros(2)
    )
    with pytest.raises(sl.SpiritlevelError, match="ends at the point itself: give a larger eps="):
        sl.MEASURES["flat_radius"](point)
    with pytest.raises(
        sl.SpiritlevelError, match="directions=1: give a whole number of at least 2"
    ):
        sl.MEASURES["flat_radius"](point, directions=1)


@pytest.mark.parametrize("n", [1, 2, 3, 50, 2778])
def test_the_gaussian_measure_of_a_ball(n: int) -> None:
    """That of |x| < R under N(0, sigma^2 I) is a chi-square's."""
    sigma = 0.7
    for share in (0.3, 0.9, 1.0, 1.5):
        radius = share * sigma * math.sqrt(n)
        found = log_radial(
            torch.tensor([radius], dtype=torch.float64), torch.zeros(1).double(), n, sigma
        )
        constant = log_ball(n) + math.log(n) - n / 2 * math.log(2 * math.pi * sigma**2)
        wanted = chi2.logcdf(share**2 * n, n)
        if not math.isfinite(wanted):
            wanted = small_ball(share**2 * n / 2, n / 2)
        assert float(found[0]) + constant == pytest.approx(wanted, rel=1e-8, abs=1e-8)


def small_ball(x: float, a: float) -> float:
    """log P(a, x), the regularized incomplete gamma function, by its series for x < a."""
    ratios = np.log(x) - np.log(a + np.arange(1, 5000))
    series = np.exp(np.concatenate([[0.0], np.cumsum(ratios)])).sum()
    return a * math.log(x) - x - float(gammaln(a + 1)) + math.log(series)


def test_the_gaussian_measure_in_a_million_dimensions() -> None:
    n, sigma = 10**6, 0.05
    radius = 0.8 * sigma * math.sqrt(n)
    found = log_radial(
        torch.tensor([radius], dtype=torch.float64), torch.zeros(1).double(), n, sigma
    )
    constant = log_ball(n) + math.log(n) - n / 2 * math.log(2 * math.pi * sigma**2)
    assert float(found[0]) + constant == pytest.approx(small_ball(0.32 * n, n / 2), abs=1e-3)


@pytest.mark.parametrize("b", [-3.0, -0.4, 0.0, 2.0])
def test_radial_integrals_off_the_centre(b: float) -> None:
    n, sigma = 5, 0.8
    for radius in (0.1, 1.0, 6.0, 50.0):
        wanted = quad(
            lambda r: r ** (n - 1) * math.exp(-(r**2 + 2 * r * b) / (2 * sigma**2)),
            0,
            min(radius, 15.0),
            epsabs=0,
        )[0]
        found = log_radial(
            torch.tensor([radius], dtype=torch.float64),
            torch.tensor([b], dtype=torch.float64),
            n,
            sigma,
        )
        assert float(found[0]) == pytest.approx(math.log(wanted), abs=1e-7)


def test_the_basin_of_one_weight() -> None:
    """P(w- < w < w+) under N(0, w0^2), where KL(p, p_w) = cutoff at both ends."""
    layer = nn.Linear(1, 1, bias=False).double()
    w0 = 1.3
    with torch.no_grad():
        layer.weight.fill_(w0)
    data = torch.ones(3, 1).double(), torch.tensor([[1.0], [0.0], [1.0]]).double()
    point = sl.Objective(layer, data, F.binary_cross_entropy_with_logits)
    p = 1 / (1 + math.exp(-w0))

    def kl(w: float) -> float:
        q = 1 / (1 + math.exp(-w))
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    assert divergence(point)(torch.tensor([2.0]).double()) == pytest.approx(kl(2.0))
    low, high = (float(bisect(lambda w: kl(w) - 0.01, w0, w0 + way)) for way in (-1.0, 1.0))  # type: ignore[arg-type]
    wanted = math.log(norm.cdf(high / w0) - norm.cdf(low / w0))
    for seed in SEEDS:
        found = sl.MEASURES["basin_volume"](point, seed=seed, directions=64)
        assert found.status is Status.CONVERGED
        assert within(found, wanted)
        assert found.error < 0.2
    with pytest.raises(sl.SpiritlevelError, match="all parameters are zero"):
        sl.MEASURES["basin_volume"](point.at(torch.zeros(1).double()))


def test_rays_of_a_net_end_where_they_say() -> None:
    point = conformance.objective()
    drawn: Rays = rays(point, lambda x: point.at(x).value() - point.value(), 0.1, directions=3)
    draws = torch.Generator().manual_seed(0)
    for radius, slope in zip(drawn.radii, drawn.slopes, strict=True):
        u = torch.randn(point.size, generator=draws, dtype=torch.float64)
        u = u / u.norm()
        at = point.vector + radius * u
        assert point.at(at).value() - point.value() == pytest.approx(0.1, rel=0.01)
        assert float(u @ point.vector) == pytest.approx(float(slope))


class Wave(nn.Module):
    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w]).double())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w * x)


@pytest.mark.parametrize("periods", [10, 1000])
def test_a_ray_begins_where_the_parabola_ends(periods: int) -> None:
    """sin(w)^2 with a large w: a tenth of it leads over many crossings."""
    data = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    point = sl.Objective(Wave(2 * math.pi * periods), data, F.mse_loss)
    end = math.asin(math.sqrt(0.1))
    found = sl.MEASURES["flat_radius"](point, half_width=20.0)
    assert within(found, end)
    assert found.matvecs < 32 * 8
    assert within(volume(point, half_width=20.0), math.log(2 * end))


def test_a_proposal_without_room_is_refused() -> None:
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(layer.weight, 1e-30)
    x = torch.randn(6, 1, generator=torch.Generator().manual_seed(0)).double() / 1e-30
    point = sl.Objective(layer, (x, torch.zeros(6, 1).double()), F.mse_loss)
    for name in ("flat_radius", "log_volume"):
        with pytest.raises(sl.SpiritlevelError, match="ends at the point itself"):
            sl.MEASURES[name](point)


def classifier(model: nn.Module, targets: Tensor, loss: Any = F.cross_entropy) -> sl.Objective:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).double()
    return sl.Objective(model.double(), (x, targets), loss)


class Idle(nn.Module):
    """A weight that changes nothing until |w| > end, where it exchanges classes."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self.end, self.w = end, nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.w.abs() > self.end, 3.0, 0.0) * x.flip(1) + x + 0 * self.w


def test_a_basin_that_is_all_there_is() -> None:
    labels = torch.arange(8) % 3
    for end in (math.inf, 3.0):
        for seed in SEEDS:
            found = sl.MEASURES["basin_volume"](classifier(Idle(end), labels), seed=seed)
            assert found.value <= 0
            assert within(found, math.log(1 - 2 * norm.sf(end)))
            assert 0 < found.error < 0.3


def test_predictions_diverge_whatever_the_targets() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2, -100, -100])
    soft = F.one_hot(labels.clamp(min=0), 3).double() * 0.7 + 0.1
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    there = torch.linspace(-1, 1, 12).double()
    plain = divergence(classifier(model, labels))(there)
    smooth = classifier(model, labels, nn.CrossEntropyLoss(label_smoothing=0.1))
    assert divergence(smooth)(there) == pytest.approx(plain)
    every = divergence(classifier(model, labels.clamp(min=0)))(there)
    assert every != pytest.approx(plain)  # two examples more
    assert divergence(classifier(model, soft))(there) == pytest.approx(every)
    assert sl.MEASURES["basin_volume"](smooth).value < 0
    with pytest.raises(sl.SpiritlevelError, match="none of classes"):
        sl.MEASURES["basin_volume"](classifier(model, soft, F.mse_loss))
