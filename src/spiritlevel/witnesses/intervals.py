"""Interval arithmetic in the place of tensors: a model runs on all values of a box at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from spiritlevel.symmetry.tracing.bounds import Bounds, NotEnclosed, moved
from spiritlevel.symmetry.tracing.registry import known

__all__ = ["Interval", "NotEnclosed"]


class Interval(Tensor):
    """low <= value <= high, element by element, wherever a tensor is expected.

    Operations are bounded one by one, in the order in which the model makes them: hooks, shared
    layers and tied weights are seen as they run. Rounding is not enclosed.
    """

    low: Tensor
    high: Tensor

    @staticmethod
    def __new__(cls, low: Tensor, high: Tensor) -> Interval:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, low.shape, strides=low.stride(), dtype=low.dtype, device=low.device
        )

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Interval({self.low}, {self.high})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, given = func._schema.name.removeprefix("aten::"), kwargs or {}
        whole = any(not v.is_floating_point() for v in _intervals((args, given)))
        if whole and known(name).interval is not moved:
            raise NotEnclosed(f"{name} of whole numbers that are not known")
        if func._schema.is_mutable:
            return _in_place(func, name, args, given)
        return _bounded(func, name, args, given)


def _bounded(func: OpOverload, name: str, args: Any, kwargs: Any) -> Any:
    """What the rule of an operation says of its result."""
    rule = known(name).interval
    if rule is None:
        raise NotEnclosed(name)
    given, options = (_mapped(Interval, _bounds, tree) for tree in (args, kwargs))
    return _mapped(
        Bounds, lambda found: Interval(found.low, found.high), rule(func, *given, **options)
    )


def _in_place(func: OpOverload, name: str, args: Any, kwargs: Any) -> Any:
    """The operation itself, written where it belongs: views of the bounds see it too."""
    plain = name.removesuffix("_")
    if not known(plain).writes or not isinstance(args[0], Interval):
        raise NotEnclosed(name)
    same = getattr(getattr(torch.ops.aten, plain), func._overloadname)
    found = _bounded(same, plain, args, kwargs)
    args[0].low.copy_(found.low)
    args[0].high.copy_(found.high)
    return args[0]


def _bounds(value: Interval) -> Bounds:
    return Bounds(value.low, value.high)


def _mapped(kind: type, function: Callable[[Any], Any], tree: Any) -> Any:
    """A tree of arguments with all values of a kind replaced."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {key: _mapped(kind, function, item) for key, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_mapped(kind, function, item) for item in tree)
    return tree


def _intervals(tree: Any) -> list[Interval]:
    if isinstance(tree, Interval):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [v for item in tree for v in _intervals(item)] if isinstance(tree, (tuple, list)) else []
