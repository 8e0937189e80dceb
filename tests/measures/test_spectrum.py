"""Shares and determinants of known spectra, dense and from a density."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.instruments import Instruments

SMALL = torch.tensor([8.0, 2.0, 0.5, 0.009, 0.007, 1e-5, 0.0, -0.006, -0.05, -0.4]).double()
# a bulk of flat directions, a tail that crosses every threshold, some outliers, some below zero
LARGE = torch.cat(
    [
        1e-5 * randn(500),
        torch.logspace(-4, -1, 120).double(),
        torch.tensor([0.3, 0.4, 0.7, 1.5, 2.0]).double(),
        -torch.logspace(-4, -1.5, 40).double(),
    ]
)


class Point(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(size, dtype=torch.float64))


def quadratic(spectrum: Tensor) -> sl.Objective:
    """1/2 sum lambda_i (Qw)_i^2; random signs would see the trace of a diagonal one exactly."""
    rotation = torch.linalg.qr(randn(len(spectrum), len(spectrum)))[0]

    def loss(model: Any, batch: Any) -> Tensor:
        return 0.5 * (spectrum * (rotation @ model.w) ** 2).sum() + 0 * batch[0].sum()

    return sl.Objective(Point(len(spectrum)), (randn(2, 1), labels(2)), loss)


def measured(name: str, objective: sl.Objective, **options: Any) -> Estimate:
    return sl.MEASURES[name](objective, **options)


@functools.cache
def large(seed: int) -> Instruments:
    """With one density for all measures and thresholds."""
    return Instruments(quadratic(LARGE), seed=seed, compile=False)


def log_determinant(spectrum: Tensor, above: float = 1e-3) -> float:
    return float(spectrum[spectrum > above * spectrum.abs().max()].log().sum())


def near_zero_share(spectrum: Tensor, below: float = 1e-3, absolute: bool = False) -> float:
    edge = below * (1.0 if absolute else float(spectrum.abs().max()))
    return float((spectrum.abs() < edge).double().mean())


def negative_share(spectrum: Tensor, below: float = 1e-3) -> float:
    return float((spectrum < -below * spectrum.abs().max()).double().mean())


TRUTH: dict[str, Callable[..., float]] = {
    f.__name__: f for f in (log_determinant, near_zero_share, negative_share)
}


def test_a_small_spectrum_is_counted_one_by_one() -> None:
    objective = quadratic(SMALL)
    assert measured("log_determinant", objective).value == pytest.approx(
        float(torch.tensor([8.0, 2.0, 0.5, 0.009]).log().sum()), rel=1e-6
    )
    assert measured("log_determinant", objective, above=0.1).value == pytest.approx(
        float(torch.tensor(16.0).log())
    )
    assert measured("near_zero_share", objective).value == 0.4  # |lambda| < 0.008
    assert measured("near_zero_share", objective, below=1e-2).value == 0.6
    assert measured("near_zero_share", objective, below=6.5e-3, absolute=True).value == 0.3
    assert measured("negative_share", objective).value == 0.2
    assert measured("negative_share", objective, below=1e-5).value == pytest.approx(0.3)
    for name in TRUTH:
        found = measured(name, objective)
        assert found.status is Status.EXACT
        assert found.error == 0
        assert found.matvecs == len(SMALL)


@pytest.mark.parametrize("relative", [1e-3, 1e-2])
@pytest.mark.parametrize("name", TRUTH)
def test_a_density_holds_the_truth_within_its_errors(name: str, relative: float) -> None:
    """Over ten seeds, and with an error that says something."""
    inside, key = 0, "above" if name == "log_determinant" else "below"
    truth = TRUTH[name](LARGE, **{key: relative})
    for seed in range(10):
        found = sl.MEASURES[name].function(large(seed), **{key: relative})
        assert isinstance(found, Estimate)
        enough = 0.05 * (abs(found.value) if name == "log_determinant" else 1)
        assert found.status is (Status.CONVERGED if found.error <= enough else Status.BUDGET)
        assert found.matvecs == 200
        inside += abs(found.value - truth) <= 2 * found.error
        assert abs(found.value - truth) <= 4 * found.error
        assert found.error <= (0.4 * abs(truth) if name == "log_determinant" else 0.04)
    assert inside >= 9


def test_an_edge_in_a_gap_costs_less_than_one_in_a_crowd() -> None:
    """What cannot be placed is the node next to the edge, times the jump there."""
    gap = torch.cat([torch.zeros(400), torch.linspace(0.5, 1.5, 100)]).double()
    crowd = torch.cat([torch.zeros(400), torch.linspace(1e-3, 1.5, 100)]).double()
    errors = [measured("near_zero_share", quadratic(s), below=0.2).error for s in (gap, crowd)]
    assert errors[0] < errors[1]
    at_the_zeros = measured("near_zero_share", quadratic(crowd), below=1e-9, absolute=True)
    assert abs(at_the_zeros.value - 0.8) <= 2 * at_the_zeros.error
    # each eigenvalue near the edge is worth its logarithm
    found = sl.density(sl.hessian(quadratic(crowd)), probes=4, steps=40)
    edge = 0.03
    one, two = (found.sum_over(f, low=edge).error for f in (torch.log, lambda x: 2 * x.log()))
    assert two == pytest.approx(2 * one)
    assert one >= found._unplaced(edge) * abs(float(torch.tensor(edge).log())) * 0.999


def test_sums_over_a_density_are_those_of_its_quadrature() -> None:
    """Moments: exact for each probe, and those of the matrix on average."""
    found = sl.density(sl.hessian(quadratic(LARGE)), probes=30, steps=30)
    square = found.sum_over(torch.square)
    assert abs(square.value - float(LARGE.square().sum())) <= 3 * square.error
    assert found.sum_over().value == pytest.approx(len(LARGE))
    assert found.sum_over().error == pytest.approx(0, abs=1e-9)
    assert found.count_below(0.2).value == pytest.approx(found.sum_over(high=0.2).value)
    parts = found.sum_over(high=0.2).value + found.sum_over(low=0.2).value
    assert parts == pytest.approx(len(LARGE))
    with pytest.raises(sl.SpiritlevelError, match="of is a float; give a function"):
        found.sum_over(0.5)  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="low=nan"):
        found.sum_over(low=float("nan"))


@pytest.mark.parametrize("size", [150, 600])
def test_rounding_makes_no_negative_eigenvalues(size: int) -> None:
    """In float32, zeros scatter to both sides; a threshold below that is raised."""
    weights = torch.linspace(0.5, 2, 20)

    class Few(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-1, 1, size))

    def loss(model: Any, batch: Any) -> Tensor:
        mixed = batch[0][0] @ model.w
        return (weights * mixed**2).sum() + 0 * batch[1].sum()

    mix = randn(20, size).float() / size**0.5
    objective = sl.Objective(Few(), [(mix[None], labels(1))], loss, dtype=torch.float32)
    found = measured("negative_share", objective, below=1e-12)
    assert abs(found.value) <= 2 * found.error
    flat = measured("near_zero_share", objective, below=1e-12)
    assert abs(flat.value - (size - 20) / size) <= 2 * flat.error + 1e-6


def test_one_set_of_products_serves_all_three() -> None:
    table = sl.measure(quadratic(LARGE), list(TRUTH), budget=100)
    assert [row.shared for row in table.rows] == [False, True, True]
    assert table.rows[0].estimate.matvecs == 100
    tools = Instruments(quadratic(SMALL), budget=9)  # too few for one product per parameter
    found = sl.MEASURES["negative_share"].function(tools)
    assert isinstance(found, Estimate)
    assert found.status is Status.BUDGET
    assert abs(found.value - 0.2) <= 2 * found.error


@pytest.mark.parametrize("size", [10, 320])
def test_a_flat_loss_is_flat_everywhere(size: int) -> None:
    """All eigenvalues are zero: counted one by one, or from a density that knows them."""
    objective = quadratic(torch.zeros(size).double())
    for name, truth in (("log_determinant", 0), ("near_zero_share", 1), ("negative_share", 0)):
        found = measured(name, objective)
        assert found.value == pytest.approx(truth, abs=1e-12)
        assert found.error == pytest.approx(0, abs=1e-12)
    assert sl.negative_eigenvalues(sl.hessian(objective)).value == 0
