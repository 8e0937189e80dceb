"""Networks whose group was wrong once, or crashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import randomize
from networks.base import Piece, parameter
from networks.changes import change
from spiritlevel.symmetry import symmetries


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
