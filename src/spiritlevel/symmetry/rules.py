"""One rule per operation: what it asks of the log-scales of what goes in and comes out.

A rule gets the walk and the operation's own arguments, by their names in the operation's schema:
`Scales` for what depends on parameters or inputs, plain values for constants. It states its
equations and returns the scales of the result. Every equation is an equivariance of the
operation, so whatever solves them all is a symmetry. A rule that meets a case it does not know
raises NotImplementedError, and what no rule knows is blocked: at worst a symmetry is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.symmetry import norms, products
from spiritlevel.symmetry.forms import WILD, ZERO
from spiritlevel.symmetry.walk import TINY, Norm, Scales, Walk

Rule = Callable[..., Any]


def passes(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    """f(e^s x) = e^s f(x), element by element."""
    return walk.made(walk.single(self))


def converts(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    """Another precision changes nothing; truth asks only whether x is 0; integers round."""
    assert walk.node is not None
    kind = walk.node.meta["val"].dtype
    if kind == torch.bool:
        return walk.still(walk.shape)
    if not kind.is_floating_point:
        raise NotImplementedError
    return passes(walk, self)


def drops_out(walk: Walk, input: Any, *_: Any, **__: Any) -> tuple[Scales, Scales]:
    """The result and its mask."""
    assert walk.node is not None
    result, mask = walk.node.meta["val"]
    return walk.made(walk.single(input), result.shape), walk.still(mask.shape)


def rectifies(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    walk.note("hidden", self)
    return passes(walk, self)


def prelu(walk: Walk, self: Any, weight: Any) -> Scales:
    walk.block(weight, "prelu slope")
    return rectifies(walk, self)


def clamp(walk: Walk, self: Any, min: Any = None, max: Any = None) -> Scales:
    """Only clamping at 0 is homogeneous; a tiny floor is an eps."""
    bounds = [b for b in (min, max) if b is not None]
    if any(not isinstance(b, (int, float)) for b in bounds):
        raise NotImplementedError
    if max is None and min and 0 < min < TINY:
        return _plus_eps(walk, self, min)
    if any(b != 0 and abs(b) != float("inf") for b in bounds):
        raise NotImplementedError
    return rectifies(walk, self)


def threshold(walk: Walk, self: Any, threshold: Any, value: Any) -> Scales:
    if threshold != 0 or value != 0:
        raise NotImplementedError
    return rectifies(walk, self)


def power(walk: Walk, self: Any, exponent: Any) -> Scales:
    if not isinstance(exponent, (int, float)):
        raise NotImplementedError
    if exponent == 0:  # 1 everywhere, of zeros too
        return walk.still(walk.shape)
    return walk.power(self, Fraction(exponent))


def of_degree(degree: int | Fraction) -> Rule:
    return lambda walk, self, *_, **__: walk.power(self, degree)


def add(walk: Walk, self: Any, other: Any, *, alpha: Any = 1) -> Scales:
    """What is added has one scale; a constant fixes it, and a tiny one is an eps."""
    if not isinstance(self, Scales):
        self, other = other, self
    number = _number(other)
    if number is not None and number == 0:
        return passes(walk, self)
    if number is not None and 0 < number < TINY:
        return _plus_eps(walk, self, number)
    ids = walk.single(self)
    if not isinstance(other, Scales):
        constant = walk.single(other)
        walk.block(Scales((torch.where(constant == ZERO, ids, WILD),)), "added constant")
        return walk.made(walk.system.choose(ids, constant))
    walk.note("residual", self)
    walk.note("residual", other)
    return walk.made(walk.system.choose(ids, walk.single(other)))


def _plus_eps(walk: Walk, value: Any, eps: float) -> Scales:
    ids = walk.single(value)
    if walk.eps == "exact":
        walk.block(Scales((ids,)), "eps")
        return walk.still(walk.shape)
    walk.norms.append(Norm(walk.module, "eps", eps, walk.system.times(ids, Fraction(1, 2))))
    return walk.made(ids)


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return None


def mul(walk: Walk, self: Any, other: Any, **_: Any) -> Scales:
    if isinstance(self, Scales) and isinstance(other, Scales):
        kind = "gain" if walk.meets_parameter else "gate"
        walk.note(kind, self)
        walk.note(kind, other)
    return walk.made(walk.system.merge([walk.single(self), walk.single(other)]))


def div(walk: Walk, self: Any, other: Any, *, rounding_mode: Any = None) -> Scales:
    if rounding_mode is not None:
        raise NotImplementedError
    if not isinstance(other, Scales):
        return passes(walk, self)
    return walk.made(walk.system.weighted(walk.single(self), walk.single(other), 1, -1))


def addcmul(walk: Walk, self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Scales:
    product = walk.system.merge([walk.single(tensor1), walk.single(tensor2)])
    return walk.made(walk.system.choose(walk.single(self), product))


def lerp(walk: Walk, self: Any, end: Any, weight: Any) -> Scales:
    walk.block(weight, "lerp weight")
    return walk.made(walk.system.choose(walk.single(self), walk.single(end)))


def glu(walk: Walk, self: Any, dim: int = -1) -> Scales:
    """a * sigmoid(b): the gate is blocked, the linear branch is free."""
    linear, gate = walk.single(self).chunk(2, dim)
    walk.block(Scales((gate,)), "sigmoid")
    walk.note("gate", linear)
    return walk.made(linear)


def softmax(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    walk.note("query-key", self)
    walk.block(self, "softmax")
    return walk.still(walk.shape)


def reduces(walk: Walk, self: Any, *_: Any, **__: Any) -> Any:
    """Sums, means, maxima, norms of first degree: one scale over what is reduced."""
    assert walk.node is not None
    dims, keepdim = reduced_dims(walk, self.ndim)
    tied = walk.tied(self, dims)
    kept = tied if keepdim else dropped(tied, dims)
    made = walk.node.meta["val"]
    if not isinstance(made, (tuple, list)):
        return walk.made(kept)
    return walk.made(kept, made[0].shape), *(walk.still(v.shape) for v in made[1:])


def reduced_dims(walk: Walk, ndim: int) -> tuple[list[int], bool]:
    """The axes that the present operation reduces, and whether it keeps them."""
    dim = walk.option("dim")
    if dim is None or dim == []:
        return list(range(ndim)), bool(walk.option("keepdim"))
    return [dim] if isinstance(dim, int) else list(dim), bool(walk.option("keepdim"))


def vector_norm(walk: Walk, self: Any, ord: Any = 2, *_: Any, **__: Any) -> Scales:
    if ord == 0:
        raise NotImplementedError
    return reduces(walk, self)


def variance(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    """Of second degree."""
    return walk.power(reduces(walk, self), 2)


def cumulates(walk: Walk, self: Any, dim: int, **_: Any) -> Scales:
    return walk.made(walk.tied(self, [dim]))


def selects(walk: Walk, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Sorting and top-k along an axis: one scale there, indices stay."""
    assert walk.node is not None
    places = {"topk": 1, "sort": 0}
    position = places["topk" if "topk" in str(walk.node.target) else "sort"]
    dim = kwargs.get("dim", args[position] if len(args) > position else -1)
    tied = walk.tied(self, [dim])
    values, indices = walk.node.meta["val"]
    return walk.made(tied, values.shape), walk.still(indices.shape)


def argument(walk: Walk, self: Any, dim: Any = None, *_: Any, **__: Any) -> Scales:
    """Where the largest is: the same whatever the common scale."""
    walk.tied(self, list(range(self.ndim)) if dim is None else [dim])
    return walk.still(walk.shape)


def pools(spatial: int) -> Rule:
    """Pooling and resampling: one scale per channel."""

    def rule(walk: Walk, self: Any, *_: Any, **__: Any) -> Any:
        assert walk.node is not None
        tied = walk.tied(self, list(range(-spatial, 0)))
        made = walk.node.meta["val"]
        if isinstance(made, (tuple, list)):
            return walk.made(tied, made[0].shape), walk.still(made[1].shape)
        return walk.made(tied)

    return rule


def compares(walk: Walk, self: Any, other: Any) -> Scales:
    """x > y is the same when both have one scale; comparing with 0 always is."""
    if isinstance(self, Scales) and isinstance(other, Scales):
        walk.system.equate_all(walk.single(self), walk.single(other))
    elif _number(other) != 0:
        walk.block(self, "comparison with a constant")
        walk.block(other, "comparison with a constant")
    return walk.still(walk.shape)


def where(walk: Walk, condition: Any, self: Any, other: Any) -> Scales:
    a, b = walk.single(self), walk.single(other)
    if isinstance(condition, Tensor):
        a, b, condition = torch.broadcast_tensors(a, b, condition)
        return Scales((torch.where(condition, a, b),))
    walk.block(condition, "where")
    return walk.made(walk.system.choose(a, b))


def masked_fill(walk: Walk, self: Any, mask: Any, value: Any) -> Scales:
    return where(walk, mask, value, self)


def extremes(walk: Walk, self: Any, other: Any = None, *_: Any, **__: Any) -> Any:
    """max and min: of two tensors, or along an axis."""
    if isinstance(other, (Scales, Tensor)):
        return walk.made(walk.system.choose(walk.single(self), walk.single(other)))
    return reduces(walk, self)


def padded(
    walk: Walk, self: Any, pad: list[int], mode: str = "constant", value: Any = None
) -> Scales:
    """Zeros around fit any scale; reflections and repeats carry theirs along."""
    if mode == "constant" and value:
        raise NotImplementedError
    ids = walk.single(self).double()  # exact up to 2^53, and every mode knows it
    return Scales((F.pad(ids, list(pad), mode=mode).long(),))


def constant_pad(walk: Walk, self: Any, pad: list[int], value: Any = 0) -> Scales:
    return padded(walk, self, pad, "constant", value)


def like(walk: Walk, *_: Any, **__: Any) -> Scales:
    """zeros_like, ones_like and their kin depend on the shape alone."""
    return walk.still(walk.shape)


def dropped(ids: Tensor, dims: list[int]) -> Tensor:
    gone = {d % ids.ndim for d in dims}
    return ids.reshape([n for d, n in enumerate(ids.shape) if d not in gone])


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        "neg dropout feature_dropout alpha_dropout clone contiguous detach alias "
        "lift_fresh_copy positive".split(),
        passes,
    ),
    **dict.fromkeys(["to", "_to_copy", "type_as"], converts),
    "native_dropout": drops_out,
    **dict.fromkeys(["relu", "leaky_relu", "rrelu", "abs"], rectifies),
    "prelu": prelu,
    **dict.fromkeys(["clamp", "clamp_min", "clip", "hardtanh"], clamp),
    "threshold": threshold,
    "pow": power,
    "square": of_degree(2),
    "sqrt": of_degree(Fraction(1, 2)),
    "rsqrt": of_degree(Fraction(-1, 2)),
    "reciprocal": of_degree(-1),
    "sign": of_degree(0),
    **dict.fromkeys(["add", "sub", "rsub"], add),
    **dict.fromkeys(["mul", "multiply"], mul),
    **dict.fromkeys(["div", "divide", "true_divide"], div),
    "addcmul": addcmul,
    "lerp": lerp,
    "glu": glu,
    **dict.fromkeys(
        ["softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"], softmax
    ),
    **dict.fromkeys(["sum", "mean", "amax", "amin"], reduces),
    **dict.fromkeys(["max", "min", "maximum", "minimum"], extremes),
    "linalg_vector_norm": vector_norm,
    "norm": vector_norm,
    "var": variance,
    "std": reduces,
    "cumsum": cumulates,
    **dict.fromkeys(["topk", "sort"], selects),
    **dict.fromkeys(["argmax", "argmin", "argsort"], argument),
    **{
        f"{kind}_pool{n}d": pools(n)
        for n in (1, 2, 3)
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    },
    **{f"max_pool{n}d_with_indices": pools(n) for n in (2, 3)},
    **{f"upsample_nearest{n}d": pools(n) for n in (1, 2, 3)},
    "upsample_linear1d": pools(1),
    **dict.fromkeys(["upsample_bilinear2d", "upsample_bicubic2d"], pools(2)),
    "upsample_trilinear3d": pools(3),
    **dict.fromkeys(["gt", "lt", "ge", "le", "eq", "ne"], compares),
    "where": where,
    "masked_fill": masked_fill,
    "pad": padded,
    "constant_pad_nd": constant_pad,
    **dict.fromkeys(
        ["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"], like
    ),
    "linear": products.linear,
    **dict.fromkeys(["matmul", "mm", "bmm", "mv"], products.matmul),
    **dict.fromkeys(["addmm", "baddbmm"], products.addmm),
    "einsum": products.einsum,
    **{f"conv{n}d": products.convolution(transposed=False) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": products.convolution(transposed=True) for n in (1, 2, 3)},
    "embedding": products.embedding,
    "index": products.index,
    "index_select": products.index_select,
    "gather": products.gather,
    "scaled_dot_product_attention": products.attention,
    "layer_norm": norms.layer_norm,
    "rms_norm": norms.rms_norm,
    "group_norm": norms.group_norm,
    "instance_norm": norms.instance_norm,
    "batch_norm": norms.batch_norm,
}

# Operations that only move elements around run on the ids themselves.
SHAPE_OPERATIONS = frozenset(
    "view reshape _unsafe_view permute transpose t numpy_T flatten unflatten squeeze unsqueeze "
    "expand expand_as view_as reshape_as slice select split split_with_sizes chunk unbind unfold "
    "roll flip tril triu repeat repeat_interleave movedim swapaxes narrow broadcast_to diagonal "
    "tile pixel_shuffle pixel_unshuffle channel_shuffle cat concat stack hsplit vsplit mT mH "
    "adjoint atleast_2d im2col rot90 tensor_split".split()
)
