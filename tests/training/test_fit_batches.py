"""Optimizers whose step takes several batches are given as many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.training import EntropySGD, ReplicatedSGD, fit
from spiritlevel.training.feeding import feed

N, SIZE = 22, 4  # six batches, the last one of two
BATCHES = 6


def _data() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    x = torch.randn(N, 3, generator=draws, dtype=torch.float64)
    return x, torch.randint(0, 2, (N,), generator=draws)


def _net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def _entropy(net: nn.Module) -> EntropySGD:
    return EntropySGD(net.parameters(), inner=4, lr=0.5, seed=1)


def _replicated(net: nn.Module) -> ReplicatedSGD:
    return ReplicatedSGD(net.parameters(), replicas=4, lr=0.5, seed=1)


@pytest.mark.parametrize("make", [_entropy, _replicated])
def test_a_step_takes_batches_of_its_own(
    make: Callable[[nn.Module], Any],
) -> None:
    """Six batches are a step of four, and one of the last two that serve twice."""
    net, twin = _net(), _net()
    history = fit(net, _data(), F.cross_entropy, make(net), 2, seed=7, batch_size=SIZE)
    optimizer = make(twin)
    batches = feed(_data(), SIZE, 7, lambda t: t)

    def closure(x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(twin(x), y)
            loss.backward()
            return loss

        return evaluate

    for epoch in (1, 2):
        parts = [closure(x, y) for x, y in batches.batches(epoch)]
        assert len(parts) == BATCHES
        optimizer.step(parts[:4])
        optimizer.step(parts[4:] * 2)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
    assert [one.step for one in history.epochs] == [2, 4]
    assert history.provenance["examples"] == N


def test_it_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """Stopped in the second step of the second epoch, of which four batches were done."""
    whole, net = _net(), _net()
    fit(whole, _data(), F.cross_entropy, _entropy(whole), 3, batch_size=SIZE)

    class Stop(Exception):
        pass

    steps = 0
    optimizer = _entropy(net)

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise Stop

    optimizer.register_step_pre_hook(count)
    with pytest.raises(Stop):
        fit(
            *(net, _data(), F.cross_entropy, optimizer, 3),
            **{"batch_size": SIZE, "checkpoint": tmp_path / "c.pt", "every": 1},
        )
    again = _net()
    fit(
        *(again, _data(), F.cross_entropy, _entropy(again), 3),
        **{"batch_size": SIZE, "checkpoint": tmp_path / "c.pt", "every": 1},
    )
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
