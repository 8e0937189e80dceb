"""Groups of random networks: sound, complete where that can be known, and groups at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import spiritlevel as sl
from networks import build, networks, randomize, without_eps
from networks import example as example_of
from networks.base import Net, Part, Piece, parameter
from spiritlevel.symmetry import Group, symmetries

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"


def examples(usual: int, long: int = 3000) -> settings:
    """The same examples every time; more of them where someone asked for it."""
    return settings(
        max_examples=long if LONG else usual,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def change(model: nn.Module, group: Group, x: Any, seed: int = 0) -> float:
    """Of the predictions under a random element of the group, relative to the largest."""
    before = {name: tensor.detach().clone() for name, tensor in state(model).items()}
    after = group.act(before, group.random(seed))
    with torch.no_grad():
        old, new = (functional_call(model, values, (x.clone(),)) for values in (before, after))
    return float((old - new).abs().max() / old.abs().max().clamp_min(1e-300))


def usable(model: nn.Module, x: Tensor) -> bool:
    """Whether rounding stays small: not where a norm without eps divides by next to nothing."""
    before = {name: tensor.detach() for name, tensor in state(model).items()}
    draws = torch.Generator().manual_seed(0)
    nudged = {
        name: tensor * (1 + 1e-9 * torch.randn(tensor.shape, generator=draws, dtype=tensor.dtype))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in before.items()
    }
    with torch.no_grad():
        old, new = (functional_call(model, values, (x.clone(),)) for values in (before, nudged))
    largest = float(old.abs().max())
    return 1e-6 < largest < 1e6 and float((old - new).abs().max()) < 1e-5 * largest


# Sound ----------------------------------------------------------------------------------------


@given(networks(), st.sampled_from(["fixed", "free"]))
@examples(200)
def test_predictions_stay(net: Net, statistics: Any) -> None:
    model, x = build(net)
    fresh = example_of(net, net.seed + 1)
    assume(usable(model, x) and usable(model, fresh))
    group = symmetries(model, x, statistics=statistics)
    assert change(model, group, x, net.seed) <= 1e-10
    assert change(model, group, fresh, net.seed) <= 1e-10


@given(networks(), st.sampled_from(["fixed", "free"]))
@examples(80, 1000)
def test_predictions_stay_without_eps(net: Net, statistics: Any) -> None:
    """What "approximate" admits is exact where no norm has an eps."""
    model, x = build(net)
    without_eps(model)
    fresh = example_of(net, net.seed + 1)
    assume(usable(model, x) and usable(model, fresh))
    group = symmetries(model, x, statistics=statistics, eps="approximate")
    assert change(model, group, x, net.seed) <= 1e-8
    assert change(model, group, fresh, net.seed) <= 1e-8


TRAINED = (
    "linear", "convolution", "batch norm", "relu", "groups", "pool", "residual", "dense", "twice",
    "slice", "pad channels", "halves", "scale", "layer norm", "attention",
)  # fmt: skip


@given(networks(only=TRAINED), st.sampled_from(["exact", "approximate"]))
@examples(40, 500)
def test_predictions_stay_in_training(net: Net, eps: Any) -> None:
    """Statistics of the batch, by way of an objective."""
    model, x = build(net)
    if eps == "approximate":
        without_eps(model)
    model.train()
    assume(usable(model, x))
    data = x if x.is_floating_point() else x.clone()
    with torch.no_grad():
        targets = torch.zeros_like(model(x))
    objective = sl.Objective(model, (data, targets), F.mse_loss, mode="train")
    group = symmetries(objective, eps=eps)
    assert change(model, group, x, net.seed) <= (1e-10 if eps == "exact" else 1e-8)


# Complete -------------------------------------------------------------------------------------

COMPLETE = (
    "linear", "linear without bias", "relu", "leaky relu", "squared relu", "gated", "product",
    "convolution", "groups", "pool", "residual", "dense", "slice", "pad channels", "halves",
    "glu", "scale", "layer norm", "rms norm", "attention", "grouped query", "rearranged", "dropout",
)  # fmt: skip


def gradients(net: Net, model: nn.Module, draws: int, seed: int = 0) -> Tensor:
    """Rows theta_i df/dtheta_i over many random theta and inputs, no graph involved."""
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    rows = []
    for draw in range(draws):
        randomize(model, generator)
        out = model(example_of(net, 10_000 + draw))
        for _ in range(3):
            weights = torch.randn(out.shape, generator=generator, dtype=out.dtype)
            found = torch.autograd.grad(
                (out * weights).sum(), list(parameters.values()), retain_graph=True,
                allow_unused=True, materialize_grads=True,
            )  # fmt: skip
            pairs = zip(parameters.values(), found, strict=True)
            row = torch.cat([(p * g).detach().reshape(-1) for p, g in pairs])
            rows.append(row / row.norm().clamp_min(1e-300))
    return torch.stack([row for row in rows if bool(row.isfinite().all())])


def nullity(rows: Tensor) -> int | None:
    """The dimension of the null space; None where the spectrum has no gap to tell it by."""
    s = torch.linalg.svdvals(rows)
    s = s / s[0]
    if bool(((s > 1e-11) & (s < 1e-7)).any()):
        return None
    return rows.shape[1] - int((s >= 1e-7).sum())


def expected_and_found(net: Net) -> tuple[int | None, int]:
    """The null dimension of the oracle, and what the group and unused elements explain of it."""
    model, x = build(net)
    without_eps(model)
    group = symmetries(model, x)
    names = [name for name, _ in model.named_parameters()]
    assert list(group.shapes) == [n for n in names if n in group.shapes]
    columns = sum(p.numel() for p in model.parameters())
    rows = gradients(net, model, 20 + columns // 2)
    if set(names) == set(group.shapes):
        exponents = torch.from_numpy(group.matrix(names).toarray())
    else:  # parameters that the graph never met
        exponents = _spread(group, model)
    assert int(torch.linalg.matrix_rank(exponents)) == group.dim
    assert not exponents.numel() or float((rows @ exponents).abs().max()) < 1e-9
    unused = torch.eye(columns, dtype=torch.float64)[:, rows.abs().amax(0) < 1e-12]
    explained = torch.cat([exponents, unused], dim=1)
    rank = int(torch.linalg.matrix_rank(explained)) if explained.numel() else 0
    found = nullity(rows)
    if found != rank:  # too few draws only ever find too much
        found = nullity(gradients(net, model, 100 + 2 * columns, seed=1))
    return found, rank


def _spread(group: Group, model: nn.Module) -> Tensor:
    """B with rows of zeros for the parameters that the group does not know."""
    table, pieces, start = torch.from_numpy(group.matrix().toarray()), {}, 0
    for name, shape in group.shapes.items():
        pieces[name] = table[start : start + shape.numel()]
        start += shape.numel()
    return torch.cat(
        [
            pieces.get(name, torch.zeros(p.numel(), group.dim, dtype=torch.float64))
            for name, p in model.named_parameters()
        ]
    )


def image(*first: Part, then: tuple[Part, ...] = (), down: str = "flatten", width: int = 2) -> Net:
    return Net("image", width, "plain", first, down, then)


def tokens(*first: Part, then: tuple[Part, ...] = (), down: str = "mean", width: int = 2) -> Net:
    return Net("tokens", width, "plain", first, down, then)


def vector(*first: Part) -> Net:
    return Net("vector", 3, "plain", first)


RELU, LINEAR, NARROW = Part("relu"), Part("linear", 2), Part("linear", 0)
CONVOLUTION, POINTWISE = Part("convolution", 1), Part("convolution", 0)
FIXED = {
    "perceptron": vector(LINEAR, RELU, LINEAR, RELU),
    "squares": vector(LINEAR, Part("squared relu"), LINEAR, Part("leaky relu")),
    "tanh": vector(LINEAR, Part("tanh"), LINEAR),
    "gated": vector(LINEAR, RELU, Part("gated", 3)),
    "swiglu": vector(Part("gated", 0), Part("linear", 1)),
    "product": vector(Part("product", 0), Part("relu"), LINEAR),
    "layer norm": vector(LINEAR, Part("layer norm"), RELU, LINEAR, Part("rms norm")),
    "residual": vector(LINEAR, Part("residual", 0, (LINEAR, RELU, LINEAR)), RELU, LINEAR),
    "padded shortcut": vector(NARROW, Part("residual", 0, (NARROW, RELU, LINEAR)), RELU),
    "linear shortcut": vector(NARROW, Part("residual", 2, (NARROW, RELU, LINEAR)), RELU),
    "dense": vector(NARROW, Part("dense", 0, (RELU, LINEAR)), Part("dense", 0, (RELU, NARROW))),
    "shared": vector(LINEAR, RELU, Part("shared", 0)),
    "matrices of three axes": vector(Part("matrix", 1), RELU, Part("linear", 0)),
    "cut matrix": vector(LINEAR, RELU, Part("matrix", 3)),
    "convolutions": image(CONVOLUTION, RELU, Part("pool", 0), POINTWISE, RELU),
    "groups": image(Part("groups", 1), RELU, POINTWISE, down="mean"),
    "transposed groups": image(Part("groups", 3), RELU, POINTWISE, down="mean"),
    "depthwise": image(CONVOLUTION, RELU, Part("groups", 0), Part("prelu"), down="mean"),
    "fixed statistics": image(CONVOLUTION, Part("batch norm"), RELU, POINTWISE, down="mean"),
    "group norm": image(CONVOLUTION, Part("group norm", 1), RELU, POINTWISE, down="mean"),
    "fused attention": tokens(Part("attention", 0)),
    "attention by hand": tokens(Part("attention", 3)),
    "grouped query": tokens(Part("grouped query", 1)),
    "residual attention": tokens(
        LINEAR, Part("residual", 0, (Part("layer norm"), Part("attention", 1)))
    ),
    "cross attention": tokens(Part("multihead", 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_nothing_is_missed(name: str) -> None:
    """As many generators as directions in which no random parameters ever change anything."""
    oracle, found = expected_and_found(FIXED[name])
    assert found == oracle


@given(networks(only=COMPLETE, size=2))
@examples(25, 150)
def test_nothing_is_missed_in_random_networks(net: Net) -> None:
    model, x = build(net)
    without_eps(model)
    assume(net.front == "plain" and usable(model, x))
    assume(sum(p.numel() for p in model.parameters()) <= 150)
    oracle, found = expected_and_found(net)
    assume(oracle is not None)
    assert found == oracle


# A group --------------------------------------------------------------------------------------


@given(networks(), st.sampled_from(["fixed", "free"]), st.sampled_from(["exact", "approximate"]))
@examples(60, 600)
def test_elements_compose(net: Net, statistics: Any, eps: Any) -> None:
    model, x = build(net)
    group = symmetries(model, x, statistics=statistics, eps=eps)
    exponents = torch.from_numpy(group.matrix().toarray())
    assert exponents.shape == (sum(s.numel() for s in group.shapes.values()), group.dim)
    if group.dim:
        assert int(torch.linalg.matrix_rank(exponents)) == group.dim
    start = {name: tensor.detach() for name, tensor in state(model).items()}
    s, t = group.random(1), group.random(2)
    one_by_one, at_once = group.act(group.act(start, s), t), group.act(start, group.compose(s, t))
    back, same = (
        group.act(group.act(start, s), group.inverse(s)),
        group.act(start, group.identity()),
    )
    moved = group.act(start, t)
    place = 0
    for name, tensor in start.items():
        torch.testing.assert_close(one_by_one[name], at_once[name], rtol=1e-12, atol=0)
        torch.testing.assert_close(back[name], tensor, rtol=1e-12, atol=0)
        assert torch.equal(same[name], tensor)
    for name, shape in group.shapes.items():
        scale = (exponents[place : place + shape.numel()] @ t).exp().reshape(shape)
        torch.testing.assert_close(moved[name], start[name] * scale, rtol=1e-12, atol=0)
        place += shape.numel()


# What went wrong once -------------------------------------------------------------------------


def layers(function: Callable[[Piece, Tensor], Tensor], **parts: Any) -> Callable[[], nn.Module]:
    """A module with the linear layers a, b, c, d of the given widths, and what else is given."""
    made = {k: (lambda w=v: nn.Linear(*w)) if isinstance(v, tuple) else v for k, v in parts.items()}
    return lambda: Piece(function, **{name: make() for name, make in made.items()})


def _into_zeros(self: Piece, x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 4, dtype=x.dtype)
    made[:, :2] = self.a(x)
    return self.d(F.relu(self.c(made)))


def _mask_by_slices(self: Piece, x: Tensor) -> Tensor:
    mask = torch.zeros(4, dtype=x.dtype)
    mask[:2] = 1
    return self.d(F.relu(self.a(x)) * mask)


def _onto_padding(self: Piece, x: Tensor) -> Tensor:
    padded = F.pad(self.a(x), (0, 2))
    padded[:, 2:] += self.b(x)
    return self.d(F.relu(self.c(padded[:, 2:])))


def _in_place_behind_dropout(self: Piece, x: Tensor) -> Tensor:
    h = self.a(x)
    self.p(h).square_()  # dropout returns its input itself in eval mode
    return self.d(h)


def _blocked_triangle(self: Piece, x: Tensor) -> Tensor:
    gate = torch.einsum("...i,ji->...j", torch.sigmoid(x), self.w.tril())
    return F.linear(F.relu(self.a(x)), self.w.tril()) + gate


def _padding_to_the_zeroth(self: Piece, x: Tensor) -> Tensor:
    return self.d(F.relu(self.c(F.pad(self.a(x), (0, 2)).pow(0)[:, 2:])))


REFUTED: dict[str, Callable[[], nn.Module]] = {
    "zero channels into free statistics": layers(
        lambda self, x: self.d(self.n(F.pad(self.a(x), (0, 2)))),
        a=(4, 2), d=(4, 2), n=lambda: nn.BatchNorm1d(4),
    ),
    "slices assigned into zeros": layers(_into_zeros, a=(4, 2), c=(4, 4), d=(4, 2)),
    "a mask made by slices": layers(_mask_by_slices, a=(4, 4), d=(4, 2)),
    "slices added onto padding": layers(_onto_padding, a=(4, 2), b=(4, 2), c=(2, 4), d=(4, 2)),
    "in place behind dropout": layers(
        _in_place_behind_dropout, a=(4, 4), d=(4, 2), p=nn.Dropout
    ),
    "as booleans": layers(
        lambda self, x: self.d(self.a(x) * F.relu(self.b(x)).bool()), a=(4, 4), b=(4, 4), d=(4, 2)
    ),
    "as booleans and back": layers(
        lambda self, x: self.d(F.relu(self.a(x)).bool().to(x.dtype)), a=(4, 4), d=(4, 2)
    ),
    "as integers": layers(
        lambda self, x: self.d((10 * self.a(x)).long().to(x.dtype)), a=(4, 4), d=(4, 2)
    ),
    "an exponent that is no simple fraction": layers(
        lambda self, x: self.d(self.a(x).abs() ** 0.3333), a=(4, 4), d=(4, 2)
    ),
    "exponents of a third": layers(
        lambda self, x: self.d(self.a(x) + self.w(self.a(x)) ** 3),
        a=(4, 4), d=(4, 2), w=lambda: Piece(lambda self, x: x * self.w, w=parameter(4)),
    ),
    "padding to the power of zero": layers(
        _padding_to_the_zeroth, a=(4, 2), c=(2, 4), d=(4, 2)
    ),
    "a triangle that is blocked": layers(_blocked_triangle, a=(4, 4), w=lambda: parameter(4, 4)),
}  # fmt: skip

CRASHED: dict[str, Callable[[], nn.Module]] = {
    "a constant expanded like an activation": layers(
        lambda self, x: self.d(self.a(x) * torch.ones(1, 4, dtype=x.dtype).expand_as(x)),
        a=(4, 4), d=(4, 2),
    ),
    "standard deviation that keeps its axis": layers(
        lambda self, x: self.d(self.a(x) / self.a(x).std(-1, keepdim=True)), a=(4, 4), d=(4, 2)
    ),
    "variance that keeps its axis": layers(
        lambda self, x: self.d(self.a(x) / self.a(x).var(-1, unbiased=False, keepdim=True)),
        a=(4, 4), d=(4, 2),
    ),
    "unfolded convolution": layers(
        lambda self, x: self.d(F.unfold(self.c(x.reshape(-1, 1, 2, 2)), 2).flatten(1)),
        c=lambda: nn.Conv2d(1, 1, 1), d=(4, 2),
    ),
    "native dropout": layers(
        lambda self, x: self.d(torch.native_dropout(self.a(x), 0.5, False)[0]), a=(4, 4), d=(4, 2)
    ),
    "nothing of a tensor": layers(
        lambda self, x: self.d(self.a(x) + self.a(x)[:, :0].sum(1, keepdim=True)),
        a=(4, 4), d=(4, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("statistics", ["fixed", "free"])
@pytest.mark.parametrize("name", [*REFUTED, *CRASHED])
def test_once_refuted_or_crashed(name: str, statistics: Any) -> None:
    model = {**REFUTED, **CRASHED}[name]().double().eval()
    draws = torch.Generator().manual_seed(0)
    randomize(model, draws)
    x = torch.randn(5, 4, generator=draws, dtype=torch.float64)
    group = symmetries(model, x, statistics=statistics)
    assert max(change(model, group, x, seed) for seed in range(3)) <= 1e-12


def test_a_linear_map_in_blocks_of_columns() -> None:
    """Each block meets an input of its own: four scales before each, three behind each."""
    first, second = slice(0, 4), slice(4, 8)
    model = layers(
        lambda self, x: (
            self.d(F.relu(F.linear(F.relu(self.a(x)), self.w[:, first])))
            + self.e(F.relu(F.linear(F.relu(self.b(x)), self.w[:, second])))
        ),
        a=(3, 4), b=(3, 4), d=(3, 2), e=(3, 2), w=lambda: parameter(3, 8),
    )()  # fmt: skip
    assert symmetries(model, torch.randn(2, 3)).dim == 14
