"""Tsuzuku's normalized sharpness against SciPy, closed forms and its own bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, randn, small_net
from spiritlevel.base.estimate import Status
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.normalized import balanced, normalized_sharpness


def by_scipy(g: Tensor, w: Tensor) -> float:
    """min over logs of sum (G e^(a+b) + W e^-(a+b)) by L-BFGS."""
    m, n = g.shape

    def value(logs: np.ndarray) -> tuple[float, np.ndarray]:
        both = logs[:m, None] + logs[None, m:]
        up, down = g.numpy() * np.exp(both), w.numpy() * np.exp(-both)
        slope = np.concatenate([(up - down).sum(1), (up - down).sum(0)])
        return float((up + down).sum()), slope

    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-16, "gtol": 1e-10}
    found = minimize(value, np.zeros(m + n), jac=True, method="L-BFGS-B", options=options)
    return float(found.fun)


@pytest.mark.parametrize("shape", [(4, 7), (1, 5), (6, 1), (1, 1), (9, 9)])
@pytest.mark.parametrize("seed", range(2))
def test_the_best_scales_against_scipy(shape: tuple[int, int], seed: int) -> None:
    g, w = (torch.exp(2 * randn(*shape, seed=seed + k)) for k in (10, 20))
    found = balanced(g[None], w[None])
    best = by_scipy(g, w)
    assert found.value == pytest.approx(best, rel=1e-5)
    assert found.value - found.gap <= best * (1 + 1e-9)
    assert found.gap <= 1e-4 * found.value
    factors = found.factors[0]
    assert float((g * factors + w / factors).sum()) == pytest.approx(found.value, rel=1e-12)


def test_closed_forms() -> None:
    """Rank one: 2 sum sqrt(G W), the least that any scales could do; a row: Cauchy and Schwarz."""
    a, b, c, d = (torch.exp(randn(n, seed=n)) for n in (4, 5, 4, 5))
    g, w = torch.outer(a, b), torch.outer(c, d)
    least = 2 * float((g * w).sqrt().sum())
    assert balanced(g[None], w[None]).value == pytest.approx(least, rel=1e-9)
    rows = torch.exp(randn(3, 6, seed=2))
    assert balanced(rows[None], rows[None]).value == pytest.approx(2 * float(rows.sum()), rel=1e-9)


def test_what_has_one_side_only_adds_nothing() -> None:
    """A dead row (no curvature), a column of zeros: their infimum is 0 and not attained."""
    g, w = torch.exp(randn(4, 5, seed=3)), torch.exp(randn(4, 5, seed=4))
    smaller = balanced(g[1:, :4][None], w[1:, :4][None]).value
    g[0], w[:, 4] = 0.0, 0.0
    found = balanced(g[None], w[None])
    assert found.value == pytest.approx(smaller, rel=1e-9)
    assert balanced(g[None] * 0, w[None]).value == 0.0


def test_the_measure_is_the_sum_over_weight_matrices() -> None:
    objective = small_net()
    diagonal = objective.named(Instruments(objective).diagonal.values)
    expected = sum(
        by_scipy(diagonal[name], objective.params[name] ** 2)
        for name in ("0.weight", "2.weight", "4.weight")
    )
    found = normalized_sharpness(Instruments(objective))
    assert found.value == pytest.approx(expected, rel=1e-5)
    assert found.status is Status.CONVERGED
    assert found.residual is not None
    assert found.residual <= 1e-4 * found.value


def convolutional() -> sl.Objective:
    net = nn.Sequential(
        *(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(6, 3)),
    )
    return sl.Objective(randomized(net), (randn(9, 2, 3, 3), labels(9)), F.cross_entropy)


def test_kernels_are_summed_over_taps_and_cut_into_groups() -> None:
    objective = convolutional()
    diagonal = objective.named(Instruments(objective).diagonal.values)

    def table(name: str) -> tuple[Tensor, Tensor]:
        g, w = diagonal[name], objective.params[name] ** 2
        return tuple(t.flatten(2).sum(2) if t.ndim > 2 else t for t in (g, w))  # type: ignore

    g, w = table("2.weight")
    expected = by_scipy(*table("0.weight")) + by_scipy(*table("5.weight"))
    expected += by_scipy(g[:3], w[:3]) + by_scipy(g[3:], w[3:])
    assert normalized_sharpness(Instruments(objective)).value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [small_net, convolutional])
def test_no_rescaling_of_units_is_seen(make: type, seed: int) -> None:
    objective = make()
    group = sl.symmetries(objective)
    twin = group.apply(objective, group.random(seed, 2.0))
    here, there = (normalized_sharpness(Instruments(o)) for o in (objective, twin))
    assert there.value == pytest.approx(here.value, rel=1e-4)
    trace = [Instruments(o).diagonal.values.sum() for o in (objective, twin)]
    assert float(trace[1]) != pytest.approx(float(trace[0]), rel=0.5)


def test_it_is_below_trace_and_norm_of_every_point_of_the_orbit() -> None:
    """With s = t = 1 the sum is tr G + ||W||^2; the scales are free of each other."""
    objective = small_net()
    least = Instruments(objective).least_trace.objective
    for point in (objective, least):
        diagonal, params = Instruments(point).diagonal.values, point.params
        matrices = [name for name in params if params[name].ndim == 2]
        sums = sum(
            float(diagonal[point.spans[n]].sum() + params[n].square().sum()) for n in matrices
        )
        assert normalized_sharpness(Instruments(objective)).value <= sums


def test_many_outputs_have_a_standard_error() -> None:
    """More than 128 outputs: the diagonal is sampled, and the value is from fresh draws."""
    net = randomized(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 130)))
    data = randn(40, 3), labels(40, classes=130)
    objective = sl.Objective(net, data, F.cross_entropy)
    found = normalized_sharpness(Instruments(objective))
    assert found.stderr is not None
    assert found.residual is None
    # the exact minimum, from the whole matrix, lies below but for chance
    exact = objective.named(sl.ggn(objective).dense().diagonal())
    best = sum(by_scipy(exact[n], objective.params[n] ** 2) for n in ("0.weight", "2.weight"))
    assert best - 4 * found.stderr <= found.value <= 1.2 * best
    assert math.isfinite(found.value)


def test_a_model_without_weight_matrices_is_refused() -> None:
    class Gains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * x

    objective = sl.Objective(Gains(), (randn(5, 3), labels(5)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="there is no weight matrix among the chosen"):
        normalized_sharpness(Instruments(objective))
