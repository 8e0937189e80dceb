"""Groups of random networks: sound, complete where that can be known, and groups at all."""

from __future__ import annotations

import os
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
from networks.base import Net, Part
from networks.changes import change, state
from spiritlevel.symmetry import Group, symmetries

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"


def examples(usual: int, long: int = 3000) -> settings:
    """The same examples every time; more of them where someone asked for it."""
    return settings(
        max_examples=long if LONG else usual,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


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


# Sound, and a group -----------------------------------------------------------------------------


def check_elements_compose(model: nn.Module, group: Group) -> None:
    """As many independent generators as its dimension, and elements that act as a group does."""
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


@given(networks(), st.sampled_from(["fixed", "free"]))
@examples(100)
def test_predictions_stay(net: Net, statistics: Any) -> None:
    model, x = build(net)
    fresh = example_of(net, net.seed + 1)
    assume(usable(model, x) and usable(model, fresh))
    group = symmetries(model, x, statistics=statistics)
    check_elements_compose(model, group)
    assert change(model, group, x, net.seed) <= 1e-10
    assert change(model, group, fresh, net.seed) <= 1e-10


@given(networks(), st.sampled_from(["fixed", "free"]))
@examples(50, 1000)
def test_predictions_stay_without_eps(net: Net, statistics: Any) -> None:
    """What "approximate" admits is exact where no norm has an eps."""
    model, x = build(net)
    without_eps(model)
    fresh = example_of(net, net.seed + 1)
    assume(usable(model, x) and usable(model, fresh))
    group = symmetries(model, x, statistics=statistics, eps="approximate")
    check_elements_compose(model, group)
    assert change(model, group, x, net.seed) <= 1e-8
    assert change(model, group, fresh, net.seed) <= 1e-8


TRAINED = (
    "linear", "convolution", "batch norm", "relu", "groups", "pool", "residual", "dense", "twice",
    "slice", "pad channels", "halves", "scale", "layer norm", "attention",
)  # fmt: skip


@given(networks(only=TRAINED), st.sampled_from(["exact", "approximate"]))
@examples(25, 500)
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
