"""Curvature in a transported metric against dense matrices, with honest errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, randn, small_net
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.operator import from_matrix
from spiritlevel.measures import metric
from spiritlevel.measures.instruments import Instruments

NAMES = ("metric_trace", "relative_log_determinant")


def truth(name: str, objective: sl.Objective, damping: float) -> float:
    size = objective.vector.abs()
    g = size[:, None] * sl.ggn(objective).dense() * size
    h = size[:, None] * sl.hessian(objective).dense() * size
    eye = torch.eye(len(size)).double()
    if name == "metric_trace":
        return float(torch.linalg.solve(g + damping * eye, h).trace())
    return float(torch.linalg.slogdet(eye + g / damping)[1])


def measured(name: str, objective: sl.Objective, **options: Any) -> Estimate:
    return sl.MEASURES[name](objective, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damping", [0.1, 1.0])
def test_small_networks_are_exact(name: str, damping: float) -> None:
    objective = small_net()
    found = measured(name, objective, damping=damping)
    assert found.value == pytest.approx(truth(name, objective, damping), rel=1e-8)
    assert found.status is Status.EXACT


def probed(name: str, objective: sl.Objective, damping: float, seed: int) -> Estimate:
    tools = Instruments(objective, seed=seed, rtol=0.1, compile=False)
    return sl.MEASURES[name].function(tools, damping=damping)  # type: ignore[return-value]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damping", [1.0, 10.0])
def test_random_probes_have_an_honest_error(
    name: str, damping: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric, "DENSE", 0)
    monkeypatch.setattr(metric, "PAIRS", 2)
    monkeypatch.setattr(metric, "STEPS", 30)
    objective = small_net()
    expected = truth(name, objective, damping)
    found = [probed(name, objective, damping, seed) for seed in range(4)]
    apart = [(e.value - expected) / e.error for e in found]
    assert max(abs(z) for z in apart) <= 4
    assert len({e.value for e in found}) == len(found)  # by chance
    for e in found:
        assert e.error <= 0.3 * expected
        assert (e.status is Status.CONVERGED) == (e.error <= 0.1 * e.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dense", [0, 256])
def test_no_units_of_measurement_are_seen(
    name: str, dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """theta = d * eta: H and G become d H d and d G d, and 1/theta^2 becomes d^2/theta^2."""
    monkeypatch.setattr(metric, "DENSE", dense)
    monkeypatch.setattr(metric, "LOOKS", (4,))
    monkeypatch.setattr(metric, "STEPS", 12)  # more would exhaust the space, and draw again
    objective = small_net()
    factors = torch.exp(2 * randn(objective.size, seed=8))
    other = objective.reparametrize(sl.coordinates.Diagonal(factors))
    here, there = (probed(name, o, 1.0, 0).value for o in (objective, other))
    assert there == pytest.approx(here, rel=1e-4 if dense == 0 else 1e-9)


def test_at_a_fitted_minimum_it_counts_directions() -> None:
    """Where H = G the trace is sum g / (g + c) over the eigenvalues of the relative G."""
    net = randomized(nn.Linear(4, 3))
    x = randn(30, 4)
    objective = sl.Objective(net, (x, net(x).detach()), F.mse_loss)
    size = objective.vector.abs()
    g = torch.linalg.eigvalsh(size[:, None] * sl.ggn(objective).dense() * size)
    found = measured("metric_trace", objective, damping=1e-6)
    assert found.value == pytest.approx(float((g / (g + 1e-6)).sum()), rel=1e-9)
    assert 14.9 < found.value < 15


def test_zero_parameters_do_not_count() -> None:
    objective = small_net()
    pruned = objective.vector.clone()
    pruned[::3] = 0
    other = objective.at(pruned)
    assert measured("metric_trace", other).value == pytest.approx(
        truth("metric_trace", other, 0.1), rel=1e-8
    )


def spread_out(n: int) -> Tensor:
    q = torch.linalg.qr(randn(n, n))[0]
    return q @ torch.diag(torch.logspace(-4, 3, n, dtype=torch.float64)) @ q.T


def test_conjugate_gradients_stop_at_their_residual() -> None:
    matrix = spread_out(60)
    found = metric.metric_of(from_matrix((matrix + matrix.T) / 2), 0.1, seed=0)
    b = randn(60, seed=5)
    x, residual = found.solve(b, 1e-6)
    wanted = torch.linalg.solve(matrix + 0.1 * torch.eye(60).double(), b)
    assert residual <= 1.1e-6
    assert float((x - wanted).norm()) <= residual / 0.1


@pytest.mark.parametrize("ratio", [0.1, 30.0, 1e4])
def test_the_error_of_the_quadrature_is_bounded(ratio: float) -> None:
    """Gauss rules of any measure on [0, ratio]: the bound holds, and is not empty."""
    steps, slack = metric._quadrature_steps(ratio, size=2000)
    assert (slack <= 1e-3 * math.log1p(ratio)) == (steps < metric.STEPS)
    for seed in range(3):
        points = ratio * torch.rand(
            2000, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        points[0], points[1] = 0.0, ratio
        exact = float(points.log1p().sum())
        nodes, weights = gauss(points, steps)
        assert abs(2000 * float(weights @ nodes.log1p()) - exact) <= slack + 1e-9 * exact


def gauss(points: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The Gauss rule of equal weights at the points, by Lanczos with all orthogonalization."""
    v = torch.full_like(points, len(points) ** -0.5)
    basis = v[:, None]
    for _ in range(steps - 1):
        w = points * basis[:, -1]
        for _ in range(2):
            w = w - basis @ (basis.T @ w)
        basis = torch.cat([basis, (w / w.norm())[:, None]], 1)
    values, vectors = torch.linalg.eigh(basis.T @ (points[:, None] * basis))
    return values.clamp(min=0), vectors[0] ** 2


def test_a_loss_that_is_not_convex_is_refused() -> None:
    net = randomized(nn.Linear(2, 2))

    def saddle(out: Tensor, y: Tensor) -> Tensor:
        return (out[:, 0].square() - out[:, 1].square() + 0 * y).mean()

    objective = sl.Objective(net, (randn(8, 2), labels(8)), saddle)
    for name in NAMES:
        with pytest.raises(sl.SpiritlevelError, match="not convex in the outputs"):
            measured(name, objective)
