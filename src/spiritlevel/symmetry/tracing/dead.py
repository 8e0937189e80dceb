"""Biases that no prediction sees: before softmax over the keys, or before batch statistics."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from spiritlevel.symmetry.tracing.graph import NOT_UNDERSTOOD, name_of
from spiritlevel.symmetry.tracing.registry import known
from spiritlevel.symmetry.tracing.shifts import Way, constant
from spiritlevel.symmetry.tracing.state import arguments


def dead_biases(graph: fx.Graph) -> dict[fx.Node, Tensor]:
    """For every linear map or convolution with a bias: which of its elements are dead.

    A bias adds the same b_j everywhere. The places j + 1 are pushed through the graph as data (0
    is where an operation puts a zero, which takes no shift); an element is dead when every
    operation that meets it is blind to such a shift.
    """
    found = {}
    for node in graph.nodes:
        operation, value = known(name_of(node)), node.meta.get("val")
        axis = operation.channels
        bias: Any = arguments(node).get(operation.bias)
        if axis is None or not isinstance(bias, fx.Node) or not isinstance(value, Tensor):
            continue
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
    if user.target is operator.getitem:  # one of several results
        return places[user.args[1]]
    operation = known(name_of(user))
    if operation.shift.follows(user):
        return places
    if operation.moves is None or len(user.all_input_nodes) != 1:
        return None
    try:
        args = fx.map_arg(user.args, lambda n: places)
        return operation.moves(user)(*args, **user.kwargs)
    except NOT_UNDERSTOOD:
        return None


def _blind(user: fx.Node, node: fx.Node, places: Any) -> bool:
    """Whether the operation does not see a constant shift along its own axis."""
    shift, given = known(name_of(user)).shift, arguments(user)
    slots = [key for key, value in given.items() if value is node]
    if shift.keys:
        keys = slots == [shift.keys] and places.ndim > 1
        return keys and constant(places, -1) and _ends_in_softmax(user, Way.OPEN)
    return shift.blind(given, slots, places)


def _ends_in_softmax(node: fx.Node, way: Way) -> bool:
    """Whether scores reach only a softmax over their last axis, by way of shifts and factors."""
    return bool(node.users) and all(_softens(user, node, way) for user in node.users)


def _softens(user: fx.Node, node: fx.Node, way: Way) -> bool:
    found = known(name_of(user)).shift.scores(user, node, way)
    if found in (Way.ENDED, Way.LOST):
        return found is Way.ENDED
    return _ends_in_softmax(user, found)
