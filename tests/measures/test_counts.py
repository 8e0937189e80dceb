"""Counts by hand and VC bounds against published numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import conformance
import spiritlevel as sl
from architectures import ResNet, lenet, objective_of
from cases import labels, randn
from spiritlevel.measures.counts import vc_bound

VC = sl.MEASURES["vc_dimension"]


def mlp(*sizes: int, inplace: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU(inplace=inplace)]
    return nn.Sequential(*layers[:-1])


def of_images(net: nn.Module, *shape: int, classes: int = 3) -> sl.Objective:
    return sl.Objective(net, (randn(4, *shape), labels(4, classes=classes)), F.cross_entropy)


def test_parameters_are_counted_where_they_are_chosen() -> None:
    data = randn(4, 5), labels(4)
    whole = sl.Objective(mlp(5, 7, 3), data, F.cross_entropy)
    part = sl.Objective(mlp(5, 7, 3), data, F.cross_entropy, params=["2.*"])
    count = sl.MEASURES["parameter_count"]
    assert (count(whole).value, count(part).value) == (5 * 7 + 7 + 7 * 3 + 3, 7 * 3 + 3)
    conformance.check(count)
    units = sl.coordinates.Diagonal(torch.full((whole.size,), 2.0))
    assert count(whole.reparametrize(units)).value == 66


@pytest.mark.parametrize(
    ("hidden", "millions"),
    [
        ((600,), 15.3),
        ((1200,), 32.7),
        ((300, 300), 15.0),
        ((600, 600), 38.4),
        ((1200, 1200), 109.0),
        ((600, 600, 600), 70.4),
    ],
)
def test_networks_of_dziugaite_and_roy(hidden: tuple[int, ...], millions: float) -> None:
    sizes = (784, *hidden, 1)
    with torch.device("meta"):
        shapes = [p.shape for p in mlp(*sizes).parameters()]
    numbers = [w.numel() + b.numel() for w, b in zip(shapes[::2], shapes[1::2], strict=True)]
    found = vc_bound(numbers, list(sizes[1:]))
    assert round(found / 1e6, 1) == millions


def test_a_network_of_dziugaite_and_roy_as_a_model() -> None:
    y = (torch.arange(4) % 2)[:, None].float()
    net = mlp(784, 600, 1)
    objective = sl.Objective(net, (torch.rand(4, 784), y), F.binary_cross_entropy_with_logits)
    found = VC(objective).value
    r = 600 + 2 * 1
    total = (784 * 600 + 600) + (784 * 600 + 600 + 601)
    factor = math.log2(4 * math.e * r * math.log2(2 * math.e * r))
    assert found == pytest.approx(2 + total * factor, rel=1e-12)
    assert round(found / 1e6, 1) == 15.3


@pytest.mark.parametrize("inplace", [False, True])
def test_a_convolution_has_few_weights_and_many_units(inplace: bool) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3),  # 20 parameters, 2 * 4 * 4 units
        nn.ReLU(inplace=inplace),
        nn.AvgPool2d(2),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(8, 5, bias=False),
        nn.LeakyReLU(inplace=inplace),
        nn.Linear(5, 3),
    )
    found = VC(of_images(net, 1, 6, 6)).value
    assert found == pytest.approx(vc_bound([20, 40, 18], [32, 5, 3]), rel=1e-12)
    single = of_images(net, 1, 6, 6).on([(randn(1, 1, 6, 6).float(), labels(1))])
    assert VC(single).value == found


def test_a_norm_is_part_of_the_layer_before_it() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32, 3), nn.BatchNorm1d(3),
    )  # fmt: skip
    found = VC(of_images(net, 1, 6, 6)).value
    assert found == pytest.approx(vc_bound([18 + 2, 99], [32, 3]), rel=1e-12)
    first = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(sl.SpiritlevelError, match="batch_norm is nothing of that kind"):
        VC(of_images(first, 4))
    data = randn(4, 1, 6, 6), labels(4)
    with pytest.raises(sl.SpiritlevelError, match="none: batch_norm is nothing of that kind"):
        VC(sl.Objective(net, data, F.cross_entropy, mode="train"))


def test_weights_that_are_not_trained_count_too() -> None:
    data = randn(4, 5), labels(4)
    part = sl.Objective(mlp(5, 7, 3), data, F.cross_entropy, params=["2.*"])
    assert VC(part).value == pytest.approx(vc_bound([42, 24], [7, 3]), rel=1e-12)
    conformance.check(VC)


@pytest.mark.parametrize(
    ("net", "shape", "reason"),
    [
        (lenet(), (1, 28, 28), "max_pool2d is nothing of that kind"),
        (ResNet((4, 8), 1, "B"), (3, 8, 8), "add joins what ran beside"),
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 10)), (4,), "tanh is nothing"),
        (nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 10)), (4,), "prelu is nothing"),
        (nn.TransformerEncoderLayer(10, 2, 4, batch_first=True), (10, 10), "joins what ran"),
    ],
)
def test_what_is_no_chain_has_no_vc_bound(
    net: nn.Module, shape: tuple[int, ...], reason: str
) -> None:
    if isinstance(net, nn.TransformerEncoderLayer):
        net = nn.Sequential(net, nn.Flatten(), nn.Linear(100, 10))
    with pytest.raises(sl.SpiritlevelError, match=reason):
        VC(objective_of(net, *shape))
