"""What once was wrong: values, numbers and files, each against an oracle of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.coordinates import Diagonal
from spiritlevel.landscape import aligned, interpolate, trajectory

DATA = (randn(30, 4), labels(30))


def rectified(seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> sl.Objective:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
    return sl.Objective(net, DATA, F.cross_entropy, **options)


def normed(seed: int = 0) -> nn.Sequential:
    """With running statistics of data."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    net.train()(randn(50, 4, seed=9))
    return net.eval()


def with_norm(seed: int = 0, **options: Any) -> sl.Objective:
    return sl.Objective(normed(seed), DATA, F.cross_entropy, **options)


# Other networks ----------------------------------------------------------------------------------


def test_statistics_move_along_the_aligned_line_only() -> None:
    """As given both ends have the same ones: the way of the first line does not suit the second."""
    a = with_norm(0)
    b = a.at(with_norm(1).vector)
    line, found = interpolate(a, b, align=True, steps=5), aligned(a, b)
    one, other = found.first, found.second
    moving = [n for n, t in one.buffers.items() if t.is_floating_point()]
    for s, loss in zip(line["aligned"].axis, line["aligned"].losses, strict=True):
        point = (1 - s) * one.vector + s * other.vector
        buffers = {n: (1 - s) * one.buffers[n] + s * other.buffers[n] for n in moving}
        assert loss == pytest.approx(one.at(point, buffers=buffers).value(), rel=1e-12)
    assert line["aligned"].losses[-1] == pytest.approx(b.value(), rel=1e-12)


@pytest.mark.parametrize("statistics", ["frozen", "recomputed"])
def test_statistics_of_another_precision(statistics: Any) -> None:
    """A checkpoint in float32 of a network that is looked at in float64."""
    a, states = with_norm(0), [normed(seed).float().state_dict() for seed in (1, 2)]
    path = trajectory(a, states, steps=3, statistics=statistics).path
    for step, seed in zip(path, (1, 2), strict=False):
        assert step.loss == pytest.approx(with_norm(seed).value(), rel=1e-6)
    line = interpolate(a, states[0], steps=3, statistics=statistics, align=True)
    assert line["as given"].losses[2] == pytest.approx(line["aligned"].losses[2], rel=1e-12)


def test_single_precision_keeps_both_ends() -> None:
    """Twins whose weights are five powers of ten apart."""
    here = rectified(dtype=torch.float32)
    group = sl.symmetries(here)
    far = group.apply(here, torch.full((group.dim,), 12.0).double())
    for a, b in ((far, here), (here, far)):
        losses = interpolate(a, b, steps=3).curves[0].losses
        assert losses[0] == a.value()
        assert losses[-1] == pytest.approx(b.value(), rel=3e-7)


def test_networks_that_differ_in_what_stays_are_refused() -> None:
    a, b = (with_norm(seed, params="3.*") for seed in (0, 1))
    for other in (b, normed(1).state_dict(), normed(1).float().state_dict()):
        with pytest.raises(sl.SpiritlevelError, match=r"b has another '0\.weight', which is"):
            interpolate(a, other)
    same = normed(0).float().state_dict()
    same["3.bias"] += 1
    line = interpolate(a, same, steps=3)
    assert line.curves[0].losses[-1] == pytest.approx(
        a.at({"3.bias": a.params["3.bias"] + 1}).value(), rel=1e-6
    )
    turned = rectified().reparametrize(Diagonal(torch.full((51,), 2.0).double()))
    with pytest.raises(sl.SpiritlevelError, match="b is in other coordinates: give both in the sa"):
        interpolate(rectified(), turned)
