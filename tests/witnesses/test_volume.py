"""Infinite volume, bounds over boxes and balls, and no Lipschitz constant."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn
from enclosed import climbed
from spiritlevel import Objective, SpiritlevelError
from spiritlevel.witnesses import volume
from spiritlevel.witnesses.enclosure import largest_gradient, largest_loss
from spiritlevel.witnesses.slopes import lipschitz
from spiritlevel.witnesses.volume import (
    box_intervals,
    box_log_volumes,
    infinite_volume,
    scale_factor,
)


def rectified(*sizes: int, bias: bool = True, loss: str = "softmax") -> Objective:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for inside, outside in pairwise(sizes):
            layers += [nn.Linear(inside, outside, bias=bias), nn.ReLU()]
        net = nn.Sequential(*layers[:-1]).double()
    x, out = randn(20, sizes[0]), sizes[-1]
    targets = {
        "softmax": (labels(20, classes=out), F.cross_entropy),
        "gaussian": (randn(20, out, seed=5), F.mse_loss),
        "bernoulli": (labels(20, out, classes=2).double(), F.binary_cross_entropy_with_logits),
    }
    y, function = targets[loss]
    return Objective(net, (x, y), function)


def convolutional() -> Objective:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        net.append(nn.Linear(12, 3))
    return Objective(net.double(), (randn(10, 1, 6, 6), labels(10)), F.cross_entropy)


def shaken() -> Objective:
    """BatchNorm in train mode: statistics of a batch have no interval bounds."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return Objective(net.double(), (randn(12, 4), labels(12)), F.cross_entropy, mode="train")


# Boxes -------------------------------------------------------------------------------------------


def test_the_numbers_of_the_construction() -> None:
    assert scale_factor(1.3, 0.2) == pytest.approx(2.7272727272727)
    found = box_intervals(1.3, 0.2, 3)
    expected = [(1.1, 1.5), (3.0, 4.0909), (8.1818, 11.157)]
    for (low, high), (a, b) in zip(found, expected, strict=True):
        assert low == pytest.approx(a, rel=1e-4)
        assert high == pytest.approx(b, rel=1e-4)
    assert all(first[1] < second[0] for first, second in pairwise(found))
    with pytest.raises(SpiritlevelError, match="0 < r < R"):
        scale_factor(1.0, 1.0)


def test_volumes_are_equal_only_if_both_layers_have_one_size() -> None:
    equal, totals = box_log_volumes(8, 0.5, 2.0, 0.0, 4)
    assert equal == pytest.approx([0.0] * 4)
    assert [math.exp(t) for t in totals] == pytest.approx([1, 2, 3, 4])
    grown, _ = box_log_volumes(8, 0.5, 2.0, 3.0, 3)
    assert [math.exp(v) for v in grown] == pytest.approx([1, 8, 64])
    _, huge = box_log_volumes(10**6, 1e-3, 2.0, 1e6, 200)
    assert math.isfinite(huge[-1])


def test_sixty_boxes_of_the_digits() -> None:
    objective = sl.default_objective(dtype=torch.float64)
    found = infinite_volume(objective, 0.01, boxes=60, corners=4)
    assert len(found.intervals) == 60
    assert found.holds
    assert found.proof == "interval bounds"
    assert max(found.corners) < objective.value() + 0.01
    assert found.path_gap < 1e-14
    assert found.log_totals[-1] - found.log_totals[0] > 10_000
    assert "60 disjoint boxes" in str(found)


@pytest.mark.parametrize(
    ("make", "proof"),
    [
        (lambda: rectified(4, 5, 3, bias=False), "interval bounds"),
        (lambda: rectified(3, 7, 6, 5, 4), "interval bounds"),
        (lambda: rectified(4, 3, 4, bias=False), "interval bounds"),  # n1 = n2
        (lambda: rectified(2, 3, 9, bias=False), "interval bounds"),  # n1 < n2
        (convolutional, "interval bounds"),
        (shaken, "sampled, not proved"),
    ],
)
def test_deep_nets_convolutions_and_unequal_layers(
    make: Callable[[], Objective], proof: str
) -> None:
    objective = make()
    found = infinite_volume(objective, 0.05, boxes=12, corners=3)
    assert found.holds
    assert found.proof == proof
    assert found.growth >= 0
    # the boxes by hand: the scaled layer, and a corner of the last box
    assert found.intervals[0] == pytest.approx(
        (found.norm - found.radius, found.norm + found.radius)
    )
    step = found.log_volumes[1] - found.log_volumes[0]
    assert step == pytest.approx(found.growth * math.log(found.alpha), abs=1e-9)


def test_a_loss_that_is_no_function_of_the_predictions_is_refused() -> None:
    """With weight decay the image of a box has another loss: 800781 where 1.33 was proved."""
    plain = rectified(4, 5, 3)

    def decayed(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        penalty = sum(p.square().sum() for p in model.parameters())
        return F.cross_entropy(model(batch[0]), batch[1]) + 0.05 * penalty

    model = copy.deepcopy(plain.module).requires_grad_()
    decay = Objective(model, plain.batches[0], decayed)
    with pytest.raises(SpiritlevelError, match="no function of the predictions"):
        infinite_volume(decay, 0.05, group=sl.symmetries(plain))


def test_a_bound_that_an_attack_refutes_is_not_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = rectified(4, 5, 3)
    monkeypatch.setattr(volume, "largest_loss", lambda o, radius: o.value() + 1e-3 * radius)
    with pytest.raises(SpiritlevelError, match="please report"):
        infinite_volume(objective, 0.05)


def test_where_nothing_is_proved_the_box_stands_an_attack() -> None:
    """Random corners had let a box pass in which the loss rises by 0.3 instead of 0.05."""
    objective = shaken()
    found = infinite_volume(objective, 0.05, boxes=3)
    assert not found.proved
    assert climbed(objective, found.radius) < objective.value() + 0.05


def test_volume_says_what_it_needs() -> None:
    with pytest.raises(SpiritlevelError, match="no rescaling of a layer"):
        infinite_volume(BY_NAME["mlp"].objective(), 0.1)
    with pytest.raises(SpiritlevelError, match=r"epsilon=-1\.0: give a positive number"):
        infinite_volume(rectified(4, 5, 3), -1.0)


# Bounds over sets --------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["softmax", "gaussian", "bernoulli"])
@pytest.mark.parametrize("radius", [1e-4, 1e-2, 0.3])
def test_no_point_of_the_box_is_above_the_interval_bound(loss: str, radius: float) -> None:
    objective = rectified(3, 6, 4, 3, loss=loss)
    bound = largest_loss(objective, radius)
    assert bound is not None
    draws = torch.Generator().manual_seed(0)
    for i in range(60):
        step = 2 * torch.rand(objective.size, generator=draws, dtype=torch.float64) - 1
        step = step.sign() if i % 2 else step
        assert objective.at(objective.vector + radius * step).value() <= bound
    slope = float(objective.gradient().abs().sum())  # to first order the bound is |grad|_1 r
    if radius < 1e-3:
        assert bound - objective.value() >= 0.99 * slope * radius
    assert largest_loss(objective, 0.0) == pytest.approx(objective.value())


def test_an_interval_bound_by_hand() -> None:
    """w x with w in 2 +- 0.5 and x = 3 lies in 4.5 .. 7.5; the target is 6."""
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(2.0)
    objective = Objective(model, (torch.tensor([[3.0]]), torch.tensor([[6.0]])), F.mse_loss)
    assert largest_loss(objective, 0.5) == pytest.approx(2.25)


def test_what_cannot_be_bounded_says_so() -> None:
    assert largest_loss(BY_NAME["LayerNorm"].objective(), 0.1) is None
    assert largest_loss(shaken(), 0.1) is None
    assert largest_gradient(rectified(3, 4, 2, loss="gaussian"), 0.1) is None
    assert largest_gradient(convolutional(), 0.1) is None


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid])
def test_no_gradient_in_the_ball_is_above_the_bound(activation: type[nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(3, 6), activation(), nn.Linear(6, 3)).double()
    objective = Objective(net, (randn(20, 3), labels(20)), F.cross_entropy)
    for radius in (0.01, 1.0):
        bound = largest_gradient(objective, radius)
        assert bound is not None
        for seed in range(20):
            ray = randn(objective.size, seed=seed)
            there = objective.at(objective.vector + radius * ray / ray.norm())
            assert float(there.gradient().norm()) <= bound


# Lipschitz ---------------------------------------------------------------------------------------


def test_gradients_grow_along_the_orbit_and_not_on_a_ball() -> None:
    objective = rectified(4, 6, 5, 3)
    found = lipschitz(objective, scales=(1.0, 1e-2, 1e-4, 1e-6))
    assert found.mismatch < 1e-9
    assert found.measured[3] / found.measured[2] == pytest.approx(100, rel=1e-3)
    assert found.bound is not None
    assert found.met <= found.bound < 1e4
    assert "no constant for the whole space" in str(found)


def test_lipschitz_says_what_it_needs() -> None:
    flat = rectified(4, 5, 3)
    zeros = flat.at(torch.zeros_like(flat.vector))
    with pytest.raises(SpiritlevelError, match="no exact minimum"):
        lipschitz(zeros)
    with pytest.raises(SpiritlevelError, match=r"radius=0\.0: give a positive number"):
        lipschitz(flat, radius=0.0)
    with pytest.raises(SpiritlevelError, match="give a model with rescalings"):
        lipschitz(BY_NAME["mlp"].objective())
