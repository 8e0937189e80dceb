"""Defaults that a graph leaves out, options that a rule could forget, writing in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import spiritlevel as sl
from architectures import randomized
from cases import randn
from networks.base import Piece, parameter
from spiritlevel.symmetry import sign_flips, symmetries

Forward = Callable[[Piece, Tensor], Tensor]
FIRST = torch.tensor([True, False, False, False])  # a mask of one channel


def net(forward: Forward) -> nn.Module:
    """Maps a, b: 4 -> 4 and d: 4 -> 2, and weights m, v, w of four channels."""
    sizes = {"a": (4, 4), "b": (4, 4), "d": (4, 2)}
    maps = {name: nn.Linear(*size) for name, size in sizes.items()}
    weights = {name: parameter(4) for name in "mvw"}
    model = randomized(Piece(forward, **maps, **weights))
    with torch.no_grad():
        model.get_parameter("v").abs_()  # a variance for some
    return model


def change(model: nn.Module, moved: dict[str, Tensor], x: Tensor) -> float:
    with torch.no_grad():
        before, after = model(x.clone()), functional_call(model, moved, (x.clone(),))
    return float((after - before).abs().max() / before.abs().max())


def _attends(keys: Callable[[Tensor], Tensor], scores: Callable[[Tensor], Tensor]) -> Forward:
    """Attention by hand of one head over three tokens, with something done to keys and scores."""

    def forward(self: Piece, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, 3, 4)
        k = keys(self.b(tokens))
        return self.d(scores(self.a(tokens) @ k.mT).softmax(-1) @ tokens)

    return forward


def same(x: Tensor) -> Tensor:
    return x


def _writes(write: Callable[[Piece, Tensor, Tensor], object]) -> Forward:
    """h = relu(a(x)), then something is written, then d(h)."""

    def forward(self: Piece, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        write(self, h, x)
        return self.d(h)

    return forward


def _ones_written(self: Piece, x: Tensor) -> Tensor:
    ones = torch.ones(4, dtype=x.dtype)
    ones.as_strided((4,), (1,)).mul_(self.w)
    return self.d(F.relu(self.a(x)) * ones)


def _renewed(self: Piece, x: Tensor) -> Tensor:
    h = F.relu(self.a(x))
    h.unsqueeze_(1)
    return self.d(h[:, 0])


def _one_key(self: Piece, x: Tensor) -> Tensor:
    """A key without an axis of keys: its bias moves the scores by more than a shift."""
    key = F.linear(x[0], self.a.weight[:1], self.a.bias[:1])
    return self.d((x @ self.w[:, None] @ key).softmax(-1)[None] @ x)


def low(fill: float) -> Callable[[Tensor], Tensor]:
    mask = torch.tensor([[False, False, True], [False] * 3, [False] * 3])
    return lambda scores: scores.masked_fill(mask, fill) / 1e4


OPTIONS: dict[str, tuple[Forward, int, str]] = {
    # defaults that the graph leaves out
    "hardtanh_": (lambda s, x: s.d(F.hardtanh_(s.a(x))), 0, "clips at 1"),
    "hardtanh": (lambda s, x: s.d(F.hardtanh(s.a(x))), 0, "clips at 1"),
    "hardtanh from 0 on": (lambda s, x: s.d(F.hardtanh(s.a(x), 0.0, torch.inf)), 4, "a rectifier"),
    "aten hardtanh": (lambda s, x: s.d(torch.ops.aten.hardtanh(s.a(x), 0.0)), 0, "still below 1"),
    "relu6": (lambda s, x: s.d(F.relu6(s.a(x))), 0, "clips at 6"),
    "leaky_relu_": (lambda s, x: s.d(F.leaky_relu_(s.a(x))), 4, "a rectifier"),
    "rrelu": (lambda s, x: s.d(F.rrelu(s.a(x))), 4, "one slope in eval mode"),
    "clip at one side": (lambda s, x: s.d(s.a(x).clip(max=0)), 4, "a rectifier"),
    "clamp_max": (lambda s, x: s.d(s.a(x).clamp_max(0)), 4, "a rectifier"),
    "clamp_max at 1": (lambda s, x: s.d(s.a(x).clamp_max(1)), 0, "not homogeneous"),
    "clamp by tensors": (lambda s, x: s.d(s.a(x).clamp(min=s.w)), 0, "no rule"),
    "elu": (lambda s, x: s.d(F.elu(s.a(x))), 0, "not homogeneous"),
    # options
    "floor of a quotient": (
        lambda s, x: s.d(torch.div(s.a(x), s.b(x).abs(), rounding_mode="floor")), 0, "rounds"
    ),
    "floor division": (lambda s, x: s.d(s.a(x) // 0.1), 0, "rounds"),
    "remainder": (lambda s, x: s.d(s.a(x) % 0.3), 0, "no rule"),
    "sum of integers": (lambda s, x: s.d(s.a(10 * x).sum(1, dtype=torch.int64)[:, None] * s.w),
        4, "a is rounded; w and d"),
    "cumulated integers": (
        lambda s, x: s.d(s.a(10 * x).cumsum(1, dtype=torch.int64) * s.w), 4, "a is rounded"
    ),
    "norm of order 0": (
        lambda s, x: s.d(F.threshold(s.a(x), 0.5, 0.0).norm(p=0, dim=1, keepdim=True) * s.w),
        4, "thresholds are no scale",
    ),
    "largest norm": (
        lambda s, x: s.d(s.a(x) / s.b(x).norm(p=torch.inf, dim=1, keepdim=True)), 5, "4, and all b"
    ),
    "variance with a correction": (
        lambda s, x: s.d(s.a(x) / s.b(x).var(1, correction=2, keepdim=True)), 5, "4, and all b"
    ),
    "largest of all": (lambda s, x: s.d(s.a(x) / s.b(x).abs().max()), 5, "4, and all b"),
    "sorted": (lambda s, x: s.d(s.a(x).sort()[0]), 1, "any two may meet"),
    "sorted, stable": (lambda s, x: s.d(s.a(x).sort(stable=True, dim=1)[0]), 1, "any two may meet"),
    "topk over examples": (lambda s, x: s.d(s.a(x).topk(3, 0)[0]), 4, "channels stay apart"),
    "order": (lambda s, x: s.d(s.w * s.a(x).argsort()), 4 + 1, "w and d; all of a"),
    "order over examples": (
        lambda s, x: s.d(s.w * s.a(x).argsort(dim=0, descending=True)), 4 + 4, "a too"
    ),
    "add twice": (lambda s, x: s.d(torch.add(s.a(x), s.b(x), alpha=2)), 4, "a = b"),
    "number times a number": (lambda s, x: s.d(torch.add(s.a(x), 1, alpha=2)), 0, "adds 2"),
    "addmm of nothing": (
        lambda s, x: s.d(F.relu(torch.addmm(s.w, x, s.a.weight, beta=0))), 4, "w is not seen"
    ),
    "average with a divisor": (
        lambda s, x: s.d(F.avg_pool1d(s.a(x)[None], 3, 1, 1, False, False)[0]), 1, "one scale"
    ),
    "zeroth power of a tensor": (
        lambda s, x: s.d(s.a(x).abs() ** torch.tensor([0.0, 1.0, 2.0, 3.0])), 0, "no rule"
    ),
    "infinite power": (lambda s, x: s.d(s.w * s.a(x).sigmoid() ** torch.inf), 4, "w and d"),
    "power of a number": (lambda s, x: s.d(2 ** s.a(x)), 0, "not homogeneous"),
    "not a number": (lambda s, x: s.d(s.a(x).nan_to_num()), 0, "no rule"),
    "is not a number": (lambda s, x: s.d(s.w * s.a(x).isnan().logical_not()), 4, "w and d"),
    "look-up by a computed order": (
        lambda s, x: s.d(s.a(x).gather(1, s.b(x).argsort(1))), 2, "all of a, all of b"
    ),
    # zeros and infinities
    "sign of infinity": (
        lambda s, x: s.d(s.a(x).masked_fill(FIRST, torch.inf).sign()), 4, "a free; d stays"
    ),
    "infinity to a power": (
        lambda s, x: s.d(s.a(x).abs().masked_fill(FIRST, torch.inf) ** -1), 5, "a row meets zeros"
    ),
    # statistics that are parameters
    "moving mean": (
        lambda s, x: s.d(F.batch_norm(s.a(x), s.m, s.v, s.w)), 4, "gains alone"
    ),
    "moving mean of an instance": (
        lambda s, x: s.d(
            F.instance_norm(s.a(x)[..., None].expand(-1, -1, 3), s.m, s.v, s.w,
                            use_input_stats=False).mean(-1)
        ), 4, "gains alone",
    ),
    # biases that are seen after all
    "keys as they are": (_attends(same, same), 4 + 4, "QK, dead bias"),
    "keys rounded": (
        _attends(lambda k: torch.div(k, 0.5, rounding_mode="floor"), same), 0, "no shift is left"
    ),
    "scores rounded": (
        _attends(same, lambda s: torch.div(s, 0.5, rounding_mode="floor")), 4, "no dead bias"
    ),
    "keys in a triangle": (_attends(lambda k: k.triu(), same), 4, "QK: zeros take no shift"),
    "keys below a triangle": (_attends(lambda k: k.tril(), same), 6, "3 QK, 3 hidden"),
    "masks that are scaled back": (_attends(same, low(-1e4)), 4, "the mask is seen"),
    "infinite masks": (_attends(same, low(-torch.inf)), 4 + 4, "QK, dead bias"),
    "a key without keys": (_one_key, 1, "w and the row of a"),
    "keys as bits": (
        lambda s, x: s.d(s.w * s.a(x).float().view(torch.int32).bitwise_and(7)), 4, "w and d"
    ),
    # writing in place
    "squared through a type": (_writes(lambda s, h, x: h.type_as(x).square_()), 4, "of degree 2"),
    "squared as it is": (_writes(lambda s, h, x: (+h).square_()), 4, "of degree 2"),
    "squared through strides": (
        _writes(lambda s, h, x: h.as_strided((6, 4), (4, 1)).square_()), 0, "no rule"
    ),
    "scaled through strides": (
        _writes(lambda s, h, x: h.as_strided((6, 4), (4, 1)).mul_(s.w)), 0, "no rule"
    ),
    "ones scaled through strides": (_ones_written, 4, "hidden units; w stays"),
    "squared through a grid": (
        _writes(lambda s, h, x: torch.broadcast_tensors(h, x)[0].square_()), 0, "no rule"
    ),
    "squared in part": (_writes(lambda s, h, x: h[:, :2].square_()), 4, "of degree 2 and 1"),
    "scaled in part": (
        _writes(lambda s, h, x: h[:, :2].mul_(s.w[:2])), 4 + 2, "hidden units, two weights"
    ),
    "replaced in part": (
        _writes(lambda s, h, x: h[:, 1].copy_(s.b(x).mean(1))), 3 + 2, "b in the place of a row"
    ),
    "set to one": (_writes(lambda s, h, x: h[:, 0].fill_(1.0)), 3 + 1, "a row is unseen"),
    "set to zero": (_writes(lambda s, h, x: h[:, 0].zero_()), 3 + 2, "a row and a column unseen"),
    "put": (
        _writes(lambda s, h, x: h.__setitem__((slice(None), torch.tensor([0, 2])), s.b(x)[:, :2])),
        4, "two rows of a, two of b",
    ),
    "an axis added": (_renewed, 4, "hidden units"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_seen(name: str) -> None:
    forward, dim, why = OPTIONS[name]
    model, x = net(forward), randn(6, 4)
    group = symmetries(model, x)
    params = {n: p.detach() for n, p in model.named_parameters()}
    for seed in range(3):
        moved = group.act(params, group.random(seed, 1.0))
        assert change(model, moved, randn(6, 4, seed=seed)) <= 1e-11
    assert group.dim == dim, why


SIGNS: dict[str, tuple[Forward, int, str]] = {
    "hardtanh_": (lambda s, x: s.d(F.hardtanh_(s.a(x))), 4, "odd"),
    "tanh of infinity": (
        lambda s, x: s.d((s.a(x) + torch.tensor([-torch.inf, 0, 0, 0])).tanh()), 3, "tanh is -1"
    ),
    "tanh of infinity in part": (
        _writes(lambda s, h, x: h.copy_(s.b(x)).fill_(-torch.inf).tanh_()), 4, "b is unseen"
    ),
    "shrink": (lambda s, x: s.d(F.hardshrink(s.a(x))), 4, "odd"),
    "tanh in part": (_writes(lambda s, h, x: h.copy_(s.b(x)).tanh_()), 4, "b; a is rectified"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNS)
def test_signs_of_what_is_odd(name: str) -> None:
    forward, dim, why = SIGNS[name]
    model, x = net(forward), randn(6, 4)
    signs = sign_flips(model, x)
    params = {n: p.detach() for n, p in model.named_parameters()}
    for seed in range(4):
        assert change(model, signs.act(params, signs.random(seed)), x) <= 1e-12
    assert signs.dim == dim, why


def test_an_active_alpha_dropout_blocks() -> None:
    """It puts a constant in the place of what it drops: a bounded net's noise, not a factor."""
    model = net(lambda s, x: s.d(F.alpha_dropout(F.relu(s.a(x)), 0.5, training=s.training)))
    data = (randn(6, 4), randn(6, 2))
    kinds = [
        sl.symmetries(sl.Objective(model, data, F.mse_loss, mode=mode, seed=0)).dim
        for mode in ("eval", "train")
    ]
    assert kinds == [4, 0]


@pytest.mark.parametrize("equation", ["ij->ij", "ij->ji"])
def test_writes_that_the_graph_loses_are_refused(equation: str) -> None:
    model = net(_writes(lambda s, h, x: torch.einsum(equation, h).square_()))
    with pytest.raises(sl.SpiritlevelError, match="written in place is lost"):
        symmetries(model, randn(6, 4))
