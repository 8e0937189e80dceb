"""Interval arithmetic in the place of tensors: a model runs on all values of a box at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

Rule = Callable[..., Any]


class NotEnclosed(Exception):
    """An operation for which no bounds are known; its name."""


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
        if whole and name not in SHAPES:
            raise NotEnclosed(f"{name} of whole numbers that are not known")
        if func._schema.is_mutable:
            return _in_place(func, name, args, given)
        return _rule(name)(func, *args, **given)


def _rule(name: str) -> Rule:
    if name not in RULES:
        raise NotEnclosed(name)
    return RULES[name]


def _in_place(func: OpOverload, name: str, args: Any, kwargs: Any) -> Any:
    """The operation itself, written where it belongs: views of the bounds see it too."""
    plain = name.removesuffix("_")
    if plain not in WRITABLE or not isinstance(args[0], Interval):
        raise NotEnclosed(name)
    same = getattr(getattr(torch.ops.aten, plain), func._overloadname)
    found = RULES[plain](same, *args, **kwargs)
    args[0].low.copy_(found.low)
    args[0].high.copy_(found.high)
    return args[0]


def _intervals(tree: Any) -> list[Interval]:
    if isinstance(tree, Interval):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [v for item in tree for v in _intervals(item)] if isinstance(tree, (tuple, list)) else []


def _mapped(side: str, tree: Any) -> Any:
    """Every interval by its bound of this side."""
    if isinstance(tree, Interval):
        return getattr(tree, side)
    if isinstance(tree, (tuple, list)):
        return type(tree)(_mapped(side, item) for item in tree)
    return tree


def low(value: Any) -> Any:
    return value.low if isinstance(value, Interval) else value


def high(value: Any) -> Any:
    return value.high if isinstance(value, Interval) else value


def _fixed(*values: Any) -> None:
    """Refuse what may not vary here."""
    if any(isinstance(value, Interval) for value in values):
        raise NotEnclosed("a target, a weight or a statistic that varies")


# Rules -------------------------------------------------------------------------------------------


def _increasing(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Operations that no argument makes smaller when it grows; changes of shape among them."""
    below, above = (
        func(*_mapped(side, args), **{k: _mapped(side, v) for k, v in kwargs.items()})
        for side in ("low", "high")
    )
    if isinstance(below, (tuple, list)):
        return type(below)(Interval(a, b) for a, b in zip(below, above, strict=True))
    return Interval(below, above)


def _scattered(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    if kwargs:  # reduce="multiply" need not rise
        raise NotEnclosed("scatter with a reduction")
    return _increasing(func, *args)


def _constant(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """New tensors of a shape, whatever the values."""
    return func(*_mapped("low", args), **kwargs)


def _converted(func: OpOverload, value: Interval, **kwargs: Any) -> Any:
    kind = kwargs.get("dtype")
    if kind is not None and not kind.is_floating_point:
        raise NotEnclosed("a conversion to whole numbers")
    return _increasing(func, value, **kwargs)


def _add(func: OpOverload, a: Any, b: Any, alpha: float = 1) -> Interval:
    return _increasing(func, a, b, alpha=alpha) if alpha >= 0 else _sub(func, a, b, alpha=-alpha)


def _sub(func: OpOverload, a: Any, b: Any, alpha: float = 1) -> Interval:
    if alpha < 0:
        raise NotEnclosed("sub with a negative alpha")
    return Interval(low(a) - alpha * high(b), high(a) - alpha * low(b))


def _rsub(func: OpOverload, a: Any, b: Any, alpha: float = 1) -> Interval:
    return _sub(func, b, a, alpha)


def _neg(func: OpOverload, a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def _mul(func: OpOverload, a: Any, b: Any) -> Interval:
    products = [low(a) * low(b), low(a) * high(b), high(a) * low(b), high(a) * high(b)]
    return Interval(*torch.stack(products).aminmax(dim=0))


def _div(func: OpOverload, a: Any, b: Any, *, rounding_mode: str | None = None) -> Interval:
    if rounding_mode is not None:
        raise NotEnclosed("a division that rounds")
    kind = (a if isinstance(a, Tensor) else b).dtype  # a plain number would become float32
    below, above = (torch.as_tensor(side, dtype=kind) for side in (low(b), high(b)))
    if not bool(((below > 0) | (above < 0)).all()):
        raise NotEnclosed("a division by what may be zero")
    return _mul(func, a, Interval(1 / above, 1 / below))


def _size(a: Interval) -> Interval:
    """|a|."""
    least = torch.where((a.low <= 0) & (a.high >= 0), 0.0, torch.minimum(a.low.abs(), a.high.abs()))
    return Interval(least, torch.maximum(a.low.abs(), a.high.abs()))


def _of_size(func: OpOverload, a: Interval, *args: Any, **kwargs: Any) -> Interval:
    """Functions that grow with |a|."""
    _fixed(*args)
    return _increasing(func, _size(a), *args, **kwargs)


def _power(func: OpOverload, a: Any, exponent: Any) -> Interval:
    if not isinstance(exponent, (int, float)) or exponent not in (1, 2, 3, 4):
        raise NotEnclosed("pow")
    return (_of_size if exponent % 2 == 0 else _increasing)(func, a, exponent)


def _leaky(func: OpOverload, a: Interval, slope: float = 0.01) -> Interval:
    if slope < 0:
        raise NotEnclosed("leaky_relu with a negative slope")
    return _increasing(func, a, slope)


def _bilinear(product: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Interval:
    """A B(a, b) with |B(a, b) - B(a0, b0)| <= B(|a0|, db) + B(da, |b0| + db)."""
    (a0, da), (b0, db) = _middle(a), _middle(b)
    middle = product(a0, b0)
    spread = product(a0.abs(), db) + product(da, b0.abs() + db)
    return Interval(middle - spread, middle + spread)


def _middle(a: Any) -> tuple[Tensor, Tensor]:
    return (low(a) + high(a)) / 2, (high(a) - low(a)) / 2


def _matmul(func: OpOverload, a: Any, b: Any) -> Interval:
    return _bilinear(func, a, b)


def _addmm(
    func: OpOverload, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    if (beta, alpha) != (1, 1):
        raise NotEnclosed("addmm with factors")
    found = _bilinear(torch.matmul, a, b)
    return Interval(found.low + low(bias), found.high + high(bias))


def _convolution(func: OpOverload, x: Any, weight: Any, bias: Any, *options: Any) -> Interval:
    found = _bilinear(lambda a, b: func(a, b, None, *options), x, weight)
    if bias is None:
        return found
    shape = (-1, *[1] * (found.ndim - 2))
    return Interval(found.low + low(bias).view(shape), found.high + high(bias).view(shape))


def _batch_norm(func: OpOverload, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """With running statistics: (x - mean) / sqrt(var + eps) * weight + bias."""
    mean, var, *options = rest
    _fixed(mean, var)
    if (len(options) == 3 and options[0]) or mean is None:
        raise NotEnclosed("batch_norm with the statistics of a batch")
    shape = (1, -1, *[1] * (x.ndim - 2))
    scale = (var + options[-1]).rsqrt().view(shape)
    found = Interval((low(x) - mean.view(shape)) * scale, (high(x) - mean.view(shape)) * scale)
    if weight is not None:
        sides = Interval(low(weight).view(shape), high(weight).view(shape))
        found = _mul(func, found, sides)
    if bias is not None:
        found = Interval(found.low + low(bias).view(shape), found.high + high(bias).view(shape))
    return found, mean.new_empty(0), mean.new_empty(0)


def _pooled(func: OpOverload, x: Interval, *args: Any, **kwargs: Any) -> Any:
    values, places = _increasing(func, x, *args, **kwargs)
    return values, places  # places are an interval of whole numbers: nothing may use them


def _log_softmax(func: OpOverload, a: Interval, dim: int, *_: Any) -> Interval:
    """Least where the own logit is low and all others are high, and the other way round."""
    return Interval(
        a.low - torch.logaddexp(a.low, _of_the_others(a.high, dim)),
        a.high - torch.logaddexp(a.high, _of_the_others(a.low, dim)),
    )


def _softmax(func: OpOverload, a: Interval, dim: int, *rest: Any) -> Interval:
    found = _log_softmax(func, a, dim)
    return Interval(found.low.exp(), found.high.exp())


def _of_the_others(logits: Tensor, dim: int) -> Tensor:
    """log sum_(j != i) exp(logit_j) for every i, without cancellation."""
    none = torch.full_like(logits.narrow(dim, 0, 1), -torch.inf)
    last = logits.shape[dim] - 1
    before = logits.logcumsumexp(dim).narrow(dim, 0, last)
    after = logits.flip(dim).logcumsumexp(dim).flip(dim).narrow(dim, 1, last)
    return torch.logaddexp(torch.cat([none, before], dim), torch.cat([after, none], dim))


def _nll(func: OpOverload, a: Interval, target: Tensor, weight: Any, *options: Any) -> Any:
    """-sum_i w_i a_i: falls where log-probabilities rise, for weights that are not negative."""
    _fixed(target, weight)
    if weight is not None and bool((weight < 0).any()):
        raise NotEnclosed("negative class weights")
    (least, total), (most, _) = (func(side, target, weight, *options) for side in (a.high, a.low))
    return Interval(least, most), total


def _reduced(values: Interval, reduction: int) -> Interval:
    if reduction == 0:
        return values
    reduce = torch.mean if reduction == 1 else torch.sum
    return Interval(reduce(values.low), reduce(values.high))


def _of_distance(func: OpOverload, a: Any, b: Any, reduction: int = 1, *more: Any) -> Interval:
    """Losses that grow with |a - b|: mse_loss, smooth_l1_loss, huber_loss."""
    distance = _size(_sub(func, a, b))
    values = [
        func(side, torch.zeros_like(side), 0, *more) for side in (distance.low, distance.high)
    ]
    return _reduced(Interval(*values), reduction)


def _bernoulli(
    func: OpOverload, a: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Interval:
    """Convex in the logit: largest at an end of the interval, and nowhere negative."""
    _fixed(y, weight, pos_weight)
    factors = [w for w in (weight, pos_weight) if w is not None]
    if bool((y < 0).any() | (y > 1).any()) or any(bool((w < 0).any()) for w in factors):
        raise NotEnclosed("targets outside of 0 .. 1, or negative weights")
    ends = [func(side, y, weight, pos_weight, 0) for side in (a.low, a.high)]
    return _reduced(Interval(torch.zeros_like(ends[0]), torch.maximum(*ends)), reduction)


SHAPES = (
    "view _unsafe_view _reshape_alias reshape t transpose permute expand unsqueeze squeeze slice "
    "select split split_with_sizes unbind cat stack clone detach alias flip repeat narrow "
    "diagonal lift_fresh"
).split()
RISING = (
    "relu tanh sigmoid softplus hardtanh exp log log1p expm1 sqrt sum mean cumsum maximum minimum "
    "amax amin where masked_fill avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d logsumexp logaddexp clamp clamp_min clamp_max constant_pad_nd index "
    "index_select gather"
).split()
NEW = "zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full".split()
RULES: dict[str, Rule] = {
    **dict.fromkeys([*SHAPES, *RISING], _increasing),
    "scatter": _scattered,
    **dict.fromkeys(NEW, _constant),
    **dict.fromkeys(["mm", "bmm", "mv", "dot"], _matmul),
    **dict.fromkeys(["addmm", "baddbmm", "addmv"], _addmm),
    **dict.fromkeys(["native_batch_norm", "_native_batch_norm_legit_no_training"], _batch_norm),
    **dict.fromkeys(["max_pool2d_with_indices", "max_pool3d_with_indices"], _pooled),
    **dict.fromkeys(["nll_loss_forward", "nll_loss2d_forward"], _nll),
    **dict.fromkeys(["mse_loss", "smooth_l1_loss", "huber_loss"], _of_distance),
    "abs": lambda func, a: _size(a),
    "linalg_vector_norm": _of_size,
    "pow": _power,
    "_to_copy": _converted,
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "leaky_relu": _leaky,
    "convolution": _convolution,
    "_log_softmax": _log_softmax,
    "_softmax": _softmax,
    "binary_cross_entropy_with_logits": _bernoulli,
}
# Element by element: what may be written in place
WRITABLE = set(
    "relu tanh sigmoid hardtanh leaky_relu exp clamp clamp_min clamp_max masked_fill abs neg add "
    "sub mul div".split()
)
