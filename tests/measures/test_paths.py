"""The path norm along the graph: what it takes, against networks of squares written by hand."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, randn
from enclosed import ENCLOSED
from networks.base import Piece
from spiritlevel.coordinates.inputs import affine, represent

Forward = Callable[[Any, Tensor], Tensor]


def layers(function: Forward, **parts: Any) -> nn.Module:
    maps = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "d": nn.Linear(4, 3)}
    return randomized(Piece(function, **maps, **parts)).double()


def path_norm(model: nn.Module, *shape: int, **options: Any) -> float:
    data = randn(6, *(shape or (4,))), labels(6)
    objective = sl.Objective(model, data, F.cross_entropy, **options)
    return sl.MEASURES["path_norm"](objective).value


# a network, and what it is when weights are squares and all numbers are positive
PATHS: dict[str, tuple[Forward, Forward]] = {
    "transposed weights": (
        lambda s, x: s.d(F.linear(x, s.a.weight.T)),
        lambda s, x: s.d(x @ s.a.weight),
    ),
    "residual": (
        lambda s, x: s.d(s.b(s.a(x).relu()) + s.a(x)),
        lambda s, x: s.d(s.b(s.a(x)) + s.a(x)),
    ),
    "cut and joined": (
        lambda s, x: s.d(torch.cat(s.a(x).relu().chunk(2, 1)[::-1], 1)),
        lambda s, x: s.d(s.a(x).roll(2, 1)),
    ),
    "a number that is added": (lambda s, x: s.d(s.a(x) + 3), lambda s, x: s.d(s.a(x) + 9)),
    "numbers that are put around": (
        lambda s, x: s.d(F.pad(s.a(x)[:, :2], (1, 1), value=-2.0)),
        lambda s, x: s.d(F.pad(s.a(x)[:, :2], (1, 1), value=4.0)),
    ),
    "a table that is no weight": (
        lambda s, x: s.d(s.a(x) @ torch.full((4, 4), -0.5).double()),
        lambda s, x: s.d(s.a(x) @ torch.full((4, 4), 0.25).double()),
    ),
    "halves": (lambda s, x: s.d(s.a(x) / 2 * 3), lambda s, x: s.d(s.a(x) / 4 * 9)),
    "in place": (
        lambda s, x: s.d(F.relu_(s.a(x)).add_(s.b(x))),
        lambda s, x: s.d(s.a(x) + s.b(x)),
    ),
    "moved about": (
        lambda s, x: s.d(s.a(x).view(-1, 2, 2).mT.flatten(1).expand(-1, 4)[:, [3, 1, 1, 0]]),
        lambda s, x: s.d(s.a(x)[:, [3, 2, 2, 0]]),
    ),
}


@pytest.mark.parametrize("name", PATHS)
def test_path_norms_are_those_of_networks_of_squares(name: str) -> None:
    forward, squares = PATHS[name]
    model, other = layers(forward), layers(squares)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        theirs.data = mine.data.square()
    expected = float(other(torch.ones(1, 4).double()).sum().sqrt().detach())
    assert path_norm(model) == pytest.approx(expected, rel=1e-12)


def test_inputs_in_other_units_are_weights_in_other_units() -> None:
    net = layers(lambda s, x: s.d(s.a(x).relu()))
    objective = sl.Objective(net, (randn(6, 4), labels(6)), F.cross_entropy)
    scale = torch.tensor([0.1, 2.0, 3.0, 4.0]).double()
    seen = represent(objective, affine(torch.zeros(4).double(), scale))
    found = sl.MEASURES["path_norm"](seen).value
    folded = objective.at({"a.weight": objective.params["a.weight"] / scale})
    assert found == pytest.approx(sl.MEASURES["path_norm"](folded).value, rel=1e-12)


def test_a_layer_that_is_used_twice_is_two_layers() -> None:
    """Whatever ran before: torch leaves what it was given in a module that has two names."""
    objective = ENCLOSED["a shared layer"]()
    objective.per_example_gradients()
    net: Any = objective.module
    assert {type(p) for p in net.parameters()} == {nn.Parameter}
    apart = nn.Sequential(*deepcopy(net))
    for i in (2, 4):
        apart[i] = deepcopy(net[2])
    found = sl.MEASURES["path_norm"](objective).value
    assert found == pytest.approx(path_norm(apart.requires_grad_()), rel=1e-12)
    assert sl.symmetries(objective).dim > 0


def image(*rest: nn.Module) -> nn.Module:
    return randomized(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), *rest)).double()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (image(nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(18, 3)), "of one size"),
        (image(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Flatten()), "of one size"),
        (image(nn.MaxPool2d(2, dilation=2), nn.Flatten()), "no dilated"),
        (image(nn.AdaptiveAvgPool2d(3), nn.Flatten()), "equal windows"),
        (image(nn.InstanceNorm2d(2), nn.Flatten()), "rectifiers; instance_norm is no such"),
    ],
)
def test_what_has_other_coefficients_is_refused(net: nn.Module, message: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        path_norm(net, 1, 5, 5)


def test_what_depends_on_chance_or_on_the_batch_is_refused() -> None:
    dropping = nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3)).double()
    assert path_norm(dropping) > 0
    with pytest.raises(sl.SpiritlevelError, match='no dropout: use mode="eval"'):
        path_norm(dropping, mode="train", seed=0)
    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    with pytest.raises(sl.SpiritlevelError, match='no batch statistics: use mode="eval"'):
        path_norm(normed, mode="train")


def test_products_of_activations_have_no_paths() -> None:
    net = layers(lambda s, x: s.d((s.a(x)[:, :, None] @ s.b(x)[:, None]).sum(1)))
    with pytest.raises(sl.SpiritlevelError, match="networks of weights, sums and rectifiers"):
        path_norm(net)


def test_a_model_without_a_graph_has_no_path_norm() -> None:
    def by_value(self: Any, x: Tensor) -> Tensor:
        return self.d(self.a(x) if float(x.sum()) > 0 else self.b(x))

    with pytest.raises(sl.SpiritlevelError, match=r"could not trace this model \(.*still work"):
        path_norm(layers(by_value))
