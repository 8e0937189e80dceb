"""Biases that no prediction sees: before softmax over the keys, or before batch statistics."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from spiritlevel.symmetry.tracing.graph import NOT_UNDERSTOOD, name_of, shape_action
from spiritlevel.symmetry.tracing.rules import SHAPE_OPERATIONS
from spiritlevel.symmetry.tracing.state import arguments

FOLLOWED = {"alias", "detach", "clone", "contiguous", "neg", "getitem"}
MASKED = -1e4  # a score below it has no weight, shifted or not


def dead_biases(graph: fx.Graph) -> dict[fx.Node, Tensor]:
    """For every linear map or convolution with a bias: which of its elements are dead.

    A bias adds the same b_j everywhere. The places j + 1 are pushed through the graph as data (0
    is where an operation puts a zero, which takes no shift); an element is dead when every
    operation that meets it is blind to such a shift.
    """
    found = {}
    for node in graph.nodes:
        name, value = name_of(node), node.meta.get("val")
        if name not in ("linear", "addmm") and not name.startswith("conv"):
            continue
        bias: Any = arguments(node).get("self" if name == "addmm" else "bias")
        if not isinstance(bias, fx.Node) or not isinstance(value, Tensor):
            continue
        axis = 1 if name.startswith("conv") else -1
        count = value.shape[axis]
        if bias.meta["val"].shape != (count,):
            continue
        shape = [1] * value.ndim
        shape[axis] = count
        alive = torch.zeros(count + 1, dtype=torch.bool)
        _push(node, torch.arange(1, count + 1).reshape(shape).expand(value.shape), alive)
        if not bool(alive[1:].all()):
            found[node] = ~alive[1:]
    return found


def _push(node: fx.Node, places: Any, alive: Tensor) -> None:
    """Follow the places to the operations that use them."""
    for user in node.users:
        moved = _moved(user, places)
        if moved is not None:
            _push(user, moved, alive)
        elif not _blind(user, node, places):
            seen = places if isinstance(places, (tuple, list)) else (places,)
            for part in seen:
                alive[part.reshape(-1).unique()] = True


def _moved(user: fx.Node, places: Any) -> Any:
    """Where an operation puts them, None if it does more than that."""
    name = name_of(user)
    if name == "getitem":
        return places[user.args[1]]
    if name in FOLLOWED or _by_number(user) or _another_precision(user):
        return places
    if name not in SHAPE_OPERATIONS or len(user.all_input_nodes) != 1:
        return None
    try:
        args = fx.map_arg(user.args, lambda n: places)
        return shape_action(user)(*args, **user.kwargs)
    except NOT_UNDERSTOOD:
        return None


def _by_number(user: fx.Node) -> bool:
    """Times or over a number, without rounding."""
    given = arguments(user)
    if name_of(user) not in ("mul", "div") or given.get("rounding_mode") is not None:
        return False
    return isinstance(given["other"], (int, float)) and isinstance(given["self"], fx.Node)


def _another_precision(user: fx.Node) -> bool:
    value = user.meta.get("val")
    return name_of(user) in ("to", "_to_copy") and value is not None and value.is_floating_point()


def _blind(user: fx.Node, node: fx.Node, places: Any) -> bool:
    """Whether the operation does not see a constant shift along its own axis."""
    name, given = name_of(user), arguments(user)
    slots = [key for key, value in given.items() if value is node]
    if name == "scaled_dot_product_attention":
        return slots == ["key"] and _constant(places, -2)
    if name in ("matmul", "bmm"):
        keys = slots == ["other" if name == "matmul" else "mat2"] and places.ndim > 1
        return keys and _constant(places, -1) and _ends_in_softmax(user)
    if name in ("batch_norm", "_native_batch_norm_legit_functional"):
        return slots == ["input"] and given["training"] and _constant_but(places, 1)
    if name == "instance_norm":
        return slots == ["input"] and given["use_input_stats"] and _constant_but(places, 1)
    return False


def _constant(places: Tensor, dim: int) -> bool:
    return bool((places == places.narrow(dim, 0, 1)).all())


def _constant_but(places: Tensor, kept: int) -> bool:
    return all(_constant(places, d) for d in range(places.ndim) if d != kept)


def _ends_in_softmax(node: fx.Node, masked: bool = False) -> bool:
    """Whether scores reach only a softmax over their last axis, by way of shifts and factors.

    Behind a finite mask there may be no factor: it could bring what was masked back into sight.
    """
    return bool(node.users) and all(_softens(user, node, masked) for user in node.users)


def _softens(user: fx.Node, node: fx.Node, masked: bool) -> bool:
    name, given = name_of(user), arguments(user)
    if name in ("softmax", "_softmax"):
        return given["dim"] in (-1, node.meta["val"].ndim - 1)
    if name in ("masked_fill", "where"):
        fill = _fill(user, node)
        return fill <= MASKED and _ends_in_softmax(user, masked or math.isfinite(fill))
    if name in ("add", "sub"):  # any mask, that of the other scores too
        passed = given["self"] is not given["other"]
    elif name in ("mul", "div"):
        passed = given["self"] is node and _by_number(user) and not masked
    else:
        passed = name in ("clone", "alias") or _another_precision(user)
    return passed and _ends_in_softmax(user, masked)


def _fill(user: fx.Node, node: fx.Node) -> float:
    """The number that takes the place of some scores; infinity if it is not known."""
    given = arguments(user)
    first, second = (
        (given["self"], given["value"])
        if name_of(user) == "masked_fill"
        else (given["self"], given["other"])
    )
    fill: Any = second if first is node else first
    if isinstance(fill, fx.Node):
        numbers = [a for a in fill.args if isinstance(a, (int, float))]
        fill = numbers[-1] if name_of(fill) in ("full", "scalar_tensor") and numbers else None
    return float(fill) if isinstance(fill, (int, float)) else math.inf
