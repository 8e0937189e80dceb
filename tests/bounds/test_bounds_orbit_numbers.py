"""Units alone, priors on a grid, large networks, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from test_bounds_orbit import at, case, normed, orbit
from torch import nn

import spiritlevel as sl
from spiritlevel.bounds.envelope import Sum, below, descended
from spiritlevel.bounds.gaussian import Gaussian, divergence, standard
from spiritlevel.bounds.orbit import carried, least_divergence, least_on_grid
from spiritlevel.bounds.quartic import least


def test_units_are_least_on_a_fine_grid() -> None:
    """Against 20,001 scales of each unit, for sides up to six powers of ten apart."""
    draws = np.random.default_rng(0)
    a, c = 10 ** draws.uniform(-3, 3, (2, 300))
    b, d = draws.normal(size=(2, 300)) * 10 ** draws.uniform(-3, 3, (2, 300))
    n, m = draws.integers(1, 800, (2, 300)).astype(float)
    pull = draws.normal(size=300) * 10
    found = least((a, b, n), (c, d, m), pull, draws.normal(size=300))
    t = np.linspace(-20, 20, 20_001)[:, None]

    def value(t: np.ndarray) -> np.ndarray:
        u = np.exp(t)
        return a * u * u / 2 - b * u + c / u / u / 2 - d / u - (n - m - pull) * t

    assert found.value == pytest.approx(float(value(found.t).sum()), rel=1e-12)
    best = value(t).min(0)
    assert (value(found.t) <= best + 1e-12 * abs(best)).all()
    assert best.sum() - found.value < 1e-2 * found.size


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_where_nothing_is_near_its_minimum(seed: int) -> None:
    """From any t, however far, it is below the best of 12 searches."""
    draws = np.random.default_rng(seed)
    rows = np.unique(draws.integers(-1, 2, (12, 4)).astype(float), axis=0)
    table = csr_matrix(rows[abs(rows).sum(1) > 0])
    cells = len(table.indptr) - 1
    a, n = draws.uniform(0.1, 3, (2, cells))
    total = Sum(table, a, draws.normal(size=cells) * 3, n, 0.3, 0.3)
    starts = draws.normal(size=(12, 4)) * 2
    reached = min(total.value(descended(total, t)) for t in starts)
    assert reached <= min(total.value(t) for t in draws.normal(size=(1000, 4)) * 2)
    near = descended(total.envelope, np.zeros(4))
    for t in (near, *draws.normal(size=(60, 4))):
        assert below(total, t, 100.0)[0] <= reached + 1e-9 * abs(reached)


def test_the_envelope_is_convex_below_and_touches() -> None:
    draws = np.random.default_rng(2)
    one = csr_matrix(np.ones((1, 1)))
    for _ in range(20):
        a, b, n = (np.array([v]) for v in (*draws.uniform(0.1, 3, 1), draws.normal() * 3, 1.0))
        total = Sum(one, a, b, n, 0.0, 0.0)
        x = np.linspace(-4, 4, 81)
        true, hull = (
            np.array([f.value(np.array([v])) for v in x]) for f in (total, total.envelope)
        )
        assert (hull <= true + 1e-12).all()
        assert (np.diff(hull, 2) >= -1e-12).all()
        right = np.exp(x) * a >= b
        assert hull[right] == pytest.approx(true[right], abs=1e-12)
        slopes = [total.envelope.terms(np.array([v]))[1][0] for v in x]
        assert np.gradient(hull, x)[1:-1] == pytest.approx(
            slopes[1:-1], abs=2.0 * (x[1] - x[0]) ** 2 * 3000
        )


def test_the_best_prior_of_a_grid() -> None:
    objective, group = orbit("two hidden layers")
    posterior, prior = case("two hidden layers", "init")
    scales = [0.8 * math.exp(-j / 5) for j in range(16)]

    def cost(index: int) -> float:
        return 2 * math.log(index + 1)

    found = least_on_grid(posterior, prior.mean, scales, group, objective.shapes, cost=cost)
    every = [
        least_divergence(
            posterior, Gaussian(prior.mean, torch.tensor(s).double()), group, objective.shapes
        ).kl
        + cost(j)
        for j, s in enumerate(scales)
    ]
    assert found.total == pytest.approx(min(every), rel=1e-6)
    assert found.index == int(np.argmin(every))
    assert found.total == divergence(found.least.posterior, found.prior) + cost(found.index)
    assert at(posterior, found.least.t, "two hidden layers").mean == pytest.approx(
        found.least.posterior.mean, rel=1e-12
    )
    worse = least_on_grid(
        posterior, prior.mean, scales, group, objective.shapes, cost=cost, start=0
    )
    assert worse.total <= every[0]


def test_half_a_million_parameters() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 1))
    data = (torch.randn(8, 784), torch.zeros(8, 1))
    objective = sl.Objective(net, data, F.mse_loss)
    group = sl.symmetries(objective)
    w0 = objective.vector
    posterior = Gaussian(w0 + 0.01 * torch.randn_like(w0), 0.02 + 0.04 * torch.rand_like(w0))
    prior = Gaussian(w0, torch.full_like(w0, 0.04))
    twin = posterior.scaled(group.flat_factors(group.random(1, 1.0), objective.shapes))
    here, there = (least_divergence(q, prior, group, objective.shapes) for q in (posterior, twin))
    assert here.kl == pytest.approx(there.kl, rel=1e-6)
    assert here.least
    assert there.least
    assert there.plain > 2 * there.kl
    assert here.posterior.mean.dtype == torch.float32


def test_nothing_to_move() -> None:
    linear = sl.Objective(nn.Linear(3, 2), (torch.randn(5, 3), torch.zeros(5, 2)), F.mse_loss)
    group = sl.symmetries(linear)
    q = Gaussian(linear.vector, torch.tensor(0.1))
    found = least_divergence(q, standard(linear.vector, 1.0), group, linear.shapes)
    assert found.kl == found.plain == found.lower_bound
    assert found.posterior is q


def test_what_is_refused() -> None:
    objective, group = orbit("one hidden layer")
    posterior, prior = case("one hidden layer", "zero")
    short = standard(torch.ones(3).double(), 1.0)
    with pytest.raises(sl.SpiritlevelError, match="prior is over 3 parameters; give one over the"):
        least_divergence(posterior, short, group, objective.shapes)
    with pytest.raises(sl.SpiritlevelError, match="posterior is a Tensor; give a Gaussian"):
        least_divergence(posterior.mean, prior, group, objective.shapes)  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match=r"group moves '0\.weight', which shapes"):
        least_divergence(short, short, group, {"a": torch.Size([3])})
    with pytest.raises(sl.SpiritlevelError, match="scales=0: give a positive number"):
        least_on_grid(posterior, prior.mean, [1, 0], group, objective.shapes)
    with pytest.raises(sl.SpiritlevelError, match="scales holds none"):
        least_on_grid(posterior, prior.mean, [], group, objective.shapes)
    far = Gaussian(posterior.mean, torch.tensor(1e-160, dtype=torch.float64))
    with pytest.raises(sl.SpiritlevelError, match="too far from the prior for float64"):
        least_divergence(posterior, far, group, objective.shapes)


def test_what_eps_changes_is_refused() -> None:
    objective = normed(0.1)
    group = sl.symmetries(objective, statistics="free", eps="approximate")
    posterior = Gaussian(objective.vector, torch.tensor(0.1).double())
    with pytest.raises(sl.SpiritlevelError, match="eps of 2 norms breaks, and the drawn networks"):
        carried(objective, posterior, group, group.random(0, 1.0))
