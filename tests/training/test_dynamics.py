"""What the literature says of plain gradient descent, run: its noise, its edge, its wells."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.training import RaiseThenDecay

ERRORS = 4  # standard errors that a mean over seeds may be off by


class Walkers(nn.Module):
    """Many independent trainings of one weight, one in each element."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.double())

    def forward(self, given: Tensor) -> Tensor:
        return self.x.expand(len(given), -1)


def drawn(data: Tensor, batch: int, walkers: int, draws: torch.Generator) -> Tensor:
    """A batch for every walker, with replacement: (batch, walkers)."""
    return data[torch.randint(len(data), (batch, walkers), generator=draws)]


def trained(start: Tensor, rate: float, batches: Any, steps: int) -> Tensor:
    """Where plain SGD takes the walkers; `batches(x)` is the sum of their losses."""
    model = Walkers(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        batches(model.x).backward()
        optimizer.step()
    return model.x.detach()


def objective(data: Tensor, loss: Any) -> sl.Objective:
    """Of one walker at zero."""
    model = Walkers(torch.zeros(1))
    return sl.Objective(model, (torch.zeros(len(data)), data[:, None]), loss)


# Noise -------------------------------------------------------------------------------------------

SPREAD = torch.tensor([-1.5, -0.25, 0.5, 1.25], dtype=torch.float64)  # their mean is zero
H = 2.0


@pytest.mark.parametrize(("rate", "batch"), [(0.1, 1), (0.2, 2), (0.4, 4), (0.4, 1)])
def test_the_stationary_variance_is_that_of_the_discrete_walk(rate: float, batch: int) -> None:
    """eta c / (B h (2 - eta h)) on h (x - a_i)^2 / 2, with h and c as they are measured."""
    found = objective(SPREAD, lambda out, y: H * (out - y).square().mean() / 2)
    h = sl.eigenvalues(sl.hessian(found))[0].value
    c = sl.MEASURES["gradient_variance"](found).value
    assert (h, c) == pytest.approx((H, float(H**2 * SPREAD.square().mean())), rel=1e-10)
    walkers, draws = 20_000, torch.Generator().manual_seed(7)

    def loss(x: Tensor) -> Tensor:
        return H * (x - drawn(SPREAD, batch, walkers, draws)).square().mean(0).sum() / 2

    x = trained(torch.zeros(walkers), rate, loss, steps=60)
    squares = x.square()
    error = float(squares.std()) / walkers**0.5
    expected = rate * c / (batch * h * (2 - rate * h))
    assert abs(float(squares.mean()) - expected) < ERRORS * error
    assert error < 0.02 * expected
    # what the continuous limit says is eta c / (2 B h): seen to be another number
    if rate * h > 0.5:
        assert abs(float(squares.mean()) - expected * (1 - rate * h / 2)) > 2 * ERRORS * error


# The edge ----------------------------------------------------------------------------------------

ESCAPING = torch.tensor([0.1, 3.7], dtype=torch.float64)
HEAVY = torch.tensor([0.5, 2.5], dtype=torch.float64)


def growth(data: Tensor, batch: int) -> float:
    """The factor of the mean square in a step of rate 1 on a_i x^2 / 2, as it is measured."""
    found = objective(data, lambda out, y: (y * out.square()).mean() / 2)
    return sl.MEASURES["sgd_growth"](found, rate=1.0, batch=batch).value


def ratios(data: Tensor, batch: int, steps: int, walkers: int = 4000) -> Tensor:
    """log |x_t / x_0| of every walker."""
    draws = torch.Generator().manual_seed(3)

    def loss(x: Tensor) -> Tensor:
        return (drawn(data, batch, walkers, draws).mean(0) * x.square()).sum() / 2

    return trained(torch.ones(walkers), 1.0, loss, steps).abs().log()


@pytest.mark.parametrize(("batch", "leaves"), [(1, True), (32, False)])
def test_noise_alone_drives_sgd_out_and_larger_batches_keep_it(batch: int, leaves: bool) -> None:
    """(1 - eta h)^2 + eta^2 Var(a) / B; full gradients would stay: |1 - eta h| = 0.9."""
    factor = (1 - 1.9) ** 2 + 1.8**2 / batch
    assert growth(ESCAPING, batch) == pytest.approx(factor, rel=1e-6)
    assert (factor > 1) == leaves
    one = (2 * ratios(ESCAPING, batch, steps=1)).exp()
    assert abs(float(one.mean()) - factor) < ERRORS * float(one.std()) / len(one) ** 0.5
    many = ratios(ESCAPING, batch, steps=50)
    assert (float(many.median()) > 0) == leaves
    if batch == 1:  # the logarithm of a step has a mean that is known
        rate = (math.log(0.9) + math.log(2.7)) / 2
        error = float(many.std()) / len(many) ** 0.5
        assert abs(float(many.mean()) - 50 * rate) < ERRORS * error


def test_where_the_mean_square_grows_most_walkers_may_still_come_home() -> None:
    """The factor is of a heavy tail: 1.25 a step in the mean, and |x| falls by 0.87 in the median.

    So a mean over walkers says little, and what is compared with 1 is the factor of one step.
    """
    assert growth(HEAVY, 1) == pytest.approx(1.25, rel=1e-6)
    one = (2 * ratios(HEAVY, 1, steps=1)).exp()
    assert abs(float(one.mean()) - 1.25) < ERRORS * float(one.std()) / len(one) ** 0.5
    many = ratios(HEAVY, 1, steps=60)
    error = float(many.std()) / len(many) ** 0.5
    assert abs(float(many.mean()) - 60 * math.log(0.75) / 2) < ERRORS * error
    assert float(many.median()) < 0
    # all batches by their numbers: k times 1.5 and 60 - k times 0.5
    exact = sum(math.comb(60, k) / 2**60 * (1.5**k * 0.5 ** (60 - k)) ** 2 for k in range(61))
    assert exact == pytest.approx(1.25**60, rel=1e-12)
    assert float((2 * many).exp().mean()) < exact / 10, "4000 walkers have not seen the tail"


# Wells -------------------------------------------------------------------------------------------

NARROW, WIDE = 10.0, 1.0  # curvatures, of minima at -1 and 1


def wells(x: Tensor) -> Tensor:
    """Two parabolas, the lower one of them: the wide one is lower far out on either side."""
    return torch.minimum(NARROW * (x + 1).square(), WIDE * (x - 1).square()) / 2


def curvature(x: float) -> float:
    model = Walkers(torch.tensor([x]))
    data = torch.zeros(1), torch.zeros(1, 1)
    found = sl.Objective(model, data, lambda out, y: (wells(out) + y).mean())
    return sl.eigenvalues(sl.hessian(found))[0].value


def descended(start: float, rate: float, steps: int = 60, **schedule: Any) -> list[float]:
    """The way of gradient descent."""
    model = Walkers(torch.tensor([start]))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    raised = RaiseThenDecay(optimizer, **schedule) if schedule else None
    way = []
    for _ in range(steps):
        optimizer.zero_grad()
        wells(model.x).sum().backward()
        optimizer.step()
        if raised is not None:
            raised.step()
        way.append(float(model.x.detach()))
    return way


@pytest.mark.parametrize("start", [-1.001, -0.999, -0.9])
def test_rates_between_the_edges_leave_the_narrow_well_for_the_wide(start: float) -> None:
    """2 / h1 < eta < 2 / h2."""
    assert curvature(start) == pytest.approx(NARROW, rel=1e-6)
    rate = 0.5
    assert 2 / NARROW < rate < 2 / WIDE
    end = descended(start, rate)[-1]
    assert end == pytest.approx(1.0, abs=1e-9)
    assert curvature(end) == pytest.approx(WIDE, rel=1e-6)
    assert descended(1.2, rate)[-1] == pytest.approx(1.0, abs=1e-9)


def test_small_rates_stay_in_either_well_and_large_ones_in_none() -> None:
    assert descended(-0.9, 0.1)[-1] == pytest.approx(-1.0, abs=1e-9)
    assert descended(1.2, 0.1, steps=300)[-1] == pytest.approx(1.0, abs=1e-9)
    assert abs(descended(1.2, 2.1)[-1] - 1) > 0.2


def test_a_rate_that_rises_and_falls_leaves_the_well_that_it_started_in() -> None:
    """From 0.05, which stays, to 0.5 and back (Seong et al., 2018)."""
    start, rate = -0.999, 0.05
    assert descended(start, rate, steps=200)[-1] == pytest.approx(-1.0, abs=1e-9)
    way = descended(start, rate, steps=400, peak=10, rise=40, fall=40)
    assert way[-1] == pytest.approx(1.0, abs=1e-6)
    assert curvature(way[-1]) == pytest.approx(WIDE, rel=1e-6)
    # not before the rate has passed 2 / h1 = 0.2, at step 40 * (0.2 - 0.05) / 0.45 = 13.3
    assert all(abs(x + 1) < 1e-3 for x in way[:13])
    mild = descended(start, rate, steps=400, peak=3.5, rise=40, fall=40)
    assert mild[-1] == pytest.approx(-1.0, abs=1e-9), "a peak under the edge changes nothing"
