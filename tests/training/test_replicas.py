"""Coupled replicas: one step by hand, and how they come together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.training.replicas import ReplicatedSGD

START = [1.0, -2.0, 0.5]
TARGETS = [-1.0, 0.0, 2.0, 0.3]


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.tensor(START, dtype=torch.float64))


def parts(w: Tensor, optimizer: ReplicatedSGD, count: int) -> list[Callable[[], Tensor]]:
    """Losses (w - target)^4 / 4, another target for each replica."""

    def part(target: float) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = ((w - target) ** 4).sum() / 4
            loss.backward()
            return loss

        return closure

    return [part(target) for target in TARGETS[:count]]


def places(optimizer: ReplicatedSGD) -> Tensor:
    return torch.stack([own[0] for own in optimizer.replicas])


@settings(max_examples=20)
@given(
    count=st.integers(1, 4),
    gamma=st.floats(0, 5),
    factor=st.floats(0.5, 2),
    spread=st.floats(0, 0.5),
)
def test_steps_are_the_formula(count: int, gamma: float, factor: float, spread: float) -> None:
    w = parameter()
    optimizer = ReplicatedSGD(
        [w], replicas=count, coupling=(gamma, factor), spread=spread, seed=3, lr=0.01
    )
    source = torch.Generator().manual_seed(3)
    noise = torch.stack(
        [torch.randn(3, generator=source, dtype=torch.float64) for _ in range(count)]
    )
    expected = w.detach() + spread * (noise - noise.mean(0))
    targets = torch.tensor(TARGETS[:count], dtype=torch.float64)[:, None]
    for t in range(3):
        losses = ((expected - targets) ** 4).sum(1) / 4
        pull = gamma * factor**t * (expected - expected.mean(0))
        expected = expected - 0.01 * ((expected - targets) ** 3 + pull)
        loss = optimizer.step(parts(w, optimizer, count))
        torch.testing.assert_close(places(optimizer), expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(w.detach(), expected.mean(0), rtol=1e-12, atol=1e-13)
        assert float(loss) == pytest.approx(float(losses.mean()), rel=1e-12)


def test_every_replica_has_its_own_momentum() -> None:
    w = parameter()
    options: dict[str, Any] = {"lr": 0.01, "momentum": 0.9}
    optimizer = ReplicatedSGD([w], replicas=3, coupling=0.5, **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step(parts(w, optimizer, 3))
    scheduler.step()
    plain = [nn.Parameter(own.clone()) for own in places(optimizer)]
    each = [torch.optim.SGD([p], **options) for p in plain]
    for p, inner, state in zip(plain, each, optimizer.states, strict=True):
        inner.param_groups[0]["lr"] = 0.005
        inner.state[p] = {"momentum_buffer": state[w]["momentum_buffer"].clone()}
    for _ in range(3):
        centre = torch.stack([p.detach() for p in plain]).mean(0)
        for p, inner, target in zip(plain, each, TARGETS[:3], strict=True):
            here = p.detach()
            p.grad = (here - target) ** 3 + 0.5 * (here - centre)
            inner.step()
        optimizer.step(parts(w, optimizer, 3))
        found = torch.stack([p.detach() for p in plain])
        torch.testing.assert_close(places(optimizer), found, rtol=1e-12, atol=1e-13)


def test_they_come_together_as_the_coupling_grows() -> None:
    """Where the loss is flat, distances shrink by 1 - lr gamma; elsewhere they end up closer."""
    w = parameter()
    optimizer = ReplicatedSGD([w], replicas=4, coupling=lambda t: 2.0 * t, spread=0.3, lr=0.1)
    sizes = []
    for _ in range(5):
        optimizer.step(closure_of_nothing(w, optimizer))
        sizes.append((places(optimizer) - w.detach()).norm().item())
    ratios = [b / a for a, b in itertools.pairwise(sizes)]
    assert ratios == pytest.approx([1 - 0.2 * t for t in range(1, 5)], rel=1e-12)
    torch.testing.assert_close(w.detach().tolist(), START)
    ends = []
    for gamma in (0.0, 1.0, 10.0, 40.0):
        w = parameter()
        optimizer = ReplicatedSGD([w], replicas=3, coupling=gamma, lr=0.02)
        for _ in range(200):
            optimizer.step(parts(w, optimizer, 3))
        ends.append((places(optimizer) - w.detach()).norm().item())
    assert ends[0] > 2 * ends[1] > 4 * ends[2] > 8 * ends[3] > 0


def closure_of_nothing(w: Tensor, optimizer: ReplicatedSGD) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = 0 * w.sum()
        loss.backward()
        return loss

    return closure


def test_replicas_may_rest_elsewhere() -> None:
    ends = []
    for devices in (None, ["cpu", "cpu:0"]):
        w = parameter()
        optimizer = ReplicatedSGD([w], torch.optim.Adam, lr=0.1, devices=devices)
        for _ in range(3):
            optimizer.step(parts(w, optimizer, 3))
        ends.append(w.detach())
        if optimizer.places is not None:
            first, second = optimizer.places
            assert [optimizer._place(k, w) for k in range(3)] == [first, second, first]
    assert torch.equal(ends[0], ends[1])


def test_the_model_is_as_it_was_until_the_first_step() -> None:
    w = parameter()
    optimizer = ReplicatedSGD([w], replicas=3, spread=0.1, lr=0.0)
    assert w.tolist() == START
    with torch.no_grad():
        w.mul_(2.0)  # as loading a checkpoint does
    optimizer.step(parts(w, optimizer, 3))
    torch.testing.assert_close(w.detach(), 2 * torch.tensor(START).double(), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "replicas=0: give a whole number of at least 1"),
        ({"coupling": -1}, "coupling=-1: give a number of at least 0"),
        ({"coupling": (1, 2, 3)}, r"coupling=\(1, 2, 3\): give a number, \(start, factor\), or a"),
        ({"coupling": (1, "x")}, "coupling='x': give a number of at least 0"),
        ({"spread": -1}, "spread=-1: give a number of at least 0"),
        ({"devices": []}, r"devices=\[\]: give a list, such as"),
        ({"devices": "cpu"}, "devices='cpu': give a list, such as"),
        ({"devices": ["gpu"]}, "device='gpu': give one that torch has here"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        ReplicatedSGD([parameter()], lr=0.1, **options)


def test_what_comes_too_late_or_does_not_fit_is_refused() -> None:
    w = parameter()
    optimizer = ReplicatedSGD([w], lr=0.1, coupling=lambda t: -1.0 if t else 0.5)
    optimizer.step(parts(w, optimizer, 3))
    with pytest.raises(sl.SpiritlevelError, match="the replicas are made"):
        optimizer.add_param_group({"params": [parameter()]})
    with pytest.raises(sl.SpiritlevelError, match=r"coupling=-1.0: give a number of at least 0"):
        optimizer.step(parts(w, optimizer, 3))
    with pytest.raises(
        sl.SpiritlevelError, match="closure has 2 functions; give one, or 3, as rep"
    ):
        optimizer.step(parts(w, optimizer, 2))
    with pytest.raises(sl.SpiritlevelError, match="not that of ReplicatedSGD with replicas=2"):
        ReplicatedSGD([w], replicas=2, lr=0.1).load_state_dict(optimizer.state_dict())
