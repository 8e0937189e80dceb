"""What once was wrong with numbers that are read from pictures, and with their errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.landscape.numbers import barrier, flat_radius

AXIS = [i / 24 for i in range(25)]
FINE = np.linspace(0, 1, 20001)


def test_a_hump_beside_an_end_is_a_barrier() -> None:
    """s (0.03 - s) (1 - s) is above its chord between the first two points only."""
    truth = float((FINE * (0.03 - FINE) * (1 - FINE)).max())
    losses = [s * (0.03 - s) * (1 - s) for s in AXIS]
    for found in (barrier(AXIS, losses), barrier(AXIS, losses[::-1])):
        assert found is not None
        assert found.value == pytest.approx(truth, rel=0.2)
        assert abs(found.value - truth) <= found.error < truth
    falling = barrier(AXIS, [math.cosh(3 * s) for s in AXIS])
    assert falling is not None
    assert (falling.value, falling.error) == (0.0, 0.0)


def test_the_higher_of_two_humps_may_lie_between_points() -> None:
    """One has a point on its top, and the other is higher between two."""

    def hump(s: np.ndarray, at: float, height: float) -> np.ndarray:
        return height * np.exp(-(((s - at) / 0.1) ** 2))

    def loss(s: np.ndarray) -> np.ndarray:
        return hump(s, 6 / 24, 1.0) + hump(s, 16.5 / 24, 1.02)

    truth = float((loss(FINE) - np.interp(FINE, [0, 1], loss(FINE[[0, -1]]))).max())
    found = barrier(AXIS, loss(np.array(AXIS)).tolist())
    assert found is not None
    assert abs(found.value - truth) < 0.01
    assert abs(found.value - truth) <= found.error


@pytest.mark.parametrize(("steps", "modes"), [(25, 1), (25, 3), (51, 4), (11, 2)])
def test_barriers_of_waves_lie_within_their_errors(steps: int, modes: int) -> None:
    draws = np.random.default_rng(0)
    axis = np.arange(steps) / (steps - 1)
    for _ in range(300):
        sizes = draws.standard_normal(modes) / np.arange(1, modes + 1)
        phases = 2 * math.pi * draws.random(modes)

        def loss(s: np.ndarray, sizes=sizes, phases=phases) -> np.ndarray:
            waves = [np.sin((k + 1) * math.pi * s + phases[k]) for k in range(modes)]
            return sum(a * wave for a, wave in zip(sizes, waves, strict=True))  # type: ignore[return-value]

        high = loss(FINE) - np.interp(FINE, [0, 1], loss(FINE[[0, -1]]))
        found = barrier(axis.tolist(), loss(axis).tolist())
        assert found is not None
        assert abs(found.value - high.max()) <= found.error + 1e-7


def test_a_radius_may_be_that_of_the_other_side() -> None:
    """Both intervals hold the nearer crossing, the wider one nearer to the centre."""
    found = flat_radius([-0.6, -0.2, 0.0, 0.3, 0.4], [0.104, 0.0, 0.0, 0.0, 0.2], 0.1)
    assert found is not None
    assert found.value == pytest.approx(0.35)
    assert found.value - found.error == pytest.approx(0.2)


def test_a_radius_where_one_side_is_not_known() -> None:
    axis = [-1.0, -0.5, 0.0, 0.5, 1.0]
    half = flat_radius(axis, [None, None, 0.0, 0.05, 0.2], 0.1)
    assert half is not None
    assert half.value - half.error <= 0  # it may be anywhere from the centre on
    later = flat_radius(axis, [None, 0.0, 0.0, 0.2, 0.2], 0.1)
    assert later is not None
    assert (later.value, later.error) == (0.25, 0.25)
    assert flat_radius(axis, [None, 0.0, 0.0, 0.0, 0.0], 0.1) is None


def test_falling_to_no_end_is_no_rise() -> None:
    assert flat_radius([-1.0, 0.0, 1.0], [-math.inf, 0.0, -1.0], 0.1) is None
    for centre in (math.nan, math.inf, -math.inf):
        assert flat_radius([-1.0, 0.0, 1.0], [1.0, centre, 1.0], 0.1) is None


def bowl(values: Tensor) -> sl.Objective:
    """L = 1 + w' H w / 2 with these eigenvalues, turned."""
    turn = torch.linalg.qr(randn(len(values), len(values)))[0]
    matrix = turn @ torch.diag(values) @ turn.T

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(len(values)).double())

    def loss(model: Point, batch: tuple[Tensor, ...]) -> Tensor:
        return 1 + model.w @ matrix @ model.w / 2 + 0 * batch[0].sum()

    return sl.Objective(Point(), (randn(2, 1), labels(2)), loss)


@pytest.mark.parametrize("budget", [10, 200])
def test_ratios_with_little_curvature_upwards_lie_within_their_errors(budget: int) -> None:
    values = torch.cat([torch.linspace(-100, -1, 79), torch.tensor([0.3])]).double()
    objective = bowl(values)
    directions = [torch.eye(80).double()[k] for k in range(2)]
    for seed in range(3):
        drawn = sl.landscape.convexity(
            objective, directions=directions, steps=3, budget=budget, seed=seed
        )
        assert drawn.sheets[0].errors is not None
        found, error = drawn.values[1][1], drawn.sheets[0].errors[1][1]
        assert found is not None
        assert error is not None
        assert error == math.inf or abs(found - 100 / 0.3) <= error
    sunk = sl.landscape.convexity(bowl(-values.abs()), directions=directions, steps=3)
    assert sunk.values[1][1] == math.inf
    assert sunk.sheets[0].errors is not None


def test_the_barrier_of_three_points() -> None:
    found = barrier([0.0, 0.5, 1.0], [1.0, 3.0, 1.0])
    assert found is not None
    assert (found.value, found.error) == (2.0, 2.0)
