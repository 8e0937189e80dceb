"""Random small networks: a description that shrinks and prints well, and the module it describes.

A network is a front end, pieces that work on images, tokens or vectors, a way down to vectors,
pieces that work on vectors, and a linear head. Every piece is made for the shape it meets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

BATCH, TOKENS, SIDE, VOCABULARY, CLASSES = 3, 3, 4, 5, 2
AXIS = {"vector": 1, "tokens": 2, "image": 1}  # of the channels
NO_EPS = 1e-40  # where torch refuses 0

Shape = tuple[int, ...]
Forward = Callable[["Piece", Tensor], Tensor]
Maker = Callable[[Shape, int, tuple["Part", ...]], nn.Module]


@dataclass(frozen=True)
class Part:
    """A piece by its name; `a` chooses its size or variant, `inner` are pieces that it wraps."""

    name: str
    a: int = 0
    inner: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Net:
    """A whole network."""

    layout: str = "vector"  # or tokens, image
    width: int = 3
    front: str = "plain"  # or embedding, tied
    first: tuple[Part, ...] = ()
    down: str = "flatten"  # or mean, softmax
    then: tuple[Part, ...] = ()
    seed: int = 0


class Piece(nn.Module):
    """A forward function with what it needs."""

    def __init__(self, function: Forward, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)

    def __getattr__(self, name: str) -> Any:  # parts are of many types
        return super().__getattr__(name)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape))


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


LAST_AXIS: dict[str, Maker] = {
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
    make = nn.LSTM if a % 2 else nn.GRU
    return Piece(lambda self, x: self.f(x)[0], f=make(shape[-1], 2, batch_first=True))


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


# Images ---------------------------------------------------------------------------------------


def convolution(shape: Shape, a: int, inner: Any) -> nn.Module:
    c = shape[1]
    if a == 0 or min(shape[2:]) < 2:
        return nn.Conv2d(c, 3, 1, bias=False)
    if a == 1:
        return nn.Conv2d(c, 3, 3, padding=1)
    return nn.Conv2d(c, 4, 2, stride=a - 1, padding=a - 2, padding_mode="zeros")


def groups(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Depthwise, two groups, depthwise with two outputs each."""
    c = shape[1]
    if a in (1, 3):
        wide = nn.Conv2d(c, 4, 1)
        make = nn.Conv2d if a == 1 else nn.ConvTranspose2d
        return nn.Sequential(wide, nn.ReLU(), make(4, 4, 1, groups=2))
    return nn.Conv2d(c, c * (1 + a // 2), 3, padding=1, groups=c, bias=a == 0)


def transposed(shape: Shape, a: int, inner: Any) -> nn.Module:
    if a == 3:
        return nn.ConvTranspose2d(shape[1], shape[1], 2, groups=shape[1])
    return nn.ConvTranspose2d(shape[1], 3, 2, stride=1 + a % 2, bias=a < 2)


def pool(shape: Shape, a: int, inner: Any) -> nn.Module:
    if min(shape[2:]) < 2:
        return nn.AdaptiveAvgPool2d(1)
    return [
        nn.MaxPool2d(2),
        nn.AvgPool2d(2, padding=1),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.AdaptiveMaxPool2d(2),
    ][a]


def resized(shape: Shape, a: int, inner: Any) -> nn.Module:
    c = shape[1]
    if a == 0:
        return nn.Upsample(scale_factor=2, mode="nearest")
    if a == 1:
        return nn.Upsample(size=(3, 3), mode="bilinear")
    if a == 2:
        return nn.Sequential(nn.Conv2d(c, 4, 1), nn.PixelShuffle(2))
    return Piece(lambda self, x: F.pad(x, (1, 0, 1, 0), mode="circular"))


def other_dimensions(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Convolutions along one axis or three, and windows as vectors."""
    c, h, w = shape[1:]
    if a == 0:
        return Piece(lambda self, x: self.f(x.flatten(2)).unsqueeze(-1), f=nn.Conv1d(c, 3, 1))
    if a == 1:
        return Piece(lambda self, x: self.f(x.unsqueeze(2)).sum(2), f=nn.Conv3d(c, 2, 1, padding=1))
    size = min(h, w, 2)
    return Piece(
        lambda self, x: (
            F.unfold(x, size, stride=1 + a % 2).unsqueeze(-1)
            if a == 2
            else x.unfold(2, size, size)
            .unfold(3, size, size)
            .permute(0, 1, 4, 5, 2, 3)
            .flatten(1, 3)
        )
    )


def squeeze(shape: Shape, a: int, inner: Any) -> nn.Module:
    c = shape[1]
    return Piece(
        lambda self, x: x * self.g(F.relu(self.f(x.mean((2, 3), keepdim=True)))).sigmoid(),
        f=nn.Conv2d(c, 2, 1),
        g=nn.Conv2d(2, c, 1),
    )


IMAGE: dict[str, Maker] = {
    "convolution": convolution,
    "groups": groups,
    "transposed": transposed,
    "pool": pool,
    "resized": resized,
    "other dimensions": other_dimensions,
    "squeeze": squeeze,
    "batch norm": batch_norm(nn.BatchNorm2d),
    "group norm": module(lambda shape, a: nn.GroupNorm(1 if a % 2 else shape[1], shape[1])),
    "layer norm": module(lambda shape, a: nn.LayerNorm(list(shape[1 + a % 2 :]))),
    "instance norm": module(
        lambda shape, a: (
            nn.InstanceNorm2d(shape[1], affine=a != 0)
            if shape[2] * shape[3] > 1  # torch refuses a single element
            else nn.Identity()
        )
    ),
    "prelu by channel": module(lambda shape, a: nn.PReLU(shape[1])),
    "dropout by channel": module(lambda shape, a: nn.Dropout2d()),
}


# Wrappers -------------------------------------------------------------------------------------


def wrapper(layout: str, name: str) -> Maker:
    axis = AXIS[layout]

    def maker(shape: Shape, a: int, inner: tuple[Part, ...]) -> nn.Module:
        inside = sequence(layout, shape, inner)
        out = shape_after(inside, shape)
        rest = [n for d, n in enumerate(out) if d != axis]
        if rest != [n for d, n in enumerate(shape) if d != axis]:
            return inside  # nothing to join
        return WRAPPED[name](layout, shape, out, a, inside)

    return maker


def _residual(layout: str, shape: Shape, out: Shape, a: int, inside: nn.Module) -> nn.Module:
    """The way around is the identity, zero-padded or cut where it must be, or a linear map."""
    axis = AXIS[layout]
    more = out[axis] - shape[axis]
    if a < 2:
        pads = [0, 0] * (len(shape) - 1 - axis) + [0, more]
        return Piece(
            lambda self, x: F.pad(x, pads) + self.f(x) if more else x + self.f(x), f=inside
        )
    c, d = shape[axis], out[axis]
    around = nn.Conv2d(c, d, 1, bias=a == 2) if layout == "image" else nn.Linear(c, d, bias=a == 2)
    return Piece(lambda self, x: self.g(x) + self.f(x), f=inside, g=around)


def _dense(layout: str, shape: Shape, out: Shape, a: int, inside: nn.Module) -> nn.Module:
    axis = AXIS[layout]
    if a == 3 and out == shape:
        return Piece(lambda self, x: torch.stack([x, self.f(x)]).mean(0), f=inside)
    return Piece(lambda self, x: torch.cat([x, self.f(x)], axis), f=inside)


def _twice(layout: str, shape: Shape, out: Shape, a: int, inside: nn.Module) -> nn.Module:
    """Called again, on what it made or on the same."""
    if out == shape and a < 2:
        return Piece(lambda self, x: self.f(F.relu(self.f(x))), f=inside)
    return Piece(lambda self, x: self.f(x) + 2 * self.f(F.relu(x)), f=inside)


def _times(layout: str, shape: Shape, out: Shape, a: int, inside: nn.Module) -> nn.Module:
    if out != shape:
        return Piece(lambda self, x: self.f(x).square(), f=inside)
    functions: list[Forward] = [
        lambda self, x: x * self.f(x),
        lambda self, x: torch.maximum(x, self.f(x)),
        lambda self, x: torch.where(self.f(x) > x, self.f(x), 0.0),
        lambda self, x: torch.lerp(x, self.f(x), self.w),
    ]
    return Piece(functions[a], f=inside, **({"w": parameter(1)} if a == 3 else {}))


Wrap = Callable[[str, Shape, Shape, int, nn.Module], nn.Module]
WRAPPED: dict[str, Wrap] = {
    "residual": _residual,
    "dense": _dense,
    "twice": _twice,
    "times": _times,
}


def _makers(layout: str, own: dict[str, Maker]) -> dict[str, Maker]:
    cut = {name: make(AXIS[layout]) for name, make in ALONG.items()}
    wrapped = {name: wrapper(layout, name) for name in WRAPPED}
    return {**own, **cut, **EVERYWHERE, **wrapped}


MAKERS: dict[str, dict[str, Maker]] = {
    "vector": _makers("vector", {**LAST_AXIS, **VECTOR}),
    "tokens": _makers("tokens", {**LAST_AXIS, **TOKEN}),
    "image": _makers("image", IMAGE),
}


# Whole networks -------------------------------------------------------------------------------


def shape_after(part: nn.Module, shape: Shape) -> Shape:
    """By trying it, without a trace in its statistics."""
    was = part.training
    part.eval()
    with torch.no_grad():
        found = tuple(part(torch.rand(shape)).shape)
    part.train(was)
    return found


def sequence(layout: str, shape: Shape, parts: Iterable[Part]) -> nn.Sequential:
    made = []
    for part in parts:
        made.append(MAKERS[layout][part.name](shape, part.a, part.inner))
        shape = shape_after(made[-1], shape)
    return nn.Sequential(*made)


def _down(net: Net, shape: Shape) -> nn.Module:
    """From images or tokens to vectors."""
    if net.layout == "vector":
        return nn.Identity()
    dims = (2, 3) if net.layout == "image" else (1,)
    if net.down == "mean":
        return Piece(lambda self, x: x.mean(dims))
    if net.down == "softmax" and net.layout == "tokens":
        return Piece(
            lambda self, x: (self.f(x).softmax(1).mT @ x).squeeze(1), f=nn.Linear(shape[-1], 1)
        )
    return nn.Flatten()


class Network(nn.Module):
    """Front end, pieces, head."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        shapes = {
            "vector": (BATCH, net.width),
            "tokens": (BATCH, TOKENS, net.width),
            "image": (BATCH, net.width, SIDE, SIDE),
        }
        shape = shapes[net.layout]
        self.embedding = None
        if net.layout == "tokens" and net.front != "plain":
            self.embedding = nn.Embedding(VOCABULARY, net.width)
        self.first = sequence(net.layout, shape, net.first)
        shape = shape_after(self.first, shape)
        self.down = _down(net, shape)
        shape = shape_after(self.down, shape)
        self.then = sequence("vector", shape, net.then)
        width = shape_after(self.then, shape)[1]
        if net.front == "tied" and self.embedding is not None:
            self.fit = nn.Linear(width, net.width)
            self.head = nn.Linear(net.width, VOCABULARY, bias=False)
            self.head.weight = self.embedding.weight
        else:
            self.fit = nn.Identity()
            self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        return self.head(self.fit(self.then(self.down(self.first(x)))))


def randomize(model: nn.Module, draws: torch.Generator) -> None:
    """Generic values: nothing zero, nothing equal, gains away from zero."""
    with torch.no_grad():
        for p in model.parameters():
            fan = max(p[0].numel(), 1) if p.ndim > 1 else 1
            p.copy_(torch.randn(p.shape, generator=draws, dtype=torch.float64))
            p.add_(0.3 * p.sign()).div_(math.sqrt(fan))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=draws, dtype=torch.float64))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + 1.5 * torch.rand(buffer.shape, generator=draws))
            elif buffer.is_floating_point() and bool((buffer == 1).all()):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=draws))


def without_eps(model: nn.Module) -> nn.Module:
    """Every eps 0, or next to it where torch wants one."""
    for part in model.modules():
        if hasattr(part, "eps"):
            batch = isinstance(part, (nn.InstanceNorm2d, nn.BatchNorm1d, nn.BatchNorm2d))
            part.eps = NO_EPS if batch else 0.0  # type: ignore[assignment]
    return model


def example(net: Net, seed: int) -> Tensor:
    """An input; another for every seed."""
    draws = torch.Generator().manual_seed(seed)
    if net.layout == "tokens" and net.front != "plain":
        return torch.randint(VOCABULARY, (BATCH, TOKENS), generator=draws)
    sizes = {"vector": (), "tokens": (TOKENS,), "image": (net.width, SIDE, SIDE)}
    shape = (BATCH, *sizes[net.layout], *([] if net.layout == "image" else [net.width]))
    return torch.randn(shape, generator=draws, dtype=torch.float64)


def build(net: Net) -> tuple[nn.Module, Tensor]:
    """The module in eval mode and an input, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(net.seed)
        model = Network(net).double().eval()
    randomize(model, torch.Generator().manual_seed(net.seed))
    return model, example(net, net.seed + 1000)


# Drawing them ---------------------------------------------------------------------------------


def parts(
    layout: str, only: Iterable[str] | None = None, depth: int = 1
) -> st.SearchStrategy[Part]:
    """A piece; wrappers hold up to two more."""
    names = sorted(set(MAKERS[layout]) if only is None else set(MAKERS[layout]) & set(only))
    simple = st.builds(
        Part, st.sampled_from([n for n in names if n not in WRAPPED]), st.integers(0, 3)
    )
    wrapping = [n for n in names if n in WRAPPED]
    if not depth or not wrapping:
        return simple
    inside = st.lists(parts(layout, only, depth - 1), min_size=1, max_size=2).map(tuple)
    return st.one_of(
        simple, st.builds(Part, st.sampled_from(wrapping), st.integers(0, 3), inside), simple
    )


@st.composite
def networks(draw: st.DrawFn, only: Iterable[str] | None = None, size: int = 3) -> Net:
    """A description of up to `size` pieces before and after the way down to vectors."""
    layout = draw(st.sampled_from(["vector", "tokens", "image"]))
    front = draw(st.sampled_from(["plain", "embedding", "tied"])) if layout == "tokens" else "plain"
    first = draw(st.lists(parts(layout, only), min_size=1, max_size=size).map(tuple))
    after = parts("vector", only)
    then = draw(st.lists(after, max_size=2).map(tuple)) if layout != "vector" else ()
    down = (
        draw(st.sampled_from(["flatten", "mean", "softmax"])) if layout != "vector" else "flatten"
    )
    return Net(layout, draw(st.integers(2, 4)), front, first, down, then, draw(st.integers(0, 99)))
