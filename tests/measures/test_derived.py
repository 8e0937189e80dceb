"""Networks whose parameters are not what they seem: gains, masks, tables, joined features."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune, spectral_norm

import spiritlevel as sl
from cases import labels, randn


def objective(net: nn.Module, *shape: int) -> sl.Objective:
    torch.manual_seed(0)
    return sl.Objective(net.double(), (randn(20, *(shape or (4,))), labels(20)), F.cross_entropy)


def value(name: str, point: sl.Objective) -> float:
    return sl.MEASURES[name](point).value


def moved(point: sl.Objective, *, layers: bool = False) -> sl.Objective:
    group = sl.symmetries(point)
    group = group.layerwise() if layers else group
    return group.apply(point, group.random(0, 1.0))


def test_gains_of_two_axes_are_no_weight_matrices() -> None:
    first, last = nn.Linear(4, 6), nn.Linear(6, 3)
    norm = nn.LayerNorm([2, 3])
    net = nn.Sequential(first, nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), nn.ReLU(), last)
    point = objective(net)
    weights = [first.weight.detach(), last.weight.detach()]
    assert value("parameter_norm", point) == pytest.approx(
        sum(float(w.square().sum()) for w in weights), rel=1e-12
    )
    first_layer = sl.MEASURES["relative_flatness"](
        point, layer="0.weight"
    )  # not the bias of a norm
    assert value("relative_flatness", point) == pytest.approx(first_layer.value, rel=1e-9)
    assert value("stable_rank_sum", point) == pytest.approx(
        sum(float(w.square().sum() / torch.linalg.matrix_norm(w, 2) ** 2) for w in weights),
        rel=1e-12,
    )


@pytest.mark.parametrize("kind", ["pruned", "hooked"])
def test_weights_made_of_others_are_refused(kind: str) -> None:
    first = nn.Linear(4, 6)
    if kind == "pruned":
        prune.l1_unstructured(first, "weight", 0.5)
    else:
        spectral_norm(first)
    point = objective(nn.Sequential(first, nn.ReLU(), nn.Linear(6, 3)))
    for name in ("parameter_norm", "log_spectral_product", "l1_path_norm"):
        with pytest.raises(sl.SpiritlevelError, match="made of other parameters"):
            value(name, point)


class Fixed(nn.Module):
    """A first layer that is a buffer, or computed."""

    def __init__(self, centred: bool) -> None:
        super().__init__()
        self.centred = centred
        self.register_buffer("fixed", randn(6, 4))
        self.own = nn.Parameter(randn(6, 4, seed=2))
        self.bias = nn.Parameter(randn(6, seed=3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.own - self.own.mean(1, keepdim=True) if self.centred else self.fixed
        return self.head(torch.relu(F.linear(x, weight, self.bias)))  # type: ignore[arg-type]


def test_paths_through_a_buffer_and_through_computed_weights() -> None:
    net = Fixed(False)
    point = objective(net)
    fixed, bias = net.fixed.abs(), net.bias.detach().abs()  # type: ignore[operator]
    first = fixed @ torch.ones(4).double() + bias
    head = net.head
    wanted = head.weight.detach().abs() @ first + head.bias.detach().abs()
    assert value("l1_path_norm", point) == pytest.approx(float(wanted.sum()), rel=1e-12)
    with pytest.raises(sl.SpiritlevelError, match="the weights of a linear are computed"):
        value("l1_path_norm", objective(Fixed(True)))


class Placed(nn.Module):
    """A table of positions that is added to a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 3)
        self.place = nn.Parameter(0.3 * randn(1, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.embed(x) + self.place).mean(1))


def test_a_table_with_an_axis_of_one_is_a_matrix() -> None:
    point = objective(Placed(), 5, 3)
    assert value("normalized_sharpness", moved(point)) == pytest.approx(
        value("normalized_sharpness", point), rel=1e-3
    )


class Joined(nn.Module):
    """Features side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.c, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = [torch.relu(self.a(x)), torch.relu(self.b(x))]
        return self.head(torch.relu(self.c(torch.cat(both, -1))))


def test_relative_flatness_is_of_one_map() -> None:
    point = objective(Joined())
    for name in ("relative_flatness", "relative_flatness_largest"):
        with pytest.raises(sl.SpiritlevelError, match=r"c\.weight holds or joins several"):
            value(name, point)
        measure = sl.MEASURES[name]
        here = measure(point, layer="a.weight").value
        there = measure(moved(point, layers=True), layer="a.weight").value
        assert there == pytest.approx(here, rel=0.02)


def test_rows_of_embeddings_are_no_units() -> None:
    net = nn.Sequential(
        nn.ConvTranspose2d(2, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    point = objective(net, 2, 2, 2)
    with pytest.raises(sl.SpiritlevelError, match=r"'0\.weight' is none of the parameters"):
        sl.MEASURES["relative_flatness"](point, layer="0.weight")


class Named(nn.Module):
    """Layers that are called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.n = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.n(input=self.c(input=x)).relu().flatten(1))


def test_layers_called_by_keyword() -> None:
    net = Named().eval()
    point = objective(net, 1, 4, 4)
    plain = sl.MEASURES["log_spectral_product"]
    assert plain(point, fold=True).value == pytest.approx(
        plain(point).value, rel=1e-4
    )  # fresh norm
    assert plain(point, convolution="periodic").value > plain(point).value


def test_a_box_that_is_no_box() -> None:
    point = objective(nn.Linear(4, 3))
    with pytest.raises(sl.SpiritlevelError, match="eps=1e-200 is too small"):
        sl.MEASURES["keskar"](point, eps=1e-200)
