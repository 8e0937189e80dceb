"""Whether a point is called a minimum: where the answer is known, and where it must not be said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.results.data import plain
from spiritlevel.results.rest import Rest, Standing


def line() -> nn.Linear:
    return nn.Linear(4, 3, bias=False).double()


def least_squares() -> tuple[sl.Objective, torch.Tensor]:
    x = randn(30, 4)
    y = x @ randn(4, 3, seed=8) + randn(30, 3, seed=9)
    return sl.Objective(line(), (x, y), F.mse_loss), torch.linalg.lstsq(x, y).solution.T


def standing(objective: sl.Objective) -> Rest:
    found = sl.measure(objective, ["lambda_max"]).rest
    assert found is not None
    return found


def test_at_a_minimum_and_away_from_it() -> None:
    """The Krylov space of a quadratic with four eigenvalues is exact: the step is Newton's."""
    objective, solution = least_squares()
    least = objective.at({"weight": solution})
    rest = standing(least)
    assert rest.standing is Standing.MINIMUM
    assert rest.gain <= 1e-12
    assert sl.measure(least).verdict.startswith("Close to a minimum: a Newton step lowers the loss")
    away = standing(objective.at({"weight": solution + 1}))
    assert away.standing is Standing.MOVING
    assert away.reached == pytest.approx(least.value(), rel=1e-4)  # damped a little
    assert away.model == pytest.approx(away.loss - least.value(), rel=5e-3)
    assert away.text.startswith("Not at rest: a Newton step lowers the loss by")
    values = torch.linalg.eigvalsh(sl.hessian(objective).dense())
    assert (away.lowest, away.highest) == pytest.approx(
        (float(values[0]), float(values[-1])), rel=1e-6
    )


def bent(tilt: float) -> sl.Objective:
    """w0^2 - w1^2 + tilt w0 + 5, at zero."""

    def saddle(model: nn.Module, batch: Any) -> torch.Tensor:
        w: Any = model.weight
        return w[0].square().sum() - w[1].square().sum() + tilt * w[0].sum() + 5

    return sl.Objective(line(), (randn(30, 4), labels(30)), saddle).at(
        {"weight": torch.zeros(3, 4)}
    )


def test_a_saddle_is_no_minimum() -> None:
    rest = standing(bent(0.0))
    assert rest.standing is Standing.SADDLE
    assert (rest.lowest, rest.highest) == pytest.approx((-2.0, 2.0))
    assert rest.text.startswith("A saddle, not a minimum: curvature reaches -2.00")
    moving = standing(bent(1.0))
    assert moving.standing is Standing.MOVING
    assert moving.reached == pytest.approx(4.0, rel=1e-5)  # w0 = -1/2 in four places


def test_a_negative_end_is_not_taken_for_the_top() -> None:
    """The audit asks for the end of larger magnitude: here it is the negative one."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        w: Any = model.weight
        return 5 * w[0].square().sum() - 9 * w[1].square().sum() + 30 + 0.1 * w[2].sum()

    objective = sl.Objective(line(), (randn(30, 4), labels(30)), loss)
    found = sl.audit(objective, ["hessian_spectral"], way=False).rest
    assert found is not None
    assert found.lowest == pytest.approx(-18.0, rel=1e-3)
    assert found.highest == pytest.approx(10.0, rel=1e-3)
    assert "no direction" not in found.text


def test_negative_curvature_across_the_slope_is_seen() -> None:
    """The Krylov space of the gradient alone holds none of it, nor does the largest eigenvalue."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        w: Any = model.weight
        return w[0].square().sum() - 0.3 * w[1].square().sum() + 1e-6 * w[0].sum() + 5

    objective = sl.Objective(line(), (randn(30, 4), labels(30)), loss)
    found = sl.audit(
        objective.at({"weight": torch.zeros(3, 4)}), ["hessian_spectral"], way=False
    ).rest
    assert found is not None
    assert found.lowest == pytest.approx(-0.6, rel=1e-6)
    assert found.standing is Standing.SADDLE


def test_no_step_of_a_training_run_is_called_a_minimum() -> None:
    """While the loss still falls by more than a tenth; oracle: the loss later in the run."""
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    seen = []
    for step in range(121):
        if step % 15 == 0:
            seen.append(standing(sl.Objective(net, (x, y), F.cross_entropy)))
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    last = seen[-1].loss
    assert all(rest.loss > 1.1 * last for rest in seen[:-1])
    assert {rest.standing for rest in seen[:-1]} == {Standing.MOVING}


def test_a_flat_loss_is_flat() -> None:
    objective, _ = least_squares()
    flat = sl.Objective(line(), objective.batches, lambda out, y: 0 * out.square().mean())
    assert standing(flat).standing is Standing.FLAT
    assert standing(flat).text == "Flat to rounding: neither slope nor curvature."


@pytest.mark.parametrize("loss", [lambda out, y: (1 - out * y).relu().mean(), F.l1_loss])
def test_without_curvature_there_is_no_newton_step(loss: Any) -> None:
    y = torch.ones(30, 3).double()
    found = standing(sl.Objective(line(), (randn(30, 4), y), loss))
    assert found.standing is Standing.UNCLEAR
    assert found.model == math.inf
    assert found.text == (
        "Undecided whether a minimum: there is a slope and no curvature, so that no Newton step is "
        "known; curvature was seen from 0.0 to 0.0."
    )


def test_what_a_model_promises_beyond_measure_is_not_told_in_digits() -> None:
    assert "by 0% (500% by its" in replace(REST, model=5.0).text
    assert "by 0% (more than 10 times its size by its" in replace(REST, model=3.7e200).text


REST = Rest(
    loss=1.0, reached=1.0, model=0.0, slope=1e-9, lowest=0.0, highest=10.0, products=8
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Standing.MINIMUM),
        ({"lowest": -0.009}, Standing.MINIMUM),
        ({"lowest": -0.1}, Standing.UNCLEAR),
        ({"lowest": -1.0}, Standing.SADDLE),
        ({"model": 0.05}, Standing.UNCLEAR),
        ({"reached": 0.95}, Standing.MOVING),
        ({"reached": 0.95, "lowest": -1.0}, Standing.MOVING),
        ({"highest": 0.0, "lowest": -1.0}, Standing.SADDLE),
        ({"loss": 0.0, "reached": 0.0}, Standing.MINIMUM),
        ({"highest": 0.0, "slope": 0.0}, Standing.FLAT),
        ({"highest": 0.0, "slope": 1.0, "model": math.inf}, Standing.UNCLEAR),
    ],
)
def test_what_follows_from_the_numbers(change: dict[str, float], expected: Standing) -> None:
    rest = replace(REST, **change)
    assert rest.standing is expected
    assert math.isfinite(rest.gain)
    assert "inf" not in rest.text
    assert plain(rest)["standing"] == expected.value


def test_nothing_is_said_where_nothing_was_asked() -> None:
    objective, _ = least_squares()
    assert sl.measure(objective, ["loss"]).rest is None
    assert sl.measure(objective, ["loss"]).verdict == ""
    table = sl.measure(objective, ["lambda_max"])
    assert table.to_dict()["rest"]["text"] == table.verdict
