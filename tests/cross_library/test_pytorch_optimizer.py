"""The step of adaptive sharpness-aware minimization against pytorch_optimizer.

Theirs is rho T^2 g / ||T g|| with T = |w| for all parameters, biases too, and so is our first
step, and our optimizer with eta=0. The published code (Kwon et al., 2021) takes T = |w| + 0.01 for
weights and T = 1 for biases, which no rescaling of layers leaves as it is.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, mlp, randn
from peering import peer
from spiritlevel.training.sam import SAM
from spiritlevel.witnesses.worst import worst_in_ball

optimizers = peer("pytorch_optimizer")


def step(model: nn.Module, loss: Tensor, rho: float, *, adaptive: bool) -> Tensor:
    """How far their optimizer goes up, as a flat vector."""
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = optimizers.SAM(
        model.parameters(), torch.optim.SGD, rho=rho, adaptive=adaptive, lr=0.1
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.first_step()
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(before, model.parameters())
    return after - before


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_worst_of_a_linear_loss_is_their_step(adaptive: bool) -> None:
    """There the first order is all there is."""
    model, x, y = nn.Linear(4, 3).double(), randn(8, 4), randn(8, 3, seed=6)

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return (f * y).mean()

    objective = sl.Objective(model, (x, y), loss)
    theirs = step(model, loss(model(x), y), 0.3, adaptive=adaptive)
    scale = objective.vector.abs() if adaptive else None
    ours = worst_in_ball(objective, 0.3, scale=scale).perturbation
    # theirs adds 1e-12 to the norm, and keeps it in float32
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6 * float(theirs.norm()))


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_step_of_theirs_is_worse_than_our_worst(adaptive: bool) -> None:
    """In a small ball it is nearly the worst, in a large one far from it."""
    model, x, y = randomized(mlp()).double(), randn(20, 4), labels(20)
    objective = sl.Objective(model, (x, y), F.cross_entropy)
    scale = objective.vector.abs() if adaptive else None
    for rho, least in ((1e-4, 0.999), (1e-1, 0.9), (2.0, 0.0)):
        up = step(model, F.cross_entropy(model(x), y), rho, adaptive=adaptive)
        theirs = objective.at(objective.vector + up).value() - objective.value()
        ours = worst_in_ball(objective, rho, scale=scale).rise
        assert theirs <= ours * (1 + 1e-6)
        assert theirs >= least * ours


@pytest.mark.parametrize("adaptive", [False, True])
def test_our_optimizer_climbs_in_their_direction(adaptive: bool) -> None:
    """To the last bits; as far as their norm in float32 says."""
    model, x, y = randomized(mlp()).double(), randn(20, 4), labels(20)
    theirs = step(model, F.cross_entropy(model(x), y), 0.3, adaptive=adaptive)
    optimizer = SAM(model.parameters(), rho=0.3, adaptive=adaptive, eta=0.0, lr=0.1)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.ascend()
    ours = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - before
    torch.testing.assert_close(ours / ours.norm(), theirs / theirs.norm(), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("adaptive", [False, True])
def test_our_optimizer_steps_as_theirs(base: type[torch.optim.Optimizer], adaptive: bool) -> None:
    """To 1e-12, with numbers that float32, in which they divide, holds: the norm is 1."""
    model, x, y = randomized(mlp()).double(), randn(20, 4), labels(20)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def loss(w: Tensor) -> Tensor:
        pieces = w.split([shape.numel() for shape in shapes.values()])
        params = {n: p.view(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, params, (x,)), y)

    ends = []
    for who in (SAM, optimizers.SAM):
        w = nn.Parameter(start.clone())
        own: dict[str, Any] = {"eta": 0.0} if who is SAM else {"perturb_eps": 0.0}
        optimizer = who([w], base, rho=0.25, adaptive=adaptive, lr=0.05, weight_decay=0.1, **own)
        for _ in range(4):
            (g,) = torch.autograd.grad(loss(w), w)
            size = float((g * w.detach().abs() if adaptive else g).norm())

            def closure(w: nn.Parameter = w, size: float = size) -> Tensor:
                w.grad = None
                value = loss(w) / size
                value.backward()
                return value

            if who is not SAM:
                closure()
            optimizer.step(closure)
        ends.append(w.detach())
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)
    assert (ends[0] - start).abs().max() > 1e-2
