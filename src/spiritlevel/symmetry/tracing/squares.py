"""Rules of the path norm: operations of a network whose weights are squared, on positive numbers.

A rule gets the node and all arguments of the operation as in its schema, defaults filled in:
`Squares` for what depends on parameters or inputs, plain values for constants. It returns the sum
over paths of the squared coefficients. What has no such sum raises; what has no rule is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, fx

from spiritlevel.base.errors import SpiritlevelError


@dataclass(frozen=True)
class Squares:
    """The value of a tensor in the network of squares; its own value where it holds weights."""

    value: Tensor
    weights: Tensor | None = None


def squared(value: Any) -> Any:
    """The value in the network of squares; a constant is a coefficient like any other."""
    if isinstance(value, Squares):
        return value.value
    if isinstance(value, (tuple, list)):
        return type(value)(squared(item) for item in value)
    return value**2 if isinstance(value, Tensor) and value.is_floating_point() else value


def runs(node: fx.Node, *args: Any, **kwargs: Any) -> Squares:
    """Sums, products with weights, rectifiers: the operation itself."""
    action: Any = node.target
    return Squares(action(*squared(args), **kwargs))


def copies(node: fx.Node, self: Squares, *args: Any, **kwargs: Any) -> Any:
    """The same numbers, in another precision perhaps."""
    action: Any = node.target
    return moves(action, (self, *args), kwargs)


def moves(action: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Elements in other places; weights stay weights."""
    made = action(*squared(args), **kwargs)
    own = getattr(args[0], "weights", None)
    if own is None:
        return tuple(map(Squares, made)) if isinstance(made, (tuple, list)) else Squares(made)
    held = action(own, *squared(args[1:]), **kwargs)
    if isinstance(made, (tuple, list)):
        return tuple(Squares(*pair) for pair in zip(made, held, strict=True))
    return Squares(made, held)


def add(node: fx.Node, self: Any, other: Any, *, alpha: float = 1) -> Squares:
    if alpha != 1:
        raise SpiritlevelError("the path norm knows no sum with alpha")
    return Squares(_coefficient(self) + _coefficient(other))


def _coefficient(value: Any) -> Any:
    return value**2 if isinstance(value, (int, float)) else squared(value)


def addmm(node: fx.Node, *args: Any, beta: float = 1, alpha: float = 1) -> Squares:
    if (beta, alpha) != (1, 1):
        raise SpiritlevelError("the path norm knows no addmm with factors")
    return runs(node, *args)


def scale(node: fx.Node, self: Any, other: Any, *, rounding_mode: Any = None) -> Squares:
    """Times or over a number."""
    if not isinstance(self, Squares) or not isinstance(other, (int, float)) or rounding_mode:
        raise SpiritlevelError("the path norm knows products with numbers and with weights")
    action: Any = node.target
    return Squares(action(self.value, other**2))


def mean(node: fx.Node, self: Squares, *args: Any, **kwargs: Any) -> Squares:
    found = runs(node, self, *args, **kwargs).value
    return Squares(found * (found.numel() / self.value.numel()))


def pad(
    node: fx.Node, self: Squares, pad: list[int], mode: str = "constant", value: Any = None
) -> Squares:
    return Squares(F.pad(self.value, list(pad), mode, value**2 if value else None))


def constant_pad(node: fx.Node, self: Squares, pad: list[int], value: Any = 0) -> Squares:
    return Squares(F.pad(self.value, list(pad), value=value**2))


def dropout(node: fx.Node, input: Any, p: float, train: bool | None) -> Squares:
    if train is not False:
        raise SpiritlevelError('the path norm has no dropout: use mode="eval"')
    return input


def batch_norm(
    node: fx.Node,
    input: Squares,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Squares:
    """Fixed statistics are folded into the gain and the bias."""
    if training or running_mean is None or running_var is None:
        raise SpiritlevelError('the path norm has no batch statistics: use mode="eval"')
    mean, var = _own(running_mean), _own(running_var)
    gain = (var + eps).rsqrt()
    if weight is not None:
        gain = gain * _own(weight)
    shift = -mean * gain
    if bias is not None:
        shift = shift + _own(bias)
    shape = [1, -1] + [1] * (squared(input).ndim - 2)
    return Squares(squared(input) * gain.square().reshape(shape) + shift.square().reshape(shape))


def batch_norm_with_statistics(node: fx.Node, *given: Any) -> tuple[Any, ...]:
    """The same operation where graphs are made free of writing, in eval mode."""
    *five, momentum, eps = given
    return batch_norm(node, *five, False, momentum, eps), None, None


def batch_norm_without_writes(node: fx.Node, *given: Any) -> tuple[Any, ...]:
    return batch_norm(node, *given), None, None, None, None


def _own(value: Any) -> Tensor:
    """The numbers of a constant or a weight, with their signs."""
    found = value.weights if isinstance(value, Squares) else value
    if found is None:
        raise SpiritlevelError("the path norm knows batch norms with weights of their own")
    return found


# Pooling --------------------------------------------------------------------------------------


def _pooled(
    dims: int, self: Squares, kernel_size: Any, stride: Any, padding: Any, power: int
) -> Squares:
    """The average over each window, times a power of its size."""
    average = getattr(F, f"avg_pool{dims}d")
    found = average(self.value, kernel_size, stride or kernel_size, padding)
    return Squares(found * math.prod(_each(kernel_size, dims)) ** power)


def max_pool(dims: int) -> Callable[..., Squares]:
    """The sum over each window instead of the maximum: a maximum counts all its paths."""

    def rule(
        node: fx.Node,
        self: Squares,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Squares:
        if set(_each(dilation, dims)) != {1} or ceil_mode:
            raise SpiritlevelError("the path norm knows no dilated or ceiled maximum")
        return _pooled(dims, self, kernel_size, stride, padding, power=1)

    return rule


def average_pool(dims: int) -> Callable[..., Squares]:
    """An average with squared coefficients."""

    def rule(
        node: fx.Node,
        self: Squares,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Squares:
        short = not count_include_pad and any(_each(padding, dims))
        if ceil_mode or short or divisor_override is not None:
            raise SpiritlevelError("the path norm knows averages over windows of one size only")
        return _pooled(dims, self, kernel_size, stride, padding, power=-1)

    return rule


def adaptive_pool(dims: int) -> Callable[..., Squares]:
    average = getattr(F, f"adaptive_avg_pool{dims}d")

    def rule(node: fx.Node, self: Squares, output_size: Any) -> Squares:
        found = average(self.value, output_size)
        shapes = zip(self.value.shape[-dims:], found.shape[-dims:], strict=True)
        windows = [a / b for a, b in shapes]
        if any(w != int(w) for w in windows):
            raise SpiritlevelError("the path norm knows adaptive pooling into equal windows only")
        return Squares(found / math.prod(windows))

    return rule


def _each(sizes: Any, dims: int) -> list[int]:
    """One size for each axis, as torch takes them."""
    found = [sizes] if isinstance(sizes, int) else list(sizes)
    return found * dims if len(found) == 1 else found
