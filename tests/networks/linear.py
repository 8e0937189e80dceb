"""Linear maps of the last axis, and pieces for vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from networks.base import Forward, Maker, Piece, Shape, parameter
from networks.channels import module

# Linear maps of the last axis: vectors and tokens ---------------------------------------------


def linear(shape: Shape, a: int, inner: Any) -> nn.Module:
    return nn.Linear(shape[-1], 2 + a)


def shared(shape: Shape, a: int, inner: Any) -> nn.Module:
    d = shape[-1]
    if a == 0:
        return Piece(lambda self, x: self.f(F.relu(self.f(x))), f=nn.Linear(d, d))
    if a == 1:
        return Piece(
            lambda self, x: F.linear(F.relu(self.f(x)), self.f.weight.T), f=nn.Linear(d, d + 1)
        )
    return Piece(lambda self, x: self.f(x) * self.f(-x), f=nn.Linear(d, 3, bias=a == 2))


def gated(shape: Shape, a: int, inner: Any) -> nn.Module:
    d = shape[-1]
    gate = [F.silu, F.gelu, torch.sigmoid, F.relu][a]
    return Piece(
        lambda self, x: self.down(gate(self.gate(x)) * self.up(x)),
        gate=nn.Linear(d, 3, bias=False),
        up=nn.Linear(d, 3, bias=a > 1),
        down=nn.Linear(3, d, bias=False),
    )


def matrix(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Weights used by other names: x @ W, einsum, a masked or a cut matrix."""
    d = shape[-1]
    if a == 0:
        return Piece(lambda self, x: x @ self.w, w=parameter(d, 3))
    if a == 1:
        letters = "ntd,dhk->nthk" if len(shape) == 3 else "nd,dhk->nhk"
        return Piece(
            lambda self, x: torch.einsum(letters, x, self.w).flatten(-2), w=parameter(d, 2, 2)
        )
    if a == 2:
        return Piece(lambda self, x: F.linear(x, self.w.tril()), w=parameter(d, d))
    return Piece(
        lambda self, x: F.linear(x, self.w[:2]) * F.linear(F.relu(x), self.w[2:]),
        w=parameter(4, d),
    )


def product(shape: Shape, a: int, inner: Any) -> nn.Module:
    d = shape[-1]
    functions: list[Forward] = [
        lambda self, x: self.f(x) * self.g(x),
        lambda self, x: self.f(x) * self.g(x).sigmoid(),
        lambda self, x: torch.maximum(self.f(x), self.g(x)),
        lambda self, x: torch.where(self.f(x) > 0, self.g(x), self.f(x)),
    ]
    return Piece(functions[a], f=nn.Linear(d, 3), g=nn.Linear(d, 3, bias=a != 1))


def parametrized(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Weights made of parameters: a norm for each row, for each column, for all, a spectral one."""
    layer = nn.Linear(shape[-1], 3)
    if a == 3:
        return spectral_norm(layer)
    return weight_norm(layer, dim=(0, 1, None)[a])  # type: ignore[arg-type]


LAST_AXIS: dict[str, Maker] = {
    "parametrized": parametrized,
    "linear": linear,
    "linear without bias": lambda shape, a, inner: nn.Linear(shape[-1], 2 + a, bias=False),
    "shared": shared,
    "gated": gated,
    "matrix": matrix,
    "product": product,
    "layer norm": module(lambda shape, a: nn.LayerNorm(shape[-1], elementwise_affine=a != 3)),
    "rms norm": module(lambda shape, a: nn.RMSNorm(shape[-1], eps=1e-6)),
}


# Vectors --------------------------------------------------------------------------------------


def batch_norm(make: type[nn.Module]) -> Maker:
    """Running statistics, without gains, or statistics of the batch."""

    def maker(shape: Shape, a: int, inner: Any) -> nn.Module:
        return make(shape[1], affine=a != 1, track_running_stats=a != 2)

    return maker


VECTOR: dict[str, Maker] = {
    "batch norm": batch_norm(nn.BatchNorm1d),
    "group norm": module(lambda shape, a: nn.GroupNorm(1, shape[1])),
    "bilinear": module(
        lambda shape, a: Piece(lambda self, x: self.f(x, x), f=nn.Bilinear(shape[1], shape[1], 2))
    ),
    "outer": module(
        lambda shape, a: Piece(
            lambda self, x: torch.einsum("ni,nj->nij", self.f(x), self.g(x)).flatten(1),
            f=nn.Linear(shape[1], 2),
            g=nn.Linear(shape[1], 2),
        )
    ),
}
