"""Worst losses in balls and boxes against closed forms and brute force."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import spiritlevel as sl
import zoo
from cases import labels, randn, small_net
from quadratics import CURVATURES, at_rest, linear, quadratic
from spiritlevel.base.estimate import Estimate, Status

SLOPE = torch.tensor([0.3, -2.0, 0.5, 0.0], dtype=torch.float64)


def measured(name: str, objective: sl.Objective, **options: Any) -> Estimate:
    return sl.MEASURES[name](objective, **options)


def test_slopes_have_the_dual_norm() -> None:
    """rho ||g||_2 in the ball, rho ||g||_1 in the box, with |w| relative to each parameter."""
    objective = linear(SLOPE, base=10.0)
    loss, w = objective.value(), objective.vector.abs()
    closed = {
        "eps_sharpness": 0.05 * SLOPE.norm() / (1 + loss),
        "eps_sharpness_box": 2e-3 * SLOPE.abs().sum() / (1 + loss),
        "adaptive_worst": 0.5 * (w * SLOPE).norm(),
        "adaptive_box": 4e-3 * (w * SLOPE).abs().sum(),
    }
    for name, value in closed.items():
        found = measured(name, objective)
        assert found.value == pytest.approx(float(value), rel=1e-9), name
        assert found.status is Status.LOWER_BOUND


@pytest.mark.parametrize("radius", [1e-3, 0.1])
def test_boxes_of_a_quadratic_are_sums_of_curvatures(radius: float) -> None:
    """At a minimum every corner is a maximum: rho^2 / 2 sum lambda."""
    objective = at_rest(base=1.0)
    rise = radius**2 / 2 * float(CURVATURES.sum())
    found = measured("eps_sharpness_box", objective, radius=radius)
    assert found.value == pytest.approx(rise / 2, rel=1e-9)
    rise = radius**2 / 2 * float(CURVATURES @ objective.vector**2)
    found = measured("adaptive_box", objective, radius=radius)
    assert found.value == pytest.approx(rise, rel=1e-9)


def test_the_best_corner_of_a_slope_and_a_quadratic() -> None:
    """Off the minimum the corners differ: |g_i| rho + lambda_i rho^2 / 2 each."""
    objective = quadratic(randn(5, seed=3), randn(5, seed=5))
    corners = itertools.product((-0.2, 0.2), repeat=5)
    steps = [torch.tensor(c, dtype=torch.float64) for c in corners]
    best = max(objective.at(objective.vector + d).value() for d in steps)
    found = sl.worst_in_ball(objective, 0.2, norm="linf")
    assert found.loss == pytest.approx(best, rel=1e-12)
    assert float(found.perturbation.abs().max()) == pytest.approx(0.2, rel=1e-12)


def test_a_small_ball_at_a_large_loss_is_searched_to_the_end() -> None:
    """The rise is a millionth of the loss: an ascent that looked at the loss would stop at once."""
    objective = at_rest(base=100.0)
    found = sl.worst_in_ball(objective, 0.01, seed=1)
    assert found.rise == pytest.approx(0.01**2 * 3.0 / 2, rel=1e-3)


def test_no_point_that_was_tried_is_worse() -> None:
    """On a network: random points of the ball and the box stay below what is found."""
    objective = small_net()
    draws = torch.Generator().manual_seed(0)
    for norm in ("l2", "linf"):
        found = sl.worst_in_ball(objective, 0.1, norm=norm)
        size = found.perturbation.norm() if norm == "l2" else found.perturbation.abs().max()
        assert float(size) <= 0.1 * (1 + 1e-12)
        assert objective.at(objective.vector + found.perturbation).value() == pytest.approx(
            found.loss, rel=1e-12
        )
        for _ in range(100):
            d = torch.randn(objective.size, generator=draws, dtype=torch.float64)
            d = 0.1 * (d / d.norm() if norm == "l2" else d.sign())
            assert objective.at(objective.vector + d).value() < found.loss


def test_zero_weights_stay_zero() -> None:
    """The adaptive ball is that of |w| itself: where w is zero nothing moves."""
    w = torch.tensor([0.0, 2.0, -1.0, 0.0, 0.5], dtype=torch.float64)
    objective = quadratic(w, w)
    largest = float((CURVATURES * w**2).max())
    assert measured("adaptive_worst", objective).value == pytest.approx(largest / 8, rel=1e-6)
    found = sl.worst_in_ball(objective, 0.5, scale=w.abs(), norm="linf")
    assert found.perturbation[w == 0].tolist() == [0.0, 0.0]


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(sl.SpiritlevelError, match="norm='l1' is not known; choose one of"):
        sl.worst_in_ball(at_rest(), 0.1, norm="l1")


def test_a_loss_that_overflows_does_not_win() -> None:
    """exp(w) beyond the largest number, on the whole sphere: the point itself is what is left."""

    class Steep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([700.0], dtype=torch.float64))

    objective = sl.Objective(
        Steep(), (randn(4, 1), torch.zeros(4)), lambda model, batch: model.w.exp().sum()
    )
    found = sl.worst_in_ball(objective, 20.0)
    assert found.loss == objective.value() < math.inf
    assert found.rise == 0.0


@pytest.mark.parametrize(
    "name", ["keskar", "eps_sharpness", "eps_sharpness_box", "filterwise_worst"]
)
def test_a_search_goes_along_with_a_renumbering(name: str) -> None:
    """It begins at random in the order of the weights: other units, the same search."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = zoo.Transformer().double()
    point = sl.Objective(net, (randn(20, 5, 3), labels(20)), F.cross_entropy)
    here = measured(name, point).value
    for seed in range(3):
        twin = point
        for units in sl.symmetry.permutations(point):
            twin = units.apply(twin, units.random(seed))
        assert not torch.equal(twin.vector, point.vector)
        assert measured(name, twin).value == pytest.approx(here, rel=1e-6)
