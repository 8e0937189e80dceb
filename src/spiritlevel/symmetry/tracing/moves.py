"""How operations that only move elements are made on other tensors of the same shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

Action = Callable[..., Any]


def as_it_is(node: fx.Node) -> Action:
    """The operation itself."""
    action: Any = node.target
    return action


def by_reshape(node: fx.Node) -> Action:
    """Strides are not those of the traced tensors, so a view may be a copy."""
    if node.meta["val"].dtype != node.all_input_nodes[0].meta["val"].dtype:
        raise NotImplementedError  # other bits, not another shape
    return torch.reshape


def in_floats(node: fx.Node) -> Action:
    """Operations that know no integers; those up to 2^53 stay exact."""
    action: Any = node.target
    return lambda moved, *args, **kw: action(moved.double(), *args, **kw).to(moved.dtype)


def joined(node: fx.Node) -> Action:
    """Tensors one after another; torch ignores empty one-dimensional ones among them."""

    def action(pieces: list[Tensor], dim: int = 0) -> Tensor:
        return torch.cat([piece for piece in pieces if piece.shape != (0,)], dim)

    return action
