"""Piecewise linear in each parameter: what the graph says against dense second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import spiritlevel as sl
from architectures import ResNet, mlp, randomized
from cases import labels, randn
from networks import build, networks
from networks.base import Net, Piece, parameter
from spiritlevel.base.tensors import flatten, unflatten
from spiritlevel.coordinates import Diagonal
from spiritlevel.symmetry.tracing.degree import multilinear, obstacle

SMALL = 160  # parameters of a network whose second derivatives are laid out


def diagonals(objective: sl.Objective) -> tuple[Tensor, Tensor]:
    """diag(H) and diag(G) of a mean squared error, dense, by torch.func alone."""
    (batch,) = objective.batches
    model, shapes = objective.module, objective.shapes
    frozen = objective.buffers

    def outputs(vector: Tensor) -> Tensor:
        state = {**frozen, **unflatten(vector, shapes)}
        return functional_call(model, state, (batch[0].clone(),))

    def loss(vector: Tensor) -> Tensor:
        return F.mse_loss(outputs(vector), batch[1])

    vector = flatten(objective.params)
    jacobian = jacrev(outputs)(vector).flatten(0, -2)
    return hessian(loss)(vector).diagonal(), 2 * jacobian.square().sum(0) / batch[1].numel()


def regression(model: nn.Module, x: Tensor, **options: Any) -> sl.Objective:
    with torch.no_grad():
        out = model(x.clone())
    return sl.Objective(model, (x, out + randn(*out.shape)), F.mse_loss, **options)


def error(objective: sl.Objective) -> float:
    """How far the diagonals are apart, relative to the largest entry."""
    of_hessian, of_ggn = diagonals(objective)
    return float((of_hessian - of_ggn).abs().max() / of_ggn.abs().max().clamp_min(1e-300))


def layers(function: Callable[[Piece, Tensor], Tensor], **parts: Any) -> nn.Module:
    sizes = {"a": (4, 4), "b": (4, 4), "d": (4, 2)}
    maps = {name: nn.Linear(*size) for name, size in sizes.items()}
    return randomized(Piece(function, **maps, w=parameter(4), **parts))


def _in_place(self: Piece, x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 8, dtype=x.dtype)
    made[:, :4] = self.a(x).relu_()
    made[:, 4:] = self.b(x)
    return self.d(made[:, 2:6])


def _multiplied_in_place(self: Piece, x: Tensor) -> Tensor:
    h = self.a(x)
    made = h.clone()
    made[:, :2].mul_(h[:, :2])
    return self.d(made)


def _through_strides(self: Piece, x: Tensor) -> Tensor:
    scale = torch.ones(4, dtype=x.dtype)
    scale.as_strided((4,), (1,)).mul_(self.w)
    return self.d(self.a(x) * scale * scale)


def _pooled(self: Piece, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.d((h[:, :, None] @ h[:, None, :]).mean(-1))


def _attention(self: Piece, x: Tensor) -> Tensor:
    tokens = x.reshape(-1, 2, 4)
    return self.d(F.scaled_dot_product_attention(self.a(tokens), tokens, self.b(tokens)))


LINEAR: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "perceptron": lambda: (randomized(mlp(nn.ReLU)), randn(6, 64)),
    "leaky": lambda: (randomized(mlp(nn.LeakyReLU)), randn(6, 64)),
    "clipped": lambda: (randomized(mlp(nn.ReLU6)), randn(6, 64)),
    "convolutions and norms": lambda: (
        randomized(nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(True), nn.MaxPool2d(2),
            nn.Conv2d(3, 2, 2), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )), randn(5, 1, 8, 8),
    ),
    "residual": lambda: (randomized(ResNet((2, 4), 1, "A")), randn(3, 3, 8, 8)),
    "residual with shortcuts": lambda: (randomized(ResNet((2, 3), 1, "B")), randn(3, 3, 8, 8)),
    "two branches": lambda: (layers(lambda s, x: s.d(s.a(x).relu() * s.b(x))), randn(6, 4)),
    "gated by a sign": lambda: (layers(lambda s, x: s.d(s.a(x) * (s.a(x) > 0.1))), randn(6, 4)),
    "in place": lambda: (layers(_in_place), randn(6, 4)),
    "norm of the inputs": lambda: (
        layers(lambda s, x: s.d(s.a(F.layer_norm(x, (4,), s.w)).relu())), randn(6, 4)
    ),
    "einsum": lambda: (
        layers(lambda s, x: s.d(torch.einsum("ni,ji,j->nj", x, s.a.weight, s.w))), randn(6, 4)
    ),
    "maxout": lambda: (layers(lambda s, x: s.d(torch.maximum(s.a(x), s.b(x)))), randn(6, 4)),
    "one layer, twice added": lambda: (
        layers(lambda s, x: s.d(s.a(x).relu() + 2 * s.a(-x).relu())), randn(6, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_networks_of_linear_maps_and_rectifiers(name: str) -> None:
    objective = regression(*LINEAR[name]())
    assert obstacle(objective) is None
    assert objective.size > 1000 or error(objective) <= 1e-9


Forward = Callable[[Piece, Tensor], Tensor]
BENT: dict[str, tuple[Forward, str, str, tuple[str, ...]]] = {
    "tied": (lambda s, x: F.linear(s.b(s.a(x).relu()), s.a.weight.T), "product", "linear",
             ("a.weight",)),
    "bilinear pooling": (_pooled, "product", "matmul", ("a.bias", "a.weight")),
    "called twice": (lambda s, x: s.d(s.a(s.a(x).relu())), "product", "linear",
                     ("a.weight",)),
    "parts of one matrix": (
        lambda s, x: F.linear(F.linear(x[:, :2], s.a.weight[:, :2]), s.a.weight[:2]),
        "product", "linear", ("a.weight",),
    ),
    "square": (lambda s, x: s.d(s.a(x).square()), "operation", "square", ("a.bias", "a.weight")),
    "product with itself": (lambda s, x: s.d(s.a(x) * s.a(x)), "product", "mul",
                            ("a.bias", "a.weight")),
    "in place": (_multiplied_in_place, "product", "mul", ("a.bias", "a.weight")),
    "quotient": (lambda s, x: s.d(s.a(x) / s.w), "operation", "div", ("w",)),
    "attention": (_attention, "operation", "scaled_dot_product_attention", ("a.bias", "a.weight")),
    "softmax": (lambda s, x: s.d(s.a(x).softmax(-1)), "operation", "softmax",
                ("a.bias", "a.weight")),
    "own statistics": (lambda s, x: s.d(F.layer_norm(s.a(x), (4,))), "operation", "layer_norm",
                       ("a.bias", "a.weight")),
    "gelu": (lambda s, x: s.d(F.gelu(s.a(x))), "operation", "gelu", ("a.bias", "a.weight")),
    "a parametrization": (lambda s, x: s.d(x @ (s.a.weight @ s.a.weight.T)), "product", "matmul",
                          ("a.weight",)),
    "a gram matrix by einsum": (
        lambda s, x: s.d(torch.einsum("ni,ij,kj->nk", x, s.a.weight, s.a.weight)), "product",
        "einsum", ("a.weight",),
    ),
    "a learned slope": (lambda s, x: s.d(F.prelu(s.w * x, s.w)), "product", "prelu", ("w",)),
    "interpolation": (lambda s, x: s.d(torch.lerp(x, s.w * x, s.w)), "product", "lerp", ("w",)),
}  # fmt: skip


@pytest.mark.parametrize("name", BENT)
def test_networks_that_are_not(name: str) -> None:
    """Each really has other diagonals, and the reason names the operation and the parameters."""
    forward, reason, operation, parameters = BENT[name]
    objective = regression(layers(forward), randn(6, 4))
    found = obstacle(objective)
    assert found is not None
    assert (found.reason, found.operation, found.parameters) == (reason, operation, parameters)
    assert error(objective) > 1e-6
    assert operation in str(found)


def test_what_is_written_through_strides() -> None:
    objective = regression(layers(_through_strides), randn(6, 4))
    assert not multilinear(objective)
    assert error(objective) > 1e-6


class Rolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.RNN(3, 2, nonlinearity="relu", batch_first=True), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: nn.Sequential(weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2)), (6, 4)),
        (lambda: nn.Sequential(spectral_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2)), (6, 4)),
        (Rolled, (5, 4, 3)),
    ],
)
def test_modules_that_are_not(make: Callable[[], nn.Module], x: tuple[int, ...]) -> None:
    assert not multilinear(regression(randomized(make()), randn(*x)))


def test_frozen_parameters_are_constants() -> None:
    """What bends a frozen layer bends no parameter; a tied pair of which one half is frozen too."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model = randomized(model)
    assert not multilinear(regression(model, randn(6, 4)))
    objective = regression(model, randn(6, 4), params=["2.*", "4.*"])
    assert multilinear(objective)


def test_premises_besides_the_network() -> None:
    model, data = randomized(mlp(nn.ReLU)), (randn(8, 64), labels(8, classes=10))
    plain = sl.Objective(model, data, F.cross_entropy)
    assert multilinear(plain)

    def penalized(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        total = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return total + sum(p.square().sum() for p in model.parameters()), len(batch[1])

    found = obstacle(sl.Objective(model, data, penalized))
    assert found is not None
    assert found.reason == "loss"
    moved = plain.reparametrize(Diagonal(torch.full((plain.size,), 2.0, dtype=torch.float64)))
    found = obstacle(moved)
    assert found is not None
    assert found.reason == "coordinates"
    normed = randomized(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    data = (randn(6, 4), randn(6, 2))
    assert multilinear(sl.Objective(normed, data, F.mse_loss))
    assert not multilinear(sl.Objective(normed, data, F.mse_loss, mode="train"))


def test_no_trace_is_proved_where_a_matrix_is_used_twice() -> None:
    """A tied auto-encoder: the trace of H falls below that of G, once called the least."""

    def forward(self: Piece, x: Tensor) -> Tensor:
        return F.linear(self.b(self.a(F.linear(x, self.w)).relu()), self.w.T)

    parts = {"w": parameter(3, 6), "a": nn.Linear(3, 5), "b": nn.Linear(5, 3)}
    model, x = randomized(Piece(forward, **parts)), randn(40, 6)
    objective = sl.Objective(model, (x, 3 * x), F.mse_loss)
    with pytest.raises(sl.SpiritlevelError, match="not piecewise linear in each parameter"):
        sl.orbit.minimum(objective, norm="trace", operator="hessian")
    assert not sl.audit(objective, ["hessian_trace"], way=False)["hessian_trace"].infimum.proved


@given(networks())
@settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_random_networks(net: Net) -> None:
    """Whenever it is said, diag(H) = diag(G) to rounding."""
    model, x = build(net)
    assume(x.is_floating_point() and sum(p.numel() for p in model.parameters()) <= SMALL)
    with torch.no_grad():
        out = model(x)
    assume(bool(out.isfinite().all()) and 1e-6 < float(out.abs().max()) < 1e6)
    objective = sl.Objective(model, (x, out + randn(*out.shape)), F.mse_loss)
    if multilinear(objective):
        assert error(objective) <= 1e-9
