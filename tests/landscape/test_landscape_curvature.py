"""Spectra and convexity: dense Hessians say the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn, small_net
from spiritlevel.base.estimate import Estimate
from spiritlevel.landscape.directions import aimed
from spiritlevel.landscape.spectra import apart


def eigenvalues(objective: sl.Objective) -> Tensor:
    return torch.linalg.eigvalsh(sl.hessian(objective, compile=False).dense())


def test_the_ratio_is_that_of_the_dense_hessian() -> None:
    objective = BY_NAME["mlp"].objective()
    surface = sl.landscape.convexity(objective, steps=3, span=0.5, tol=1e-4)
    assert surface.quantity == "convexity"
    d, e = aimed(objective, ["filter", "filter"]).directions
    errors = surface.sheets[0].errors
    assert errors is not None
    for j, b in enumerate(surface.y):
        for i, a in enumerate(surface.x):
            values = eigenvalues(objective.at(objective.vector + a * d + b * e))
            truth = float(max(-values[0], torch.zeros(())) / values[-1])
            found, error = surface.values[j][i], errors[j][i]
            assert found is not None
            assert error is not None
            assert abs(found - truth) <= error + 1e-12
            assert error <= 2.1e-4 * (1 + truth)
    with pytest.raises(sl.SpiritlevelError, match=r"one of convexity: read \.values"):
        _ = surface.losses


class Bowl(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3).double())


def shaped(curves: list[float]) -> sl.Objective:
    def loss(model: Any, batch: Any) -> Tensor:
        return (torch.tensor(curves) * model.w**2).sum() / 2 + 0 * batch[0].sum()

    return sl.Objective(Bowl(), (randn(2, 1), labels(2)), loss)


@pytest.mark.parametrize(
    ("curves", "ratio"), [([1, 2, 4], 0.0), ([-1, 2, 4], 0.25), ([-1, -2, -3], math.inf)]
)
def test_bowls_saddles_and_hills(curves: list[float], ratio: float) -> None:
    directions = [randn(3), randn(3, seed=2)]
    surface = sl.landscape.convexity(shaped(curves), directions=directions, steps=3)
    for row in surface.values:
        assert row == pytest.approx([ratio] * 3)


def test_places_without_a_hessian_are_told_and_the_others_kept() -> None:
    """|w|^1.5 has none at 0, where two rows of the plane meet it."""

    def loss(model: Any, batch: Any) -> Tensor:
        return (model.w.abs() ** 1.5).sum() + 0 * batch[0].sum()

    objective = sl.Objective(Bowl(), (randn(2, 1), labels(2)), loss)
    directions = [torch.tensor([1.0, 1, 1]), torch.tensor([1.0, 2, 3])]
    surface = sl.landscape.convexity(objective.at(torch.ones(3)), directions=directions, steps=3)
    values = [value for row in surface.values for value in row if value is not None]
    broken = [math.isnan(value) for value in values]
    assert len(values) == 9
    assert 0 < sum(broken) < 9
    assert values[4] == 0
    note = f"no ratio at {sum(broken)} of 9 places: "
    assert any(text.startswith(note) for text in surface.provenance["notes"])


def test_spectra_hold_the_eigenvalues() -> None:
    objective = small_net()
    found = sl.landscape.spectra(objective, layers=True, orbit=1, steps=40, top=4)
    names = ["as given", "0", "2", "4", "rescaled, 100%"]
    assert [one.name for one in found][:5] == names
    truth = eigenvalues(objective)
    whole = found["as given"]
    assert whole.size == objective.size
    grid, height = torch.tensor(whole.grid).double(), torch.tensor(whole.density).double()
    assert float(torch.trapezoid(height, grid)) == pytest.approx(1, abs=1e-3)
    mean = float(torch.trapezoid(height * grid, grid)) * objective.size
    assert mean == pytest.approx(float(truth.sum()), rel=0.3)
    for one, value in zip(whole.outliers, truth.flip(0), strict=False):
        assert abs(one.value - float(value)) <= one.error + 1e-9
    twin = found["rescaled, 100%"]
    assert twin.certificate is not None
    assert twin.certificate.verdict == "exact"
    group = sl.symmetries(objective)
    moved = eigenvalues(group.apply(objective, group.random(0, 1.0)))
    assert twin.grid[-1] - 4 * twin.sigma == pytest.approx(float(moved[-1]), rel=1e-3)
    assert found.provenance["products"] > 0


def test_what_lies_apart() -> None:
    values = [Estimate(v) for v in (9.0, 8.0, 2.0, 1.9, 1.8)]
    assert [e.value for e in apart(tuple(values))] == [9.0, 8.0]
    assert apart(tuple(values[2:])) == ()
    assert apart(()) == ()


def test_a_density_draws_itself() -> None:
    density = sl.density(sl.hessian(small_net()), probes=3, steps=20)
    figure = density.plot()
    curves = [torch.tensor(line.get_xdata()) for axes in figure.axes for line in axes.lines]
    drawn = max(curves, key=len)
    assert float(drawn.min()) == pytest.approx(float(density.grid[0]))
    assert float(drawn.max()) == pytest.approx(float(density.grid[-1]))
