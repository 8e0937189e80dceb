"""Schedules against their closed forms and torch's own, and resumed in the middle."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)

import spiritlevel as sl
from spiritlevel.training import PathSGD, RaiseThenDecay, Restarting


def sgd(*rates: float, momentum: float = 0.0) -> torch.optim.SGD:
    """One parameter for each rate."""
    groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, momentum=momentum)


def rates(optimizer: torch.optim.Optimizer, schedule: LRScheduler, steps: int) -> list[Any]:
    """The rates of the first group, and those of all groups are in proportion."""
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_it_rises_to_the_peak_and_falls() -> None:
    optimizer = sgd(0.1, 0.4)
    schedule = RaiseThenDecay(optimizer, peak=5, rise=4, fall=2, end=0.5)
    found = rates(optimizer, schedule, 9)
    factors = [1, 2, 3, 4, 5, 2.75, 0.5, 0.5, 0.5]
    assert found == pytest.approx([0.1 * f for f in factors], rel=1e-15)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.2, rel=1e-15)
    assert schedule.get_last_lr() == [g["lr"] for g in optimizer.param_groups]


def test_it_has_several_peaks_that_fade() -> None:
    optimizer = sgd(1.0)
    schedule = RaiseThenDecay(optimizer, peak=8, rise=2, fall=2, end=2, peaks=2, fade=0.5)
    assert rates(optimizer, schedule, 11) == [1, 4.5, 8, 5, 2, 3, 4, 3, 2, 2, 2]


def test_the_ways_between_are_those_of_their_formulas() -> None:
    optimizer = sgd(1.0)
    bent = RaiseThenDecay(optimizer, peak=16, rise=4, fall=4, end=0.01, shape="geometric")
    found = rates(optimizer, bent, 9)
    down = [16 * (0.01 / 16) ** (i / 4) for i in range(5)]
    assert found == pytest.approx([1, 2, 4, 8, *down], rel=1e-14)
    optimizer = sgd(1.0)
    smooth = RaiseThenDecay(optimizer, peak=3, rise=4, fall=4, end=0, shape="cosine")
    up = [2 - math.cos(math.pi * i / 4) for i in range(4)]
    down = [1.5 + 1.5 * math.cos(math.pi * i / 4) for i in range(5)]
    assert rates(optimizer, smooth, 9) == pytest.approx([*up, *down], rel=1e-14, abs=1e-15)


def test_one_peak_with_cosines_is_the_one_cycle_of_torch() -> None:
    one, other = sgd(0.25), sgd(1.0)
    mine = RaiseThenDecay(one, peak=4, rise=3, fall=6, end=1e-3, shape="cosine")
    theirs = OneCycleLR(
        other, 1.0, 10, pct_start=0.4, div_factor=4, final_div_factor=1000, cycle_momentum=False
    )
    found = [rates(one, mine, 10), [other.param_groups[0]["lr"]]]
    for _ in range(9):
        other.step()
        theirs.step()
        found[1].append(other.param_groups[0]["lr"])
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def falling(optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    return CosineAnnealingLR(optimizer, steps)


@pytest.mark.parametrize("growth", [1, 2])
def test_restarted_cosines_are_the_warm_restarts_of_torch(growth: int) -> None:
    one, other = sgd(0.3), sgd(0.3)
    mine = Restarting(one, falling, period=5, growth=growth)
    theirs = CosineAnnealingWarmRestarts(other, 5, growth)
    found, expected = rates(one, mine, 33), rates(other, theirs, 33)
    assert found == pytest.approx(expected, rel=1e-12)


def test_any_schedule_restarts_as_it_began() -> None:
    """One that multiplies what is there, and one that moves the momentum too."""
    optimizer = sgd(0.5)
    schedule = Restarting(optimizer, lambda o, n: ExponentialLR(o, 0.5), period=2, growth=1.5)
    rounds = [[0.5, 0.25], [0.5, 0.25, 0.125], [0.5, 0.25, 0.125, 0.0625], [0.5]]
    assert rates(optimizer, schedule, 10) == [rate for part in rounds for rate in part]
    moving = sgd(0.1, momentum=0.3)
    turning = Restarting(moving, lambda o, n: OneCycleLR(o, 1.0, n), period=4)
    first = [(moving.param_groups[0]["lr"], moving.param_groups[0]["momentum"])]
    for _ in range(8):
        moving.step()
        turning.step()
        first.append((moving.param_groups[0]["lr"], moving.param_groups[0]["momentum"]))
    assert first[:4] == first[4:8]
    assert first[8] == first[0]
    assert len(set(first)) == 4


def bent(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return RaiseThenDecay(optimizer, peak=3, rise=3, fall=5, peaks=2, fade=0.7, shape="geometric")


def turned(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return Restarting(optimizer, lambda o, n: ExponentialLR(o, 0.7), period=3, growth=2)


@pytest.mark.parametrize("make", [bent, turned])
@pytest.mark.parametrize("pause", [2, 3, 7])
def test_resumed_in_the_middle_it_is_the_same_to_the_bit(
    make: Callable[[torch.optim.Optimizer], LRScheduler], pause: int
) -> None:
    optimizer = sgd(0.3, 0.7)
    schedule = make(optimizer)
    rates(optimizer, schedule, pause)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), schedule.state_dict()], file)
    file.seek(0)
    stored, place = torch.load(file, weights_only=True)
    expected = rates(optimizer, schedule, 12)
    for first in ("optimizer", "schedule"):  # in either order
        again = sgd(0.3, 0.7)
        other = make(again)
        if first == "optimizer":
            again.load_state_dict(stored)
            other.load_state_dict(place)
        else:
            other.load_state_dict(place)
            again.load_state_dict(stored)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert rates(again, other, 12) == expected


def test_it_governs_optimizers_of_this_house() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer = PathSGD(net.parameters(), model=net, lr=0.1)
    schedule = RaiseThenDecay(optimizer, peak=2, rise=1, fall=1)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    assert optimizer.base.param_groups[0]["lr"] == 0.2


def test_rates_that_are_tensors_are_filled() -> None:
    held = torch.tensor(0.5)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=held)
    schedule = Restarting(optimizer, lambda o, n: ExponentialLR(o, 0.5), period=2)
    found = [float(held)]
    for _ in range(3):
        optimizer.step()
        schedule.step()
        found.append(float(held))
    assert found == [0.5, 0.25, 0.5, 0.25]
    assert optimizer.param_groups[0]["lr"] is held


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peak": 0}, "peak=0: give a positive number"),
        ({"rise": 0}, "rise=0: give a whole number of at least 1"),
        ({"fall": 1.5}, "fall=1.5: give a whole number"),
        ({"peaks": 0}, "peaks=0: give a whole number"),
        ({"fade": -1}, "fade=-1: give a positive number"),
        ({"end": -1}, "end=-1: give a number of at least 0"),
        ({"shape": "round"}, "shape='round' is not known; choose one of 'linear'"),
        ({"shape": "geometric", "end": 0}, "end=0: nothing falls to zero"),
        ({"optimizer": 3}, "optimizer is a int"),
    ],
)
def test_bad_ways_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"optimizer": sgd(0.1), "peak": 2, "rise": 2, "fall": 2, **options}
    with pytest.raises(sl.SpiritlevelError, match=message):
        RaiseThenDecay(given.pop("optimizer"), **given)


def test_bad_rounds_are_refused() -> None:
    optimizer = sgd(0.1)
    with pytest.raises(sl.SpiritlevelError, match="period=0: give a whole number"):
        Restarting(optimizer, falling, period=0)
    with pytest.raises(sl.SpiritlevelError, match=r"growth=0.5: give a number of at least 1"):
        Restarting(optimizer, falling, period=2, growth=0.5)
    with pytest.raises(sl.SpiritlevelError, match="schedule is a int; give a function"):
        Restarting(optimizer, 3, period=2)  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="returned a ReduceLROnPlateau"):
        Restarting(optimizer, lambda o, n: ReduceLROnPlateau(o), period=2)
    with pytest.raises(sl.SpiritlevelError, match="epoch=3: rounds go on step by step"):
        Restarting(optimizer, falling, period=2).step(3)
