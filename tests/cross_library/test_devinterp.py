"""The local learning coefficient against devinterp, of quadratics and of w^4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from peering import peer
from spiritlevel.spectral.probes import standard_error

sampler = peer("devinterp.slt.sampler")
llc = peer("devinterp.slt.llc")

# It warns that one batch is taken again and again, which is what is meant: no noise of batches
pytestmark = pytest.mark.filterwarnings("ignore")
COUNT, CHAINS, DRAWS, BURN = 1000, 8, 1500, 300
WEIGHT = COUNT / math.log(COUNT)
STIFF = torch.tensor([5.0, 6.0, 8.0, 10.0, 12.0])


class Vector(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))


def theirs(loss: Callable[[Tensor], Tensor], size: int, step: float, gamma: float) -> Tensor:
    """One coefficient for every chain of Langevin's."""
    one = DataLoader(TensorDataset(torch.zeros(1, 1)))
    estimator = llc.LLCEstimator(CHAINS, DRAWS, init_loss=torch.tensor(0.0), nbeta=WEIGHT)
    with torch.random.fork_rng(devices=[]):
        sampler.sample(
            Vector(size),
            one,
            evaluate=lambda model, data: loss(model.w),
            sampling_method=sampler.SGLD,
            optimizer_kwargs={"lr": step, "localization": gamma, "nbeta": WEIGHT},
            callbacks=[estimator],
            num_chains=CHAINS,
            num_draws=DRAWS,
            num_burnin_steps=BURN,
            seed=0,
            verbose=False,
        )
    return (WEIGHT * estimator.losses.double().cpu()).mean(1)


def ours(loss: Callable[[Tensor], Tensor], size: int, gamma: float) -> sl.Estimate:
    def total(model: Any, batch: Tensor) -> tuple[Tensor, int]:
        return len(batch) * loss(model.w), len(batch)

    objective = sl.Objective(Vector(size).double(), torch.zeros(COUNT, 1).double(), total)
    return sl.MEASURES["local_learning_coefficient"](objective, gamma=gamma, chains=8, steps=180)


def test_a_regular_minimum_of_five_parameters() -> None:
    """5/2, but for what gamma holds back; their steps are corrected by nothing and add to it."""

    def loss(w: Tensor) -> Tensor:
        return (STIFF.to(w) * w.square()).sum() / 2

    step, gamma = 2e-4, 1.0
    stiffness = WEIGHT * STIFF.double() + gamma
    wanted = float((WEIGHT * STIFF / stiffness).sum()) / 2
    longer = float((WEIGHT * STIFF / (stiffness * (1 - step * stiffness / 4))).sum()) / 2
    assert wanted == pytest.approx(2.5, rel=2e-3)
    found, chains = ours(loss, 5, gamma), theirs(loss, 5, step, gamma)
    mean, spread = float(chains.mean()), standard_error(chains)
    assert spread < 0.15
    assert abs(mean - longer) <= 3.5 * spread
    assert abs(found.value - wanted) <= 3.5 * found.error
    assert abs(found.value - mean + longer - wanted) <= 3.5 * math.hypot(found.error, spread)


def test_a_singular_minimum() -> None:
    """1/4 of w^4, whose Hessian is zero: both see it, and no parameter counting does."""

    def loss(w: Tensor) -> Tensor:
        return w.square().square().sum()

    found, chains = ours(loss, 1, 1.0), theirs(loss, 1, 2e-3, 1.0)
    mean, spread = float(chains.mean()), standard_error(chains)
    assert abs(found.value - mean) <= 3.5 * math.hypot(found.error, spread)
    assert 0.2 < mean < 0.3
