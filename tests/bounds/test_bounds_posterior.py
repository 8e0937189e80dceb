"""Posteriors: their training against a minimum that is known, and the errors of what is drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import norm
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.drawing import Drawing, drawing, drawn_errors, mean_error
from spiritlevel.bounds.gaussian import Gaussian, best_scale, divergence, refitted
from spiritlevel.bounds.posterior import (
    OfBound,
    OfDescription,
    OfErrors,
    Recipe,
    trained_posterior,
)
from spiritlevel.objective import classes


def logistic(n: int = 48, seed: int = 0) -> sl.Objective:
    """Two weights, one logit, labels that a slope of 2 makes likely."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = (torch.rand(n, generator=g, dtype=torch.float64) < torch.sigmoid(2 * x[:, 0])).double()
    net = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        net.weight.zero_()
    loss = F.binary_cross_entropy_with_logits
    return sl.Objective(net, (x, y[:, None]), loss)


def expected_bits(objective: sl.Objective, mean: Any, spread: Any) -> float:
    """E_Q of the mean cross-entropy in bits: a logit is N(x w, x^2 s^2), by Gauss-Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    x, y = (t.numpy() for t in objective.batches[0])
    centre, width = x @ np.asarray(mean), np.sqrt(x**2 @ np.asarray(spread) ** 2)
    f = centre[:, None] + width[:, None] * nodes
    loss = np.logaddexp(0, f) - y * f
    return float((loss @ weights).mean() / math.sqrt(2 * math.pi) / math.log(2))


def test_the_trained_posterior_has_the_least_description_length() -> None:
    objective, prior = logistic(), Gaussian(torch.zeros(2).double(), torch.ones(2).double())
    cost = OfDescription(48)

    def length(at: Any) -> float:
        q = Gaussian(torch.as_tensor(at[:2]), torch.as_tensor(at[2:]).exp())
        return cost.value(expected_bits(objective, at[:2], np.exp(at[2:])), divergence(q, prior))

    best = minimize(length, np.zeros(4), method="BFGS")
    recipe = Recipe(epochs=800, batch=48, rate=0.03, spread_rate=0.03, last=1e-3)
    found = trained_posterior(objective, prior, prior, cost=cost, recipe=recipe)
    reached = np.concatenate([found.posterior.mean, found.posterior.spread.log()])
    assert length(reached) - best.fun < 5e-4
    np.testing.assert_allclose(reached, best.x, atol=0.1)
    told = found.steps[-1]
    assert told.kl == pytest.approx(divergence(found.posterior, prior), rel=1e-9)
    assert told.bound == pytest.approx(cost.value(told.surrogate, told.kl), rel=1e-12)


def test_a_scale_that_follows_is_the_best_for_the_posterior() -> None:
    objective = logistic()
    start = Gaussian(torch.zeros(2).double(), torch.full((2,), 0.1).double())
    recipe = Recipe(epochs=20, batch=16)
    options = {"cost": OfBound(48, 5.0), "recipe": recipe, "follows": True}
    found = trained_posterior(objective, start, start, **options)
    kl = divergence(found.posterior, found.prior)
    for factor in (0.98, 1.02):
        other = Gaussian(found.prior.mean, factor * found.prior.spread)
        assert kl < divergence(found.posterior, other)
    capped = trained_posterior(objective, start, start, largest=1e-3, **options)
    assert float(capped.prior.spread[0]) == pytest.approx(math.sqrt(1e-3))


@given(st.floats(1e-3, 3), st.floats(0.1, 1e4), st.integers(10, 10**5))
def test_prices_are_ratios_of_slopes(surrogate: float, kl: float, m: int) -> None:
    for cost in (OfBound(m, 12.0), OfDescription(m), OfErrors()):
        up, over = 1e-5 * surrogate, 1e-5 * kl
        slopes = [
            (cost.value(surrogate + up, kl) - cost.value(surrogate - up, kl)) / (2 * up),
            (cost.value(surrogate, kl + over) - cost.value(surrogate, kl - over)) / (2 * over),
        ]
        assert cost.price(surrogate, kl) == pytest.approx(slopes[1] / slopes[0], rel=1e-4)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_the_divergence_is_that_of_torch_and_its_best_scale_is_best(seed: int, size: int) -> None:
    g = torch.Generator().manual_seed(seed)
    w, w0, s = (torch.randn(size, generator=g, dtype=torch.float64) for _ in range(3))
    posterior = Gaussian(w, s.exp())
    prior = refitted(Gaussian(w0, torch.ones(size).double()), posterior)
    normal = torch.distributions.Normal
    truth = torch.distributions.kl_divergence(
        normal(posterior.mean, posterior.spread), normal(prior.mean, prior.spread)
    ).sum()
    assert divergence(posterior, prior) == pytest.approx(float(truth), rel=1e-9, abs=1e-12)
    scale = best_scale(posterior, w0)
    for factor in (0.99, 1.01):
        other = Gaussian(w0, torch.full((size,), factor * scale).double())
        assert divergence(posterior, prior) < divergence(posterior, other)
    assert best_scale(posterior, w0, 1e-6) == pytest.approx(1e-3)


def three_classes() -> sl.Objective:
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(90, 4, generator=g), torch.randint(0, 3, (90,), generator=g)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return sl.Objective(net, (x, y), F.cross_entropy, microbatch=40)


def test_drawn_errors_are_those_of_the_networks() -> None:
    objective = three_classes()
    posterior = Gaussian(objective.vector, torch.full_like(objective.vector, 0.5))
    many = drawing(objective, posterior, 5)
    assert many.together > 1
    errors, came = drawn_errors(many, many.together + 3)
    assert not came
    assert len(errors) == many.together + 3
    known = classes.labels(objective)
    noise = torch.randn(2, objective.size, generator=torch.Generator().manual_seed(9))
    points = objective.vector + 0.5 * noise
    truth = [classes.error(objective, known, objective.named(point)) for point in points]
    assert many.errors(points) == pytest.approx(truth, abs=1e-12)
    assert [Drawing(objective, posterior, known, 5).error(p) for p in points] == truth
    again, _ = drawn_errors(many, many.together + 3, errors[: many.together - 2])
    assert again == errors


def test_the_mean_error_is_that_of_the_posterior() -> None:
    """One weight, one example: the error is P(w < 0); upper ends hold but for their delta."""
    net = nn.Linear(1, 1, bias=False).double()
    one = torch.ones(1, 1).double()
    objective = sl.Objective(net, (one, one), F.binary_cross_entropy_with_logits)
    posterior = Gaussian(torch.tensor([0.5]).double(), torch.tensor([1.0]).double())
    truth, missed = norm.cdf(-0.5), 0
    for seed in range(40):
        errors, _ = drawn_errors(drawing(objective, posterior, seed), 200)
        found = mean_error(errors, 0.05)
        missed += found.above < truth
        assert found.error <= found.above
        assert abs(found.error - truth) < 5 * found.stderr
    assert missed <= 6  # of 40 with a chance of 0.05 each: more has a chance of 0.003


def test_the_same_seed_gives_the_same_bits_and_leaves_no_trace() -> None:
    objective = three_classes()
    before, point = torch.get_rng_state(), objective.vector.clone()
    start = Gaussian(objective.vector, torch.full_like(objective.vector, 0.1))

    def trained(seed: int) -> Tensor:
        options = {"cost": OfBound(90, 5.0), "recipe": Recipe(epochs=3, batch=32)}
        return trained_posterior(objective, start, start, seed=seed, **options).posterior.mean

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(point, objective.vector)


def test_what_cannot_be_trained_is_refused() -> None:
    objective = logistic()
    right = Gaussian(torch.zeros(2).double(), torch.ones(2).double())
    wrong = Gaussian(torch.zeros(3), torch.ones(3))
    with pytest.raises(SpiritlevelError, match="start is over 3 parameters; the objective has 2"):
        trained_posterior(objective, wrong, right, cost=OfErrors())
    with pytest.raises(SpiritlevelError, match="prior is a Tensor; give a Gaussian"):
        trained_posterior(objective, right, right.mean, cost=OfErrors())  # type: ignore[arg-type]
    for field, value in {"momentum": 1.0, "rate": -1.0, "batch": 0, "start": 0.0}.items():
        with pytest.raises(SpiritlevelError, match=f"{field}="):
            Recipe(**{field: value})  # type: ignore[arg-type]
    far = Recipe(epochs=30, rate=1e308, spread_rate=1e308)
    with pytest.raises(SpiritlevelError, match="left the finite numbers in epoch"):
        trained_posterior(objective, right, right, cost=OfErrors(), recipe=far)
