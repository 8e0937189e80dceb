"""The step of adaptive sharpness-aware minimization against pytorch_optimizer.

Theirs is rho T^2 g / ||T g|| with T = |w| for all parameters, biases too, and so is our first
step. The published code (Kwon et al., 2021) takes T = |w| + 0.01 for weights and T = 1 for biases,
which no rescaling of layers leaves as it is.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, mlp, randn
from peering import peer
from spiritlevel.measures.ball import worst_in_ball

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
