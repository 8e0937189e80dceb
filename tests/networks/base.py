"""What a network is made of, and its description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
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
