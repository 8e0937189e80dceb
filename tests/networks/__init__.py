"""Random small networks: a description that shrinks and prints well, and the module it describes.

A network is a front end, pieces that work on images, tokens or vectors, a way down to vectors,
pieces that work on vectors, and a linear head. Every piece is made for the shape it meets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from networks.base import (
    AXIS,
    BATCH,
    CLASSES,
    NO_EPS,
    SIDE,
    TOKENS,
    VOCABULARY,
    Forward,
    Maker,
    Net,
    Part,
    Piece,
    Shape,
    parameter,
)
from networks.channels import ALONG, EVERYWHERE
from networks.images import IMAGE
from networks.linear import LAST_AXIS, VECTOR
from networks.tokens import TOKEN

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
