"""Modules that people use: weights made of parameters, recurrent layers, and units behind more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations as parametrized
from torch.nn.utils import prune
from torch.nn.utils.parametrize import register_parametrization

import spiritlevel as sl
from architectures import randomized
from cases import randn
from spiritlevel.symmetry import Group, head_maps, permutations, sign_flips, symmetries
from spiritlevel.symmetry.group import added
from spiritlevel.symmetry.tracing.state import Reason

HIDDEN, OUT = 5, 3


def change(model: nn.Module, moved: dict[str, Tensor], x: Tensor) -> float:
    with torch.no_grad():
        before, after = model(x), functional_call(model, moved, (x,))
    return float((after - before).abs().max() / before.abs().max())


def worst(model: nn.Module, symmetry: Any, x: Tensor) -> float:
    """Of the predictions under five random elements."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: tensor.detach() for name, tensor in state.items()}
    elements = [symmetry.random(seed) for seed in range(5)]
    return max(change(model, symmetry.act(state, element), x) for element in elements)


# Weights that are made of parameters ----------------------------------------------------------


def perceptron(first: Callable[[nn.Linear], nn.Module], second: Any = lambda m: m) -> nn.Module:
    layers = (first(nn.Linear(4, HIDDEN)), nn.ReLU(), second(nn.Linear(HIDDEN, OUT)))
    return randomized(nn.Sequential(*layers))


def old(name: str) -> Callable[[nn.Module], nn.Module]:
    """The hooks of torch.nn.utils, before there were parametrizations."""
    return getattr(nn.utils, name)


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).mT


class Positive(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.exp()


def whole(layer: nn.Module) -> nn.Module:
    return parametrized.weight_norm(layer, dim=None)  # type: ignore[arg-type]


def turned(layer: nn.Module) -> nn.Module:
    return parametrized.weight_norm(layer, dim=1)


def made_by(make: nn.Module) -> Callable[[nn.Module], nn.Module]:
    return lambda layer: register_parametrization(layer, "weight", make)


both = parametrized.weight_norm
MADE: dict[str, tuple[Callable[[], nn.Module], int, str]] = {
    "weight norm": (lambda: perceptron(both), 5 + 5, "hidden units; a norm of every row of v"),
    "weight norm, as it was": (lambda: perceptron(old("weight_norm")), 5 + 5, "the same"),
    "weight norms": (lambda: perceptron(both, both), 1 + 5 + 3, "one factor for all; rows of v"),
    "one norm": (lambda: perceptron(whole), 1 + 1, "all hidden units together; all of v"),
    "norms of columns": (lambda: perceptron(turned), 1 + 4, "columns of v; hidden units together"),
    "spectral norm": (lambda: perceptron(parametrized.spectral_norm), 1, "the weight as a whole"),
    "spectral norm, as it was": (lambda: perceptron(old("spectral_norm")), 1, "the same"),
    "spectral norm behind": (
        lambda: perceptron(lambda m: m, parametrized.spectral_norm), 1, "the weight as a whole"
    ),
    "a mask": (
        lambda: perceptron(lambda m: prune.random_unstructured(m, "weight", 0.3)),
        5, "hidden units",
    ),
    "exponential": (lambda: perceptron(made_by(Positive())), 0, "exp is not proportional"),
    "exponential behind": (lambda: perceptron(lambda m: m, made_by(Positive())), 0, "nor there"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("name", MADE)
def test_weights_that_are_made(name: str) -> None:
    make, dim, why = MADE[name]
    model, x = make(), randn(6, 4)
    group = symmetries(model, x)
    assert worst(model, group, randn(6, 4, seed=3)) <= 1e-10
    assert group.dim == dim, why


def test_the_norm_of_a_normalized_weight_is_one_sided() -> None:
    """v_j alone, with nothing that makes up for it; the row's factor is in g_j and the bias."""
    model = perceptron(both)
    group = symmetries(model, randn(6, 4))
    sides = [tuple(p.parameter for p in group.pieces(i)) for i in range(group.dim)]
    stem = "0.parametrizations.weight.original"
    assert sides.count((f"{stem}1",)) == HIDDEN
    assert sides.count(("0.bias", f"{stem}0", "2.weight")) == HIDDEN
    objective = sl.Objective(model, (randn(8, 4), randn(8, 3)), F.mse_loss)
    found = sl.symmetries(objective)
    twin = found.apply(objective, found.random(1))
    assert found.dim == group.dim
    assert sl.verify(objective, twin).relative <= 1e-12


def test_convolutions_with_normalized_weights() -> None:
    layers = (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.ConvTranspose2d(3, 2, 3), nn.Flatten())
    for place in (0, 2):
        model = randomized(nn.Sequential(*layers))
        both(model[place])  # type: ignore[index]
        group = symmetries(model.float(), torch.randn(2, 2, 5, 5))
        # rows of the first: each channel; of the second, which are what comes in: likewise
        assert group.dim == 3 + 3
        assert worst(model.double(), group, randn(2, 2, 5, 5)) <= 1e-10
        nn.utils.parametrize.remove_parametrizations(model[place], "weight")  # type: ignore[index]


def test_a_symmetric_weight_holds_its_rows_and_columns_together() -> None:
    """W = W': a scale of row i is one of column i, which the input does not follow."""
    layer = made_by(Symmetric())(nn.Linear(4, 4))
    model = randomized(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 2)))
    group = symmetries(model, randn(6, 4))
    assert worst(model, group, randn(6, 4)) <= 1e-10
    assert group.dim == 4 + 1  # before it s_i, in it c - s_i - s_j, behind it c - s_i


# Recurrent layers -----------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A recurrent net read at its last step, or by its last state."""

    def __init__(self, state: bool = False, start: bool = False, **options: Any) -> None:
        super().__init__()
        self.net = nn.RNN(4, 3, **{"nonlinearity": "relu", **options})
        width = 3 * (2 if options.get("bidirectional") and not state else 1)
        self.head, self.state = nn.Linear(width, 2), state
        layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        self.start = nn.Parameter(torch.zeros(layers, 1, 3)) if start else None
        self.time = 1 if options.get("batch_first") else 0

    def forward(self, x: Tensor) -> Tensor:
        start = None
        if self.start is not None:
            start = self.start.expand(-1, x.shape[1 - self.time], -1).contiguous()
        outputs, states = self.net(x, start)
        return self.head(states[-1] if self.state else outputs.mean(self.time))


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(4, 3, nonlinearity="relu"), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = None
        for step in x:
            hidden = self.cell(step, hidden)
        return self.head(hidden)


RECURRENT: dict[str, tuple[Callable[[], nn.Module], int, str]] = {
    "one layer": (Recurrent, 3, "hidden units"),
    "batch first": (lambda: Recurrent(batch_first=True), 3, "hidden units"),
    "without biases": (lambda: Recurrent(bias=False), 3, "hidden units"),
    "two layers": (lambda: Recurrent(num_layers=2, dropout=0.5), 6, "hidden units of both"),
    "both ways": (lambda: Recurrent(bidirectional=True), 6, "hidden units of both"),
    "two layers, both ways": (lambda: Recurrent(num_layers=2, bidirectional=True), 12, "of four"),
    "read by the state": (lambda: Recurrent(state=True), 3, "hidden units"),
    "a start that learns": (lambda: Recurrent(start=True), 3, "hidden units"),
    "cells": (Cells, 3, "hidden units"),
    "tanh": (lambda: Recurrent(nonlinearity="tanh"), 0, "tanh is not proportional"),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str) -> None:
    make, dim, why = RECURRENT[name]
    model, x = randomized(make()), randn(5, 3, 4)
    group = symmetries(model, x)
    assert worst(model, group, randn(5, 3, 4, seed=3)) <= 1e-10
    assert group.dim == dim, why


def test_a_hidden_unit_of_a_recurrent_net() -> None:
    """W_ih[j] and b_j up, W_hh[j, k] up and W_hh[k, j] down, the next column down."""
    group: Group = symmetries(randomized(Recurrent()), randn(5, 3, 4))
    t = torch.zeros(3, dtype=torch.float64)
    t[1] = 1.0
    scales = {n: added(terms) for n, terms in group.log_scales(t).items()}
    sign = 1.0 if float(scales["net.bias_ih_l0"][1]) > 0 else -1.0
    unit = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    expected = {
        "net.weight_ih_l0": unit[:, None].expand(3, 4),
        "net.weight_hh_l0": unit[:, None] - unit[None, :],
        "net.bias_hh_l0": unit,
        "head.weight": -unit[None, :].expand(2, 3),
    }
    for name, value in expected.items():
        torch.testing.assert_close(scales[name].expand(value.shape), sign * value)


def test_signs_and_permutations_of_recurrent_units() -> None:
    model, x = randomized(Recurrent(nonlinearity="tanh", num_layers=2)), randn(5, 3, 4)
    signs = sign_flips(model, x)
    assert signs.dim == 6
    assert worst(model, signs, x) <= 1e-12
    sets = permutations(model, x)
    assert [units.size for units in sets] == [3, 3]
    assert {axis for axis, _ in sets[0].places.items()} >= {
        ("net.weight_hh_l0", 0), ("net.weight_hh_l0", 1), ("net.weight_ih_l1", 1),
    }  # fmt: skip
    assert max(worst(model, units, x) for units in sets) <= 1e-12


def test_what_a_recurrent_net_blocks_is_named() -> None:
    group = symmetries(randomized(Recurrent(nonlinearity="tanh")), randn(5, 3, 4))
    (block,) = group.blocks
    assert (block.operation, block.module, block.reason) == ("rnn_tanh", "net", Reason.BENDS)
    assert "rnn_tanh in net" in str(group)
    assert f"(it {Reason.BENDS.value})" in " ".join(str(group).split())


# Units behind more ----------------------------------------------------------------------------


def images(*layers: nn.Module) -> nn.Module:
    return randomized(nn.Sequential(*layers, nn.Flatten(1), nn.Linear(2 * 36, 2)))


def _normed(groups: int) -> nn.Module:
    return images(
        nn.Conv2d(1, 6, 1), nn.GroupNorm(groups, 6), nn.GELU(), nn.Conv2d(6, 2, 1)
    )  # fmt: skip


UNITS: dict[str, tuple[Callable[[], nn.Module], list[int], str]] = {
    "transposed": (
        lambda: images(nn.ConvTranspose2d(1, 5, 3, 1, 1), nn.GELU(),
                       nn.ConvTranspose2d(5, 2, 3, 1, 1)), [5], "channels between",
    ),
    "gated": (
        lambda: images(nn.Conv2d(1, 8, 1), nn.GLU(1), nn.Conv2d(4, 2, 1)), [4], "with their gates"
    ),
    "one group": (lambda: _normed(1), [6], "all channels"),
    "two groups": (lambda: _normed(2), [3, 3], "channels of each group"),
    "groups of one": (lambda: _normed(6), [6], "all channels"),
    "instances": (
        lambda: images(nn.Conv2d(1, 4, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(True),
                       nn.Conv2d(4, 2, 1)), [4], "channels",
    ),
    "batches, in place": (
        lambda: images(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU(True), nn.Conv2d(4, 2, 1)),
        [4], "channels with their statistics",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_permutations_behind_more(name: str) -> None:
    make, sizes, why = UNITS[name]
    model, x = make(), randn(2, 1, 6, 6)
    sets = permutations(model, x)
    assert [units.size for units in sets] == [*sizes, 2], why  # and two before the head
    assert max(worst(model, units, x) for units in sets) <= 1e-12


class ByEinsum(nn.Module):
    """Attention of two heads whose products are written as sums over letters."""

    def __init__(self, scores: str, mixed: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6) for _ in range(4))
        self.scores, self.mixed = scores, mixed

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (m(x).unflatten(-1, (2, 3)) for m in (self.q, self.k, self.v))
        weights = (torch.einsum(self.scores, q, k) / 3**0.5).softmax(-1)
        return self.o(torch.einsum(self.mixed, weights, v).flatten(-2))


@pytest.mark.parametrize(
    "words",
    [("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"), ("b q h d, b k h d -> b h q k", "bhij,bjhd->bihd")],
)
def test_linear_maps_of_heads_written_as_sums(words: tuple[str, str]) -> None:
    model, x = randomized(ByEinsum(*words)), randn(2, 5, 6)
    maps = head_maps(model, x)
    kinds = sorted((m.kind, m.size) for m in maps)
    assert kinds == [("query-key", 3)] * 2 + [("value-output", 3)] * 2
    assert max(worst(model, m, x) for m in maps) <= 1e-10
