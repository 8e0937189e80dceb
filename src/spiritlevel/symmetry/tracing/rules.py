"""Rules of operations element by element: what they ask of log-scales that go in and come out.

A rule gets the walk and all arguments of the operation as in its schema, defaults filled in:
`Scales` for what depends on parameters or inputs, plain values for constants. It states its
equations and returns the scales of the result. Every equation is an equivariance of the
operation, so whatever solves them all is a symmetry. A rule that meets a case it does not know
raises NotImplementedError, and what no rule knows is blocked: at worst a symmetry is missed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.symmetry.tracing import reductions
from spiritlevel.symmetry.tracing.equations import WILD, ZERO, squash
from spiritlevel.symmetry.tracing.record import Rule
from spiritlevel.symmetry.tracing.state import TINY, Norm, Reason, Scales, Walk


def passes(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    """f(e^s x) = e^s f(x), element by element."""
    return walk.made(walk.single(self))


def converts(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    """Another precision changes nothing; truth asks only whether x is 0; integers round."""
    assert walk.node is not None
    if walk.node.meta["val"].dtype == torch.bool:
        return walk.still(walk.shape)
    reductions.refuse_rounding(walk)
    return passes(walk, self)


def drops_alpha(walk: Walk, input: Any, p: float, train: bool) -> Scales:
    """An active one puts a constant in the place of what it drops."""
    if train:
        raise NotImplementedError
    return passes(walk, input)


def drops_out(walk: Walk, input: Any, *_: Any, **__: Any) -> tuple[Scales, Scales]:
    """The result and its mask."""
    assert walk.node is not None
    result, mask = walk.node.meta["val"]
    return walk.made(walk.single(input), result.shape), walk.still(mask.shape)


def rectifies(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    walk.note("hidden", self)
    return passes(walk, self)


def prelu(walk: Walk, self: Any, weight: Any) -> Scales:
    walk.block(weight, "prelu slope", Reason.BENDS)
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


def hardtanh(walk: Walk, self: Any, min_val: Any, max_val: Any) -> Scales:
    return clamp(walk, self, min_val, max_val)


def clipped(walk: Walk, self: Any, min_val: float, max_val: float) -> Scales:
    """Odd where it clips at a number and its negative."""
    if min_val != -max_val:
        raise NotImplementedError
    return passes(walk, self)


def clamp_max(walk: Walk, self: Any, max: Any) -> Scales:
    return clamp(walk, self, None, max)


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


def keeps_sign(walk: Walk, self: Any) -> Scales:
    """The sign of an infinity is 1, which fits no other scale: so nothing here is wild."""
    return walk.still(walk.shape)


def of_degree(degree: int | Fraction) -> Rule:
    return lambda walk, self, *_, **__: walk.power(self, degree)


def add(walk: Walk, self: Any, other: Any, alpha: Any = 1) -> Scales:
    """What is added has one scale; a constant fixes it, and a tiny one is an eps."""
    number = None if alpha != 1 else _number(other)
    if not isinstance(self, Scales):
        self, other, number = other, self, _number(self)
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
        walk.block(Scales((ids,)), "eps", Reason.EPS)
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
    walk.block(weight, "lerp weight", Reason.BENDS)
    return walk.made(walk.system.choose(walk.single(self), walk.single(end)))


def glu(walk: Walk, self: Any, dim: int = -1) -> Scales:
    """a * sigmoid(b): the gate is blocked, the linear branch is free."""
    linear, gate = walk.single(self).chunk(2, dim)
    walk.block(Scales((gate,)), "sigmoid", Reason.BENDS)
    walk.note("gate", linear)
    return walk.made(linear)


def softmax(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    walk.note("query-key", self)
    walk.block(self, "softmax", Reason.BENDS)
    return walk.still(walk.shape)


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
    """ones_like and its kin depend on the shape alone."""
    return walk.still(walk.shape)


def zeros(walk: Walk, *_: Any, **__: Any) -> Scales:
    return walk.made(torch.tensor(WILD))


def replaced(walk: Walk, self: Any, other: Any, *_: Any, **__: Any) -> Scales:
    """Another tensor or number in the place and the shape of this one."""
    reductions.refuse_rounding(walk)
    return walk.made(walk.single(other))


def scattered(walk: Walk, self: Any, src: Any, *where: Any) -> Scales:
    """A copy, with a slice of it replaced: done with the ids."""
    assert walk.node is not None
    action: Any = walk.node.target
    ids = [walk.single(v).contiguous() for v in (self, src)]
    return Scales((squash(action(*ids, *where)),))


def put(walk: Walk, self: Any, indices: Any, values: Any, accumulate: bool) -> Scales:
    """x[i, j, ...] = y for constant places."""
    if accumulate or not all(i is None or isinstance(i, Tensor) for i in indices):
        raise NotImplementedError
    ids = walk.single(self).contiguous()
    return Scales((squash(torch.index_put(ids, list(indices), walk.single(values))),))
