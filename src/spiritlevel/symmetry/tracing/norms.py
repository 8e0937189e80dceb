"""Rules of normalizations, and what their eps and running statistics allow."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from torch import Tensor

from spiritlevel.symmetry.tracing.products import add_bias
from spiritlevel.symmetry.tracing.state import Norm, Reason, Scales, Walk


def normalized(walk: Walk, input: Any, dims: list[int], eps: float, operation: str) -> None:
    """The elements that are normalized together share one scale, which eps allows or not."""
    scale = walk.tied(input, dims)
    if walk.signed or (walk.eps == "exact" and eps):
        reason = Reason.BENDS if walk.signed else Reason.EPS
        walk.block(Scales((scale,)), operation if walk.signed else f"eps of {operation}", reason)
        return
    walk.note("norm input", scale)
    if eps:
        walk.norms.append(Norm(walk.module, operation, eps, scale))


def scaled_and_shifted(walk: Walk, weight: Any, bias: Any, dim: int) -> Scales:
    """gain * x + bias, after a normalization along all of x or per channel `dim`."""
    size = walk.shape[dim:] if dim < 0 else walk.shape[dim : dim + 1]
    out = walk.still(size).terms[0] if weight is None else walk.single(weight)
    if weight is not None:
        walk.note("gain", out)
    if bias is not None:
        out = walk.system.choose(out.expand(size), walk.single(bias))
    if dim >= 0:
        out = out.expand(size).reshape([-1] + [1] * (len(walk.shape) - dim - 1))
    return walk.made(out)


def layer_norm(
    walk: Walk,
    input: Any,
    normalized_shape: list[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Scales:
    count = len(normalized_shape)
    normalized(walk, input, list(range(-count, 0)), eps, "layer_norm")
    return scaled_and_shifted(walk, weight, bias, -count)


def rms_norm(
    walk: Walk, input: Any, normalized_shape: list[int], weight: Any = None, eps: Any = None
) -> Scales:
    count = len(normalized_shape)
    normalized(walk, input, list(range(-count, 0)), 1e-7 if eps is None else eps, "rms_norm")
    return scaled_and_shifted(walk, weight, None, -count)


def group_norm(
    walk: Walk,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Scales:
    ids = walk.single(input).unflatten(1, (num_groups, -1))
    normalized(walk, Scales((ids,)), list(range(2, ids.ndim)), eps, "group_norm")
    return scaled_and_shifted(walk, weight, bias, 1)


def weight_norm(walk: Walk, v: Any, g: Any, dim: int) -> Scales:
    """w = g v / ||v||, a norm for each index of `dim`, or one of all (-1).

    v is seen up to a factor for each norm; the scale of w is that of g.
    """
    if walk.signed:
        raise NotImplementedError
    scale = walk.tied(v, [d for d in range(v.ndim) if dim < 0 or d != dim])
    walk.note("norm input", walk.system.times(scale, 1))
    gain = walk.single(g)
    walk.note("gain", gain)
    return walk.made(gain)


def channel_norm(operation: str, *, joins_examples: bool) -> Callable[..., Scales]:
    """(x - mean) / sqrt(var + eps) * gain + bias, per channel of all examples or of each one."""

    def rule(
        walk: Walk,
        input: Any,
        weight: Any,
        bias: Any,
        mean: Any,
        var: Any,
        own_statistics: bool,
        momentum: float,
        eps: float,
        *_: Any,
        **__: Any,
    ) -> Scales:
        others = [d for d in range(input.ndim) if d != 1]
        if own_statistics or mean is None:
            normalized(walk, input, others if joins_examples else others[1:], eps, operation)
            return scaled_and_shifted(walk, weight, bias, 1)
        if walk.statistics == "fixed":
            for value in (mean, var):  # parameters, for some
                walk.block(value, f"fixed statistics of {operation}", Reason.STATISTICS)
            scale = Scales((walk.tied(input, others),))
            walk.block(scale, f"fixed statistics of {operation}", Reason.STATISTICS)
            return scaled_and_shifted(walk, weight, bias, 1)
        return _with_statistics(walk, input, weight, bias, mean, var, eps)

    return rule


batch_norm = channel_norm("batch_norm", joins_examples=True)
instance_norm = channel_norm("instance_norm", joins_examples=False)


def batch_norm_with_statistics(walk: Walk, *given: Any) -> tuple[Any, ...]:
    """The same operation where graphs are made free of writing, in eval mode."""
    *five, momentum, eps = given
    return _and_more(walk, batch_norm(walk, *five, False, momentum, eps))


def batch_norm_without_writes(walk: Walk, *given: Any) -> tuple[Any, ...]:
    return _and_more(walk, batch_norm(walk, *given))


def _and_more(walk: Walk, out: Scales) -> tuple[Any, ...]:
    """With the statistics that the operation also returns; nothing reads them."""
    assert walk.node is not None
    return out, *(walk.still(v.shape) for v in walk.node.meta["val"][1:])


def _with_statistics(
    walk: Walk, input: Any, weight: Any, bias: Any, mean: Any, var: Any, eps: float
) -> Scales:
    """The mean moves with the input; the gain makes up for the input and the variance."""
    system = walk.system
    scale: Tensor = walk.tied(input, [d for d in range(input.ndim) if d != 1]).flatten()
    scale = system.choose(scale, walk.single(mean))  # a mean shows even where the input is zero
    walk.note("norm input", scale)
    variance = walk.single(var)
    if walk.eps == "exact" and eps:
        walk.block(Scales((variance,)), "eps of batch_norm", Reason.EPS)
    elif eps:
        walk.norms.append(Norm(walk.module, "batch_norm", eps, variance))
    gain = walk.single(weight) if weight is not None else walk.still(scale.shape).terms[0]
    walk.note("gain", gain)
    whitened = system.weighted(scale, variance, 1, Fraction(-1, 2))
    out = add_bias(walk, system.weighted(whitened, gain), bias, 0)
    return walk.made(out.expand(scale.shape).reshape([-1] + [1] * (input.ndim - 2)))
