"""Pieces for sequences of tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks.base import Forward, Maker, Piece, Shape, parameter

# Tokens ---------------------------------------------------------------------------------------


def attention(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Two heads of two: separate or fused projections, by the operation or by hand."""
    d = shape[-1]
    fused = a % 2 == 0

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, 2)).transpose(1, 2)

    def forward(self: Piece, x: Tensor) -> Tensor:
        if fused:
            q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        else:
            q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        if a < 2:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=a == 0)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(2)
            if a == 3:
                scores = scores.masked_fill(self.mask, float("-inf"))
            mixed = scores.softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))

    parts: dict[str, Any] = {"o": nn.Linear(4, d)}
    if fused:
        parts["qkv"] = nn.Linear(d, 12, bias=a == 0)
    else:
        parts |= {name: nn.Linear(d, 4) for name in "qkv"}
        parts["mask"] = torch.ones(shape[1], shape[1], dtype=torch.bool).triu(1)
    return Piece(forward, **parts)


def grouped_query(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Two heads of queries for one of keys and values; also with norms of queries and keys."""
    d = shape[-1]

    def forward(self: Piece, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (2, 2)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (1, 2)).transpose(1, 2) for f in (self.k, self.v))
        if a == 0:
            mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        elif a == 1:
            k, v = (t.repeat_interleave(2, 1) for t in (k, v))
            mixed = F.scaled_dot_product_attention(q, k, v)
        elif a == 2:
            k, v = (t.expand(-1, 2, -1, -1) for t in (k, v))
            mixed = (q @ k.mT).softmax(-1) @ v
        else:
            weights = torch.einsum("bhid,bgjd->bhij", self.norm(q), self.norm(k)).softmax(-1)
            mixed = torch.einsum("bhij,bgjd->bhid", weights, v)
        return self.o(mixed.transpose(1, 2).flatten(2))

    return Piece(
        forward,
        q=nn.Linear(d, 4, bias=a == 3),
        k=nn.Linear(d, 2),
        v=nn.Linear(d, 2, bias=a == 1),
        o=nn.Linear(4, d, bias=False),
        norm=nn.RMSNorm(2, eps=1e-6) if a == 3 else nn.Identity(),
    )


def multihead(shape: Shape, a: int, inner: Any) -> nn.Module:
    d = 2 * (shape[-1] // 2) or 2
    functions: list[Forward] = [
        lambda self, x: self.f(x, x, x, need_weights=False)[0],
        lambda self, x: self.f(x, F.relu(x), x, need_weights=True)[0],
        lambda self, x: self.f(F.relu(x), x, x, need_weights=False)[0],
        lambda self, x: self.f(x, x, F.relu(x), need_weights=False)[0],
    ]
    inside = Piece(functions[a], f=nn.MultiheadAttention(d, 2, batch_first=True, bias=a != 2))
    return nn.Sequential(nn.Linear(shape[-1], d), inside)


def encoder(shape: Shape, a: int, inner: Any) -> nn.Module:
    d = 2 * (shape[-1] // 2) or 2
    layer = nn.TransformerEncoderLayer(
        d, 1 + a // 2, 3, batch_first=True, norm_first=a % 2 == 0, bias=a < 3
    )
    return nn.Sequential(nn.Linear(shape[-1], d), layer)


def recurrent(shape: Shape, a: int, inner: Any) -> nn.Module:
    sizes: dict[str, Any] = {"input_size": shape[-1], "hidden_size": 2, "batch_first": True}
    nets = [nn.GRU(**sizes), nn.LSTM(**sizes), nn.RNN(nonlinearity="relu", **sizes)]
    nets.append(nn.RNN(nonlinearity="relu", bidirectional=True, num_layers=2, **sizes))
    return Piece(lambda self, x: self.f(x)[0], f=nets[a])


def mixer(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Across the tokens: a linear map, a convolution, windows, a class token."""
    t, d = shape[1:]
    if a == 0:
        return Piece(lambda self, x: self.f(x.mT).mT, f=nn.Linear(t, t))
    if a == 1:
        return Piece(lambda self, x: self.f(F.pad(x.mT, (1, 0))).mT, f=nn.Conv1d(d, 3, 2))
    if a == 2:
        return Piece(lambda self, x: F.pad(x, (0, 0, 1, 0)).unfold(1, 2, 1).flatten(2))
    return Piece(
        lambda self, x: torch.cat([self.w.expand(x.shape[0], -1, -1), x], 1), w=parameter(1, 1, d)
    )


def pooled(shape: Shape, a: int, inner: Any) -> nn.Module:
    """What all tokens have in common, added or multiplied to each."""
    d = shape[-1]
    if a == 0:
        return Piece(lambda self, x: x + x.mean(1, keepdim=True))
    if a == 1:
        return Piece(
            lambda self, x: x * self.f(x.amax(1, keepdim=True)).sigmoid(), f=nn.Linear(d, d)
        )
    if a == 2:
        return Piece(
            lambda self, x: x + (self.f(x).softmax(1) * x).sum(1, keepdim=True), f=nn.Linear(d, 1)
        )
    return Piece(lambda self, x: x[:, :1] + x[:, -1:] * self.w, w=parameter(d))


TOKEN: dict[str, Maker] = {
    "attention": attention,
    "grouped query": grouped_query,
    "multihead": multihead,
    "encoder": encoder,
    "recurrent": recurrent,
    "mixer": mixer,
    "pooled": pooled,
}
