"""Sharpness-aware steps on the orbit: networks that compute the same climb alike."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import spiritlevel as sl
from climbs import RATE, X, Y, closure_of, flat, net, slope
from spiritlevel.training.sam import SAM


def rescaled(model: nn.Module, element: Tensor, group: sl.Group) -> nn.Module:
    twin = net()
    moved = group.act({n: p.detach() for n, p in model.named_parameters()}, element)
    twin.load_state_dict(moved)
    return twin


def on_orbit(model: nn.Module, group: sl.Group, norm: float, rho: float = 0.2) -> SAM:
    return SAM(
        model.parameters(), rho=rho, norm=norm, adaptive="orbit", orbit=group, model=model, lr=RATE
    )


GROUP = sl.symmetries(sl.Objective(net(), (X, Y), F.cross_entropy))


@pytest.mark.parametrize("norm", [2.0, math.inf])
def test_the_climb_is_that_at_the_balanced_point(norm: float) -> None:
    model = net(seed=4)
    there = sl.orbit.representative(sl.Objective(model, (X, Y), F.cross_entropy), GROUP)
    d = GROUP.flat_factors(there.log_scales, {n: p.shape for n, p in model.named_parameters()})
    g = slope(model, there.objective.vector)
    top = there.objective.vector + 0.2 * (g / g.norm() if norm == 2 else g.sign())
    optimizer = on_orbit(model, GROUP, norm)
    F.cross_entropy(model(X), Y).backward()
    optimizer.ascend()
    torch.testing.assert_close(flat(model), top / d, rtol=1e-10, atol=1e-12)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), norm=st.sampled_from([2.0, math.inf]))
def test_twins_climb_to_twins(seed: int, norm: float) -> None:
    """The same function up there, and gradients that differ by the rescaling only."""
    model = net(seed % 7)
    element = GROUP.random(seed, scale=1.0)
    twin = rescaled(model, element, GROUP)
    d = GROUP.flat_factors(element, {n: p.shape for n, p in model.named_parameters()})
    found = []
    for m in (model, twin):
        optimizer = on_orbit(m, GROUP, norm)
        F.cross_entropy(m(X), Y).backward()
        optimizer.ascend()
        found.append((flat(m), m(X).detach(), slope(m, flat(m))))
    (here, outputs, g), (there, others, h) = found
    torch.testing.assert_close(others, outputs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(there, here * d, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(h, g / d, rtol=1e-9, atol=1e-10)


def test_a_plain_climb_of_a_twin_ends_elsewhere() -> None:
    """What the orbit is for."""
    model = net()
    twin = rescaled(model, GROUP.random(1, scale=1.0), GROUP)
    outputs = []
    for m in (model, twin):
        optimizer = SAM(m.parameters(), rho=0.2, lr=RATE)
        F.cross_entropy(m(X), Y).backward()
        optimizer.ascend()
        outputs.append(m(X).detach())
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3


def test_the_balance_is_found_anew_when_it_is_time() -> None:
    model = net()
    optimizer = SAM(
        model.parameters(), rho=0.1, adaptive="orbit", orbit=GROUP, model=model, balance=3, lr=RATE
    )
    seen = []
    for _ in range(5):
        optimizer.step(closure_of(model, optimizer))
        assert optimizer.log_scales is not None
        seen.append(optimizer.log_scales.clone())
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[3], seen[4])
    assert not torch.equal(seen[2], seen[3])
    other = net()
    other.load_state_dict(model.state_dict())
    resumed = SAM(
        other.parameters(), rho=0.1, adaptive="orbit", orbit=GROUP, model=other, balance=3, lr=RATE
    )
    resumed.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        optimizer.step(closure_of(model, optimizer))
        resumed.step(closure_of(other, resumed))
    assert torch.equal(flat(model), flat(other))


def test_orbits_of_another_model_are_refused() -> None:
    model = nn.Linear(4, 3).double()
    with pytest.raises(sl.SpiritlevelError, match=r"orbit moves '0.weight' of shape \(5, 4\), whi"):
        SAM(model.parameters(), adaptive="orbit", orbit=GROUP, model=model, lr=RATE)
    with pytest.raises(sl.SpiritlevelError, match="needs the names of weights: give model="):
        SAM(model.parameters(), adaptive="orbit", orbit=GROUP, lr=RATE)
    with pytest.raises(sl.SpiritlevelError, match="orbit is a int; give a Group"):
        SAM(model.parameters(), adaptive="orbit", orbit=3, model=model, lr=RATE)
