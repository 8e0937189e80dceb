"""Bounds of operations: where results lie when arguments lie between a low and a high tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload


class NotEnclosed(Exception):
    """An operation for which no bounds are known; its name."""


@dataclass(frozen=True)
class Bounds:
    """low <= value <= high, element by element. Rounding is not enclosed."""

    low: Tensor
    high: Tensor

    @property
    def ndim(self) -> int:
        return self.low.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.low.dtype


def _mapped(side: str, tree: Any) -> Any:
    """Every value by its bound of this side."""
    if isinstance(tree, Bounds):
        return getattr(tree, side)
    if isinstance(tree, (tuple, list)):
        return type(tree)(_mapped(side, item) for item in tree)
    return tree


def low(value: Any) -> Any:
    return value.low if isinstance(value, Bounds) else value


def high(value: Any) -> Any:
    return value.high if isinstance(value, Bounds) else value


def _fixed(*values: Any) -> None:
    """Refuse what may not vary here."""
    if any(isinstance(value, Bounds) for value in values):
        raise NotEnclosed("a target, a weight or a statistic that varies")


def increasing(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Operations that no argument makes smaller when it grows; changes of shape among them."""
    below, above = (
        func(*_mapped(side, args), **{k: _mapped(side, v) for k, v in kwargs.items()})
        for side in ("low", "high")
    )
    if isinstance(below, (tuple, list)):
        return type(below)(Bounds(a, b) for a, b in zip(below, above, strict=True))
    return Bounds(below, above)


def moved(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Elements in other places, whole numbers too."""
    if func._overloadname == "dtype":
        raise NotEnclosed("the bits of a tensor as other numbers")
    return increasing(func, *args, **kwargs)


def scattered(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    if kwargs:  # reduce="multiply" need not rise
        raise NotEnclosed("scatter with a reduction")
    return increasing(func, *args)


def constant(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """New tensors of a shape, whatever the values."""
    return func(*_mapped("low", args), **kwargs)


def converted(func: OpOverload, value: Bounds, **kwargs: Any) -> Any:
    kind = kwargs.get("dtype")
    if kind is not None and not kind.is_floating_point:
        raise NotEnclosed("a conversion to whole numbers")
    return increasing(func, value, **kwargs)


def add(func: OpOverload, a: Any, b: Any, alpha: float = 1) -> Bounds:
    return increasing(func, a, b, alpha=alpha) if alpha >= 0 else sub(func, a, b, alpha=-alpha)


def sub(func: OpOverload, a: Any, b: Any, alpha: float = 1) -> Bounds:
    if alpha < 0:
        raise NotEnclosed("sub with a negative alpha")
    return Bounds(low(a) - alpha * high(b), high(a) - alpha * low(b))


def rsub(func: OpOverload, a: Any, b: Any, alpha: float = 1) -> Bounds:
    return sub(func, b, a, alpha)


def neg(func: OpOverload, a: Bounds) -> Bounds:
    return Bounds(-a.high, -a.low)


def mul(func: OpOverload, a: Any, b: Any) -> Bounds:
    products = [low(a) * low(b), low(a) * high(b), high(a) * low(b), high(a) * high(b)]
    return Bounds(*torch.stack(products).aminmax(dim=0))


def div(func: OpOverload, a: Any, b: Any, *, rounding_mode: str | None = None) -> Bounds:
    if rounding_mode is not None:
        raise NotEnclosed("a division that rounds")
    kind = (
        a if isinstance(a, (Tensor, Bounds)) else b
    ).dtype  # a plain number would become float32
    below, above = (torch.as_tensor(side, dtype=kind) for side in (low(b), high(b)))
    if not bool(((below > 0) | (above < 0)).all()):
        raise NotEnclosed("a division by what may be zero")
    return mul(func, a, Bounds(1 / above, 1 / below))


def _size(a: Bounds) -> Bounds:
    """|a|."""
    least = torch.where((a.low <= 0) & (a.high >= 0), 0.0, torch.minimum(a.low.abs(), a.high.abs()))
    return Bounds(least, torch.maximum(a.low.abs(), a.high.abs()))


def absolute(func: OpOverload, a: Bounds) -> Bounds:
    return _size(a)


def of_size(func: OpOverload, a: Bounds, *args: Any, **kwargs: Any) -> Bounds:
    """Functions that grow with |a|."""
    _fixed(*args)
    return increasing(func, _size(a), *args, **kwargs)


def power(func: OpOverload, a: Any, exponent: Any) -> Bounds:
    if not isinstance(exponent, (int, float)) or exponent not in (1, 2, 3, 4):
        raise NotEnclosed("pow")
    return (of_size if exponent % 2 == 0 else increasing)(func, a, exponent)


def leaky(func: OpOverload, a: Bounds, slope: float = 0.01) -> Bounds:
    if slope < 0:
        raise NotEnclosed("leaky_relu with a negative slope")
    return increasing(func, a, slope)


def _bilinear(product: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Bounds:
    """A B(a, b) with |B(a, b) - B(a0, b0)| <= B(|a0|, db) + B(da, |b0| + db)."""
    (a0, da), (b0, db) = _middle(a), _middle(b)
    middle = product(a0, b0)
    spread = product(a0.abs(), db) + product(da, b0.abs() + db)
    return Bounds(middle - spread, middle + spread)


def _middle(a: Any) -> tuple[Tensor, Tensor]:
    return (low(a) + high(a)) / 2, (high(a) - low(a)) / 2


def matmul(func: OpOverload, a: Any, b: Any) -> Bounds:
    return _bilinear(func, a, b)


def addmm(func: OpOverload, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if (beta, alpha) != (1, 1):
        raise NotEnclosed("addmm with factors")
    found = _bilinear(torch.matmul, a, b)
    return Bounds(found.low + low(bias), found.high + high(bias))


def convolution(func: OpOverload, x: Any, weight: Any, bias: Any, *options: Any) -> Bounds:
    found = _bilinear(lambda a, b: func(a, b, None, *options), x, weight)
    if bias is None:
        return found
    shape = (-1, *[1] * (found.ndim - 2))
    return Bounds(found.low + low(bias).view(shape), found.high + high(bias).view(shape))


def batch_norm(func: OpOverload, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """With running statistics: (x - mean) / sqrt(var + eps) * weight + bias."""
    mean, var, *options = rest
    _fixed(mean, var)
    if (len(options) == 3 and options[0]) or mean is None:
        raise NotEnclosed("batch_norm with the statistics of a batch")
    shape = (1, -1, *[1] * (x.ndim - 2))
    scale = (var + options[-1]).rsqrt().view(shape)
    found = Bounds((low(x) - mean.view(shape)) * scale, (high(x) - mean.view(shape)) * scale)
    if weight is not None:
        sides = Bounds(low(weight).view(shape), high(weight).view(shape))
        found = mul(func, found, sides)
    if bias is not None:
        found = Bounds(found.low + low(bias).view(shape), found.high + high(bias).view(shape))
    return found, mean.new_empty(0), mean.new_empty(0)


def pooled(func: OpOverload, x: Bounds, *args: Any, **kwargs: Any) -> Any:
    values, places = increasing(func, x, *args, **kwargs)
    return values, places  # places are an interval of whole numbers: nothing may use them


def log_softmax(func: OpOverload, a: Bounds, dim: int, *_: Any) -> Bounds:
    """Least where the own logit is low and all others are high, and the other way round."""
    return Bounds(
        a.low - torch.logaddexp(a.low, _of_the_others(a.high, dim)),
        a.high - torch.logaddexp(a.high, _of_the_others(a.low, dim)),
    )


def softmax(func: OpOverload, a: Bounds, dim: int, *rest: Any) -> Bounds:
    found = log_softmax(func, a, dim)
    return Bounds(found.low.exp(), found.high.exp())


def _of_the_others(logits: Tensor, dim: int) -> Tensor:
    """log sum_(j != i) exp(logit_j) for every i, without cancellation."""
    none = torch.full_like(logits.narrow(dim, 0, 1), -torch.inf)
    last = logits.shape[dim] - 1
    before = logits.logcumsumexp(dim).narrow(dim, 0, last)
    after = logits.flip(dim).logcumsumexp(dim).flip(dim).narrow(dim, 1, last)
    return torch.logaddexp(torch.cat([none, before], dim), torch.cat([after, none], dim))


def nll(func: OpOverload, a: Bounds, target: Tensor, weight: Any, *options: Any) -> Any:
    """-sum_i w_i a_i: falls where log-probabilities rise, for weights that are not negative."""
    _fixed(target, weight)
    if weight is not None and bool((weight < 0).any()):
        raise NotEnclosed("negative class weights")
    (least, total), (most, _) = (func(side, target, weight, *options) for side in (a.high, a.low))
    return Bounds(least, most), total


def _reduced(values: Bounds, reduction: int) -> Bounds:
    if reduction == 0:
        return values
    reduce = torch.mean if reduction == 1 else torch.sum
    return Bounds(reduce(values.low), reduce(values.high))


def of_distance(func: OpOverload, a: Any, b: Any, reduction: int = 1, *more: Any) -> Bounds:
    """Losses that grow with |a - b|: mse_loss, smooth_l1_loss, huber_loss."""
    distance = _size(sub(func, a, b))
    values = [
        func(side, torch.zeros_like(side), 0, *more) for side in (distance.low, distance.high)
    ]
    return _reduced(Bounds(*values), reduction)


def bernoulli(
    func: OpOverload, a: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Bounds:
    """Convex in the logit: largest at an end of the interval, and nowhere negative."""
    _fixed(y, weight, pos_weight)
    factors = [w for w in (weight, pos_weight) if w is not None]
    if bool((y < 0).any() | (y > 1).any()) or any(bool((w < 0).any()) for w in factors):
        raise NotEnclosed("targets outside of 0 .. 1, or negative weights")
    ends = [func(side, y, weight, pos_weight, 0) for side in (a.low, a.high)]
    return _reduced(Bounds(torch.zeros_like(ends[0]), torch.maximum(*ends)), reduction)
