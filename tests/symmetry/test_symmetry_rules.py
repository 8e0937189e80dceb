"""One operation at a time: how many rescalings it lets through, by hand, and that they hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from architectures import randomized
from cases import randn
from networks.base import Piece, parameter
from spiritlevel.symmetry import sign_flips, symmetries

Forward = Callable[[Piece, Tensor], Tensor]


def net(forward: Forward) -> nn.Module:
    """Maps a, b: 4 -> 4 and d: 4 -> 2, and a weight w for each of four channels."""
    sizes = {"a": (4, 4), "b": (4, 4), "d": (4, 2)}
    return randomized(
        Piece(forward, w=parameter(4), **{k: nn.Linear(*v) for k, v in sizes.items()})
    )


def change(model: nn.Module, moved: dict[str, Tensor], x: Tensor) -> float:
    with torch.no_grad():
        before, after = model(x), functional_call(model, moved, (x,))
    return float((after - before).abs().max() / before.abs().max())


def positive(x: Tensor) -> Tensor:
    """Of first degree, and away from zero where it is divided by."""
    return x.abs()


def _grouped_queries(self: Piece, x: Tensor) -> Tensor:
    """Four query heads of size 1 share two keys and values."""
    queries, both = (layer(x.reshape(-1, 3, 4)).mT.unsqueeze(-1) for layer in (self.a, self.b))
    keys, values = both.chunk(2, dim=1)
    mixed = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
    return self.d(mixed.squeeze(-1).mT)


def _masked(fill: float, axis: int = -1) -> Forward:
    """Attention of one head over three tokens; the first one does not see the last."""
    mask = torch.tensor([[False, False, True], [False] * 3, [False] * 3])

    def forward(self: Piece, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, 3, 4)
        scores = (self.a(tokens) @ self.b(tokens).mT).masked_fill(mask, fill)
        return self.d(scores.softmax(axis) @ tokens)

    return forward


RULES: dict[str, tuple[Forward, int, str]] = {
    "square root": (lambda s, x: s.d(positive(s.a(x)).sqrt()), 4, "of degree 1/2"),
    "inverse root": (lambda s, x: s.d(positive(s.a(x)).rsqrt()), 4, "of degree -1/2"),
    "reciprocal": (lambda s, x: s.d(positive(s.a(x)).reciprocal()), 4, "of degree -1"),
    "quotient": (lambda s, x: s.d(s.a(x) / positive(s.b(x))), 8, "4 above, 4 below"),
    "sign": (lambda s, x: s.d(s.a(x).sign()), 4, "of degree 0"),
    "variance": (lambda s, x: s.d(s.a(x) / s.b(x).var(-1, keepdim=True)), 5, "4 and b as a whole"),
    "deviation": (lambda s, x: s.d(s.a(x) / s.b(x).std(-1, keepdim=True)), 5, "4 and b as a whole"),
    "lerp": (lambda s, x: s.d(s.w * torch.lerp(s.a(x), s.b(x), s.w)), 4, "weights stay"),
    "glu": (lambda s, x: s.d(F.glu(torch.cat([s.a(x), s.b(x)], -1))), 4, "the gate stays"),
    "threshold at 0": (lambda s, x: s.d(F.threshold(s.a(x), 0.0, 0.0)), 4, "a rectifier"),
    "threshold": (lambda s, x: s.d(F.threshold(s.a(x), 0.1, 0.0)), 0, "not homogeneous"),
    "threshold to a value": (lambda s, x: s.d(F.threshold(s.a(x), 0.0, 0.5)), 0, "nor this"),
    "greater than 0": (lambda s, x: s.d(s.a(x) * (s.b(x) > 0)), 8, "b as it likes"),
    "greater than 1": (lambda s, x: s.d(s.a(x) * (s.b(x) > 1)), 4, "b stays"),
    "where": (lambda s, x: s.d(torch.where(s.a(x) > 0, s.a(x), 0.3 * s.a(x))), 4, "a rectifier"),
    "addcmul": (lambda s, x: s.d(torch.addcmul(s.a(x), s.b(x), s.w)), 8, "a = b + w"),
    "zeros": (lambda s, x: s.d(F.pad(s.a(x), (0, 1))[:, 1:]), 4, "the row that is cut off too"),
    "ones": (lambda s, x: s.d(F.pad(s.a(x), (0, 1), value=1.0)[:, 1:]), 0, "ones do not move"),
    "gather": (lambda s, x: s.d(s.a(x).gather(1, (x > 0).long())), 1, "any two may meet"),
    "clamp at 0": (lambda s, x: s.d(s.a(x).clamp(min=0)), 4, "a rectifier"),
    "clamp at 1": (lambda s, x: s.d(s.a(x).clamp(max=1)), 0, "not homogeneous"),
    "grouped queries": (_grouped_queries, 6, "QK 2, VO 2, dead key bias 2"),
    "scores masked out": (_masked(-torch.inf), 4 + 4, "QK, and the keys' bias is dead"),
    "scores masked to 0": (_masked(0.0), 4, "the keys' bias shifts the other scores"),
    "softmax over the queries": (_masked(-torch.inf, -2), 4, "sees the keys' bias"),
    "rms norm": (lambda s, x: s.d(F.rms_norm(s.a(x), (4,), s.w)), 4, "gains; torch's own eps"),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_each_rule(name: str) -> None:
    forward, dim, why = RULES[name]
    model, x = net(forward), randn(6, 4)
    group = symmetries(model, x)
    params = {n: p.detach() for n, p in model.named_parameters()}
    for seed in range(3):
        assert change(model, group.act(params, group.random(seed)), x) <= 1e-12
    assert group.dim == dim, why


SIGNS: dict[str, tuple[Forward, int, str]] = {
    "tanh": (lambda s, x: s.d(torch.tanh(s.a(x))), 4, "odd"),
    "hardtanh": (lambda s, x: s.d(F.hardtanh(s.a(x))), 4, "odd"),
    "hardtanh, not centered": (lambda s, x: s.d(F.hardtanh(s.a(x), -1.0, 2.0)), 0, "not odd"),
    "layer norm": (
        lambda s, x: s.d(torch.tanh(F.layer_norm(s.a(x), (4,), s.w, eps=0.0))), 4, "gains only"
    ),
    "powers": (lambda s, x: s.d(s.a(x).square() + s.b(x).square() * s.b(x)), 0, "2 a = 3 b"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNS)
def test_each_rule_of_signs(name: str) -> None:
    forward, dim, why = SIGNS[name]
    model, x = net(forward), randn(6, 4)
    signs = sign_flips(model, x)
    params = {n: p.detach() for n, p in model.named_parameters()}
    for seed in range(3):
        assert change(model, signs.act(params, signs.random(seed)), x) <= 1e-12
    assert signs.dim == dim, why
