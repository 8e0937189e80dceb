"""Langevin dynamics: one step by hand, and what it settles to on a quadratic."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.training.langevin import SGLD


def test_one_step_is_the_formula() -> None:
    w, v = (nn.Parameter(torch.tensor(a).double()) for a in ([1.0, -2.0], [0.5]))
    idle = nn.Parameter(torch.ones(1))
    groups = [{"params": [w, idle]}, {"params": [v], "temperature": 0.0, "lr": 0.2}]
    optimizer = SGLD(groups, lr=0.1, temperature=0.3, seed=7, weight_decay=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (w**3).sum() + v.square().sum()
        loss.backward()
        return loss

    before, other = w.detach().clone(), v.detach().clone()
    assert optimizer.step(closure).item() == pytest.approx(1 - 8 + 0.25)
    drawn = torch.randn(2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    expected = before - 0.1 * (3 * before**2 + 0.5 * before) + math.sqrt(2 * 0.1 * 0.3) * drawn
    torch.testing.assert_close(w.detach(), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(v.detach(), other - 0.2 * 2.5 * other, rtol=1e-14, atol=0)
    assert idle.item() == 1.0


@pytest.mark.parametrize(("lr", "temperature", "h"), [(0.1, 1.0, 2.0), (0.6, 0.25, 2.0)])
def test_the_variance_on_a_quadratic(lr: float, temperature: float, h: float) -> None:
    """2 T / (h (2 - lr h)), T / h for small steps: many chains, each after it has forgotten."""
    many, steps = 20_000, 80
    w = nn.Parameter(torch.zeros(many, dtype=torch.float64))
    optimizer = SGLD([w], lr=lr, temperature=temperature)
    for _ in range(steps):
        w.grad = h * w.detach()
        optimizer.step()
    assert (1 - lr * h) ** (2 * steps) < 1e-6
    expected = 2 * temperature / (h * (2 - lr * h))
    found, error = w.detach().square().mean().item(), expected * math.sqrt(2 / many)
    assert abs(found - expected) < 4 * error
    assert abs(w.detach().mean().item()) < 4 * math.sqrt(expected / many)


def test_seeds_are_their_own_streams() -> None:
    ends = []
    for seed in (0, 0, 1):
        w = nn.Parameter(torch.zeros(3))
        optimizer = SGLD([w], lr=0.1, seed=seed)
        for _ in range(2):
            w.grad = torch.ones(3)
            optimizer.step()
        ends.append(w.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "lr=0: give a positive number"),
        ({"lr": 0.1, "temperature": -1}, "temperature=-1: give a number of at least 0"),
        ({"lr": 0.1, "seed": None}, "seed=None: give a whole number"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        SGLD([nn.Parameter(torch.zeros(1))], **options)
