"""Pieces for every layout: elementwise, and along the channels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks.base import Maker, Piece, Shape, parameter

# Elementwise, for every layout ----------------------------------------------------------------


def plain(function: Callable[[Tensor], Tensor]) -> Maker:
    return lambda shape, a, inner: Piece(lambda self, x: function(x))


def module(make: Callable[[Shape, int], nn.Module]) -> Maker:
    return lambda shape, a, inner: make(shape, a)


def _crossing(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, -0.3 * x)


def _in_place(x: Tensor) -> Tensor:
    return F.relu(x * 1.5, inplace=True)


EVERYWHERE: dict[str, Maker] = {
    "relu": plain(F.relu),
    "relu in place": plain(_in_place),
    "clipped in place": plain(lambda x: F.hardtanh_(x * 1.5)),
    "leaky relu": plain(lambda x: F.leaky_relu(x, 0.2)),
    "relu6": plain(F.relu6),
    "gelu": plain(F.gelu),
    "tanh": plain(torch.tanh),
    "silu": plain(F.silu),
    "hardtanh": plain(F.hardtanh),
    "squared relu": plain(lambda x: F.relu(x).square()),
    "cube": plain(lambda x: x.pow(3)),
    "abs": plain(torch.abs),
    "swish": plain(lambda x: x * x.sigmoid()),
    "clamp": plain(lambda x: x.clamp(min=0)),
    "clamp above": plain(lambda x: x.clamp(max=0)),
    "minus": plain(lambda x: -x / 3),
    "shifted": plain(lambda x: 1 - x),
    "where": plain(_crossing),
    "maximum": plain(lambda x: torch.maximum(x, 0.3 * x)),
    "root": plain(lambda x: x.abs().sqrt() * x.sign()),
    "dropout": module(lambda shape, a: nn.Dropout(0.5)),
    "prelu": module(lambda shape, a: nn.PReLU()),
    "scale": lambda shape, a, inner: Piece(lambda self, x: self.w * x, w=parameter(*shape[1:])),
    "positions": lambda shape, a, inner: Piece(lambda self, x: x + self.w, w=parameter(*shape[1:])),
    "one scale": lambda shape, a, inner: Piece(lambda self, x: self.w * x, w=parameter(1)),
    "divided": lambda shape, a, inner: Piece(
        lambda self, x: x / (self.w.square() + 1), w=parameter(*shape[1:])
    ),
    "ratio": lambda shape, a, inner: Piece(lambda self, x: x / self.w, w=parameter(*shape[1:])),
    "masked": lambda shape, a, inner: Piece(
        lambda self, x: x * self.mask,
        mask=(torch.arange(math.prod(shape[1:])) % 3 != a).reshape(shape[1:]).float(),
    ),
    "masked fill": lambda shape, a, inner: Piece(
        lambda self, x: x.masked_fill(self.mask, 0.0),
        mask=(torch.arange(math.prod(shape[1:])) % 3 == a).reshape(shape[1:]),
    ),
}


# Along the channels ---------------------------------------------------------------------------


def along(function: Callable[[Tensor, int, int], Tensor]) -> Callable[[int], Maker]:
    """A piece that cuts, joins or moves channels: function(x, axis, a)."""
    return lambda axis: lambda shape, a, inner: Piece(lambda self, x: function(x, axis, a))


def _even(x: Tensor, axis: int) -> Tensor:
    """With an even number of channels, two at least."""
    count = x.shape[axis]
    return torch.cat([x, x.narrow(axis, 0, 1)], axis) if count % 2 else x


def _slice(x: Tensor, axis: int, a: int) -> Tensor:
    start = min(a, x.shape[axis] - 1)
    return x.narrow(axis, start, x.shape[axis] - start)


def _every_other(x: Tensor, axis: int, a: int) -> Tensor:
    return x.movedim(axis, 0)[a % x.shape[axis] :: 2].movedim(0, axis)


def _padded(x: Tensor, axis: int, a: int) -> Tensor:
    return F.pad(x, [0, 0] * (x.ndim - 1 - axis) + [a % 2, 1])


def _halves(x: Tensor, axis: int, a: int) -> Tensor:
    first, second = _even(x, axis).chunk(2, axis)
    return [first * second, first * F.gelu(second), first + second, second - 2 * first][a]


def _glu(x: Tensor, axis: int, a: int) -> Tensor:
    return F.glu(_even(x, axis), axis)


def _normalize(x: Tensor, axis: int, a: int) -> Tensor:
    return x / x.square().mean(axis, keepdim=True).sqrt() if a else x / x.norm(dim=axis).sum()


def _rearranged(x: Tensor, axis: int, a: int) -> Tensor:
    if a == 0:
        return x.flip(axis)
    if a == 1:
        return x.roll(1, axis)
    if a == 2:
        return torch.cat([x, F.relu(-x)], axis).narrow(axis, 1, x.shape[axis])
    order = torch.arange(x.shape[axis]).flip(0)
    return x.index_select(axis, order)


def _assigned(x: Tensor, axis: int, a: int) -> Tensor:
    """Into zeros, by slices."""
    size = list(x.shape)
    size[axis] += 1
    made = torch.zeros(size, dtype=x.dtype)
    made.narrow(axis, a % 2, x.shape[axis]).copy_(x)
    return made


def _written(x: Tensor, axis: int, a: int) -> Tensor:
    """Half of the channels changed in place, by way of a view."""
    made = x.clone()
    half = made.narrow(axis, 0, max(x.shape[axis] // 2, 1))
    changes: list[Callable[[Tensor], Tensor]] = [
        torch.Tensor.square_,
        torch.Tensor.relu_,
        lambda t: t.mul_(x.narrow(axis, x.shape[axis] - t.shape[axis], t.shape[axis])),
        lambda t: t[..., :1].fill_(float(t.ndim - 2)),
    ]
    changes[a](half)
    return made


def _masked_by_slices(x: Tensor, axis: int, a: int) -> Tensor:
    mask = torch.zeros(x.shape[axis], dtype=x.dtype)
    mask[a % 2 :] = 1
    return (x.movedim(axis, -1) * mask).movedim(-1, axis)


def _reduced(x: Tensor, axis: int, a: int) -> Tensor:
    kept: list[Callable[[], Tensor]] = [
        lambda: x.mean(axis, keepdim=True),
        lambda: x.amax(axis, keepdim=True),
        lambda: x.std(axis, keepdim=True) if x.shape[axis] > 1 else x,
        lambda: x.cumsum(axis),
    ]
    return kept[a]()


def _gated_by_sign(x: Tensor, axis: int, a: int) -> Tensor:
    first, second = _even(x, axis).chunk(2, axis)
    if a == 0:
        return first * (second > 0)
    if a == 1:
        return torch.where(first > second, first, second)
    return torch.minimum(first, second) if a == 2 else first * second.bool().to(x.dtype)


ALONG: dict[str, Callable[[int], Maker]] = {
    "slice": along(_slice),
    "every other": along(_every_other),
    "pad channels": along(_padded),
    "halves": along(_halves),
    "glu": along(_glu),
    "unit": along(_normalize),
    "rearranged": along(_rearranged),
    "assigned": along(_assigned),
    "written": along(_written),
    "masked by slices": along(_masked_by_slices),
    "reduced": along(_reduced),
    "signs": along(_gated_by_sign),
    "softmax": along(lambda x, axis, a: x.softmax(axis)),
    "channel scale": lambda axis: (
        lambda shape, a, inner: Piece(
            lambda self, x: x * self.w.expand_as(x), w=_channels(shape, axis)
        )
    ),
    "constant scale": lambda axis: (
        lambda shape, a, inner: Piece(
            lambda self, x: x * self.w.expand_as(x), w=_channels(shape, axis).detach().clone()
        )
    ),
    "normalize": lambda axis: (
        lambda shape, a, inner: Piece(
            lambda self, x: F.normalize(x, dim=axis, eps=self.eps), eps=1e-12
        )
    ),
}


def _channels(shape: Shape, axis: int) -> nn.Parameter:
    return parameter(*(n if d == axis else 1 for d, n in enumerate(shape[1:], 1)))
