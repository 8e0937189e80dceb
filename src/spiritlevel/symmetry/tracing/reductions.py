"""Rules of operations that join or order elements along axes: sums, maxima, sorting, pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from spiritlevel.symmetry.tracing.state import Scales, Walk


def refuse_rounding(walk: Walk) -> None:
    """Sums and copies as integers (their `dtype`) are steps, unless integers are what they take."""
    assert walk.node is not None
    kinds = [n.meta["val"].dtype for n in walk.node.all_input_nodes]
    made = walk.node.meta["val"]
    made = made[0] if isinstance(made, (tuple, list)) else made
    if not made.dtype.is_floating_point and any(k.is_floating_point for k in kinds):
        raise NotImplementedError


def reduces(walk: Walk, self: Any, *_: Any, **__: Any) -> Any:
    """Sums, means, maxima, norms of first degree: one scale over what is reduced."""
    assert walk.node is not None
    refuse_rounding(walk)
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
    refuse_rounding(walk)
    return walk.made(walk.tied(self, [dim]))


def selects(walk: Walk, self: Any, *_: Any, **__: Any) -> Any:
    """Sorting and top-k along an axis: one scale there, indices stay."""
    assert walk.node is not None
    tied = walk.tied(self, [walk.option("dim")])
    values, indices = walk.node.meta["val"]
    return walk.made(tied, values.shape), walk.still(indices.shape)


def argument(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    """Where the largest is: the same whatever the common scale."""
    dim = walk.option("dim")
    walk.tied(self, list(range(self.ndim)) if dim is None else [dim])
    return walk.still(walk.shape)


def pools(spatial: int) -> Callable[..., Any]:
    """Pooling and resampling: one scale per channel."""

    def rule(walk: Walk, self: Any, *_: Any, **__: Any) -> Any:
        assert walk.node is not None
        tied = walk.tied(self, list(range(-spatial, 0)))
        made = walk.node.meta["val"]
        if isinstance(made, (tuple, list)):
            return walk.made(tied, made[0].shape), walk.still(made[1].shape)
        return walk.made(tied)

    return rule


def extremes(walk: Walk, self: Any, other: Any = None, *_: Any, **__: Any) -> Any:
    """max and min: of two tensors, or along an axis."""
    if isinstance(other, (Scales, Tensor)):
        return walk.made(walk.system.choose(walk.single(self), walk.single(other)))
    return reduces(walk, self)


def dropped(ids: Tensor, dims: list[int]) -> Tensor:
    gone = {d % ids.ndim for d in dims}
    return ids.reshape([n for d, n in enumerate(ids.shape) if d not in gone])
