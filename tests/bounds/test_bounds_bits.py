"""Bits of labels that are sent with their network: closed forms, random labels, and twins."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.bounds.bits import Description, bits_back, described
from spiritlevel.bounds.gaussian import Gaussian, divergence
from spiritlevel.bounds.priors import cost, scales
from spiritlevel.objective.default import digits

EXAMPLES = 256


@functools.cache
def problem(random: bool = False) -> tuple[sl.Objective, dict[str, torch.Tensor]]:
    """Zeros against ones, or the same labels in another order."""
    (x, y), _ = digits()
    x, y = x.reshape(len(x), -1)[y < 2][:EXAMPLES].double(), y[y < 2][:EXAMPLES]
    if random:
        y = y[torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(0))]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    init = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return sl.Objective(net, (x, y), F.cross_entropy), init


@functools.cache
def found(random: bool = False, orbit: bool = False) -> Description:
    objective, init = problem(random)
    return bits_back(objective, init=init, prior="init", orbit=orbit, epochs=400)


def test_a_posterior_that_is_the_prior_costs_nothing_but_its_name() -> None:
    objective, _ = problem()
    centre = objective.vector
    told = described(objective, Gaussian(centre, torch.tensor(scales()[700]).double()), centre)
    assert told.prior.spread[0] == pytest.approx(scales()[700], rel=0.02)
    assert told.kl_bits < 0.1  # the shorter name of a larger scale is worth that
    assert told.prior_bits == pytest.approx(math.log2((math.pi * 701) ** 2 / 6), abs=0.1)


def test_half_the_spread_of_the_prior_is_0318_nats() -> None:
    q, p = (Gaussian(torch.zeros(1), torch.tensor(s)) for s in (0.5, 1.0))
    assert divergence(q, p) == pytest.approx(math.log(2) + (1 / 4 - 1) / 2)
    assert divergence(q, p) == pytest.approx(0.318, abs=5e-4)


def test_the_names_of_all_scales_can_be_told_apart() -> None:
    """Kraft: 2^-bits of all entries sum to 1 at most."""
    total = sum(math.exp(-cost(j)) for j in range(len(scales())))
    assert 1 - 6 / math.pi**2 / len(scales()) == pytest.approx(total, abs=1e-6)


def test_the_misfit_is_that_of_the_drawn_networks() -> None:
    """With hardly any noise, the summed cross-entropy of the network itself."""
    objective, _ = problem()
    narrow = Gaussian(objective.vector, torch.tensor(1e-9).double())
    told = described(objective, narrow, torch.zeros_like(objective.vector))
    assert told.misfit_bits == pytest.approx(objective.value() * EXAMPLES / math.log(2), rel=1e-6)
    assert told.stderr < 1e-5
    assert told.bits == told.misfit_bits + told.kl_bits + told.prior_bits
    assert told.per_parameter == told.bits / objective.size
    assert told.kl_bits == pytest.approx(divergence(narrow, told.prior) / math.log(2))


def test_true_labels_are_shorter_than_random_ones() -> None:
    true, random = found(), found(random=True)
    assert true.per_parameter < random.per_parameter
    assert true.bits + 5 * true.stderr < EXAMPLES < random.bits - 5 * random.stderr
    assert str(true).startswith(f"{true.bits:.6g} bits for {EXAMPLES} labels")


def test_training_shortens_the_message() -> None:
    objective, init = problem()
    before = bits_back(objective, init=init, prior="init", epochs=0)
    assert found().bits < 0.5 * before.bits


def test_twins_have_one_description_on_the_orbit() -> None:
    objective, init = problem()
    group = sl.symmetries(objective)
    twin = group.apply(objective, group.random(3, 0.7))
    here, there = (
        bits_back(o, init=init, prior="init", orbit=True, epochs=3) for o in (objective, twin)
    )
    assert there.bits == pytest.approx(here.bits, rel=1e-6)
    plain = [bits_back(o, init=init, prior="init", epochs=3).bits for o in (objective, twin)]
    assert abs(plain[1] - plain[0]) > 0.02 * plain[0]
    assert here.least is not None
    assert here.least.kl <= here.least.plain
    assert here.kl_bits == pytest.approx(here.least.kl / math.log(2))


def test_the_same_call_gives_the_same() -> None:
    objective, init = problem()
    one, other = (bits_back(objective, init=init, epochs=2) for _ in range(2))
    assert one.bits == other.bits
    assert np.isfinite(one.bits)


def test_what_is_refused() -> None:
    objective, _ = problem()
    with pytest.raises(sl.SpiritlevelError, match='prior="init" is centred at the weights'):
        bits_back(objective, prior="init")
    with pytest.raises(sl.SpiritlevelError, match="prior='ones' is not known"):
        bits_back(objective, prior="ones")  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="draws=1: give a whole number of at least 2"):
        bits_back(objective, draws=1)
    square = sl.Objective(nn.Linear(3, 2), (torch.randn(5, 3), torch.zeros(5, 2)), F.mse_loss)
    with pytest.raises(sl.SpiritlevelError, match="not a number of nats: no cross-entropy"):
        bits_back(square)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    data = (torch.randn(5, 3), torch.zeros(5, dtype=torch.long))
    with pytest.raises(sl.SpiritlevelError, match="not a number of nats: label_smoothing"):
        bits_back(sl.Objective(nn.Linear(3, 2), data, smooth))
    zero = sl.Objective(nn.Linear(3, 2), data, F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="all parameters are zero"):
        bits_back(zero.at(torch.zeros(zero.size)))
