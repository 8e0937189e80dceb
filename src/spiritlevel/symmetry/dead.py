"""Biases that no prediction sees: before softmax over the keys, or before batch statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from spiritlevel.symmetry.graph import name_of, shape_action
from spiritlevel.symmetry.rules import SHAPE_OPERATIONS

FOLLOWED = {"to", "alias", "detach", "clone", "contiguous", "neg", "getitem"}
MASKED = -1e4  # a score below it has no weight, shifted or not


def dead_biases(graph: fx.Graph) -> dict[fx.Node, Tensor]:
    """For every linear map or convolution with a bias: which of its elements are dead.

    A bias adds the same b_j everywhere. The indices j are pushed through the graph as data; an
    element is dead when every operation that meets it is blind to such a shift.
    """
    found = {}
    for node in graph.nodes:
        name = name_of(node)
        if name not in ("linear", "addmm") and not name.startswith("conv"):
            continue
        bias = node.args[0] if name == "addmm" else _argument(node, 2, "bias")
        value = node.meta.get("val")
        if not isinstance(bias, fx.Node) or not isinstance(value, Tensor):
            continue
        axis = 1 if name.startswith("conv") else -1
        count = value.shape[axis]
        shape = [1] * value.ndim
        shape[axis] = count
        alive = torch.zeros(count, dtype=torch.bool)
        _push(node, torch.arange(count).reshape(shape).expand(value.shape), alive)
        if bias.meta["val"].shape == (count,) and not bool(alive.all()):
            found[node] = ~alive
    return found


def _argument(node: fx.Node, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _push(node: fx.Node, indices: Any, alive: Tensor) -> None:
    """Follow the indices to the operations that use them."""
    for user in node.users:
        name = name_of(user)
        if name == "getitem":
            _push(user, indices[user.args[1]], alive)
        elif name in FOLLOWED or _by_number(user, name) or _idle_dropout(user, name):
            _push(user, indices, alive)
        elif name in SHAPE_OPERATIONS and len(user.all_input_nodes) == 1:
            args = fx.map_arg(user.args, lambda n, i=indices: i)
            _push(user, shape_action(user)(*args, **user.kwargs), alive)
        elif not _blind(user, node, name, indices):
            alive[indices.reshape(-1).unique()] = True


def _by_number(user: fx.Node, name: str) -> bool:
    if name not in ("mul", "div"):
        return False
    return isinstance(user.args[1], (int, float)) and isinstance(user.args[0], fx.Node)


def _idle_dropout(user: fx.Node, name: str) -> bool:
    """A dropout that drops nothing; an active one masks a shift, which is then none."""
    return name in ("dropout", "feature_dropout") and user.args[2] is False


def _blind(user: fx.Node, node: fx.Node, name: str, indices: Tensor) -> bool:
    """Whether the operation does not see a constant shift along its own axis."""
    if name == "scaled_dot_product_attention":
        is_key = user.args[1] is node and user.args[0] is not node and user.args[2] is not node
        return is_key and _constant(indices, -2)
    if name in ("matmul", "bmm"):
        is_key = user.args[1] is node and user.args[0] is not node
        return is_key and _constant(indices, -1) and _ends_in_softmax(user)
    if name == "batch_norm":
        return user.args[0] is node and user.args[5] is True and _constant_but(indices, 1)
    if name == "instance_norm":
        return user.args[0] is node and user.args[5] is True and _constant_but(indices, 1)
    return False


def _constant(indices: Tensor, dim: int) -> bool:
    return bool((indices == indices.narrow(dim, 0, 1)).all())


def _constant_but(indices: Tensor, kept: int) -> bool:
    return all(_constant(indices, d) for d in range(indices.ndim) if d != kept)


def _ends_in_softmax(node: fx.Node) -> bool:
    """Whether scores reach only a softmax over their last axis, by way of shifts and factors."""
    for user in node.users:
        name = name_of(user)
        if name in ("softmax", "_softmax"):
            axis = user.args[1]
            if axis not in (-1, node.meta["val"].ndim - 1):
                return False
        elif (
            name in ("to", "clone", "alias")
            or _idle_dropout(user, name)
            or (name in ("add", "sub", "mul", "div") and _with_constant(user, node))
            or (name in ("masked_fill", "where") and _masks_out(user, node))
        ):
            if not _ends_in_softmax(user):
                return False
        else:
            return False
    return bool(node.users)


def _with_constant(user: fx.Node, node: fx.Node) -> bool:
    """Added masks may be any tensor; factors must be one number."""
    if name_of(user) in ("add", "sub"):
        other = user.args[1] if user.args[0] is node else user.args[0]
        return other is not node
    return user.args[0] is node and isinstance(user.args[1], (int, float))


def _masks_out(user: fx.Node, node: fx.Node) -> bool:
    """Whether the other values are so low that softmax never sees them."""
    first, second = (
        (user.args[0], user.args[2]) if name_of(user) == "masked_fill" else user.args[1:3]
    )
    fill: Any = second if first is node else first
    if isinstance(fill, fx.Node):
        numbers = [a for a in fill.args if isinstance(a, (int, float))]
        fill = numbers[-1] if name_of(fill) in ("full", "scalar_tensor") and numbers else None
    return isinstance(fill, (int, float)) and fill <= MASKED
