"""Which slices of which parameters belong to one unit: a walk with labels instead of scales.

Every row and column of a matrix has a label; an operation says which labels are one unit. So a
hidden unit is found whatever its activation, with its bias, its gain and its running statistics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spiritlevel.symmetry.tracing import recurrent
from spiritlevel.symmetry.tracing.equations import WILD, ZERO, constant_along
from spiritlevel.symmetry.tracing.reductions import dropped, reduced_dims
from spiritlevel.symmetry.tracing.state import Heads, Scales, Walk, schema


def elementwise(walk: Walk, *args: Any, **kwargs: Any) -> Scales:
    """Elements that meet are of one unit; a constant may not tell units apart."""
    moving = [v for v in (*args, *kwargs.values()) if isinstance(v, Scales)]
    label = walk.single(moving[0])
    for value in moving[1:]:
        label = walk.system.choose(label, walk.single(value))
    label = walk.system.canonical(label)
    for constant in (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)):
        _unmarked(label, constant)
    return walk.made(label)


def _unmarked(label: Tensor, constant: Tensor) -> None:
    """Raise unless the constant is the same for all units that it meets."""
    for back in range(1, min(label.ndim, constant.ndim) + 1):
        varies = bool((constant != constant.narrow(-back, 0, 1)).any())
        if varies and not constant_along(label, [-back]):
            raise NotImplementedError


def linear(walk: Walk, input: Any, weight: Any, bias: Any = None) -> Scales:
    return walk.made(_mapped(walk, input, weight, bias))


def addmm(walk: Walk, self: Any, mat1: Any, mat2: Any, **_: Any) -> Scales:
    turned = Scales(tuple(t.mT for t in _matrix(mat2)))
    return walk.made(_mapped(walk, mat1, turned, self))


def _mapped(walk: Walk, input: Any, weight: Any, bias: Any) -> Tensor:
    """The columns are the units that come in, the rows those that go out."""
    rows, columns = _sides(_matrix(weight))
    label = walk.single(input)
    walk.system.equate_all(columns[0].expand(label.shape[-1]), label)
    out = rows[:, 0]
    if bias is not None:
        out = walk.system.choose(out, walk.single(bias))
    return out


def _matrix(weight: Any) -> tuple[Tensor, ...]:
    if not isinstance(weight, Scales) or len(weight.terms) != 2 or weight.ndim != 2:
        raise NotImplementedError
    return weight.terms


def _sides(terms: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The term of the rows and that of the columns."""
    first, second = terms
    if constant_along(first, [1]) and constant_along(second, [0]):
        return first, second
    if constant_along(first, [0]) and constant_along(second, [1]):
        return second, first
    raise NotImplementedError


def matmul(walk: Walk, input: Any, other: Any) -> Scales:
    """With a matrix of parameters, or the two products of hand-written attention."""
    if isinstance(other, Scales) and len(other.terms) == 2:
        return addmm(walk, None, input, other)
    return walk.made(_attended(walk, walk.single(input), walk.single(other)))


def _attended(walk: Walk, first: Tensor, second: Tensor) -> Tensor:
    """Scores of queries and keys, or weights times values, (..., heads, tokens, dimensions)."""
    a, b = (walk.system.canonical(t) for t in (first, second))
    if bool((a == ZERO).all()) and b.ndim > 1 and constant_along(b, [-2]):
        walk.heads.append(Heads(walk.module, None, None, _per_head(b)))
        return b[..., :1, :]
    if a.ndim == 4 and constant_along(a, [-2]) and constant_along(b, [-1]):
        walk.heads.append(Heads(walk.module, _per_head(a), _per_head(b.mT), None))
        return torch.tensor(ZERO)
    raise NotImplementedError


def einsum(walk: Walk, equation: str, tensors: Any, path: Any = None) -> Scales:
    """A matrix product of two activations whatever the order of its axes."""
    left, _, result = equation.replace(" ", "").partition("->")
    words = left.split(",")
    if len(words) != 2 or "." in left or any(len(set(w)) < len(w) for w in words):
        raise NotImplementedError
    batch = [c for c in result if c in words[0] and c in words[1]]
    summed = [c for c in words[0] if c in words[1] and c not in result]
    rows, columns = ([c for c in w if c not in o] for w, o in (words, words[::-1]))
    order = [*batch, *rows, *columns]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or set(order) != set(result):
        raise NotImplementedError
    layouts = ([*batch, *rows, *summed], [*batch, *summed, *columns])
    given = [
        walk.single(v).permute([w.index(c) for c in layout])
        for v, w, layout in zip(tensors, words, layouts, strict=True)
    ]
    sizes = [walk.shape[result.index(c)] for c in order]
    out = _attended(walk, given[0], given[1]).expand(sizes)
    return walk.made(out.permute([order.index(c) for c in result]))


def attention(walk: Walk, query: Any, key: Any, value: Any, *_: Any, **options: Any) -> Scales:
    q, k, v = (walk.system.canonical(walk.single(x)) for x in (query, key, value))
    if not all(constant_along(t, [-2]) for t in (q, k, v)):
        raise NotImplementedError
    if options.get("enable_gqa") and k.shape[-3] != q.shape[-3]:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], dim=-3) for t in (k, v))
    walk.heads.append(Heads(walk.module, _per_head(q), _per_head(k), _per_head(v)))
    return walk.made(v[..., :1, :])


def _per_head(ids: Tensor) -> Tensor | None:
    """(heads, dimensions), where the heads are the third axis from behind."""
    return ids[(0,) * (ids.ndim - 3)][:, 0] if ids.ndim >= 3 else None


def convolve(walk: Walk, input: Any, weight: Any, bias: Any, *_: Any) -> Scales:
    """Kernels (out, in); (in, out) where transposed, the only kind with an `output_padding`."""
    taps = tuple(range(2, weight.ndim))
    if walk.option("groups") != 1 or len(walk.terms(weight)) != 2 or input.ndim != weight.ndim:
        raise NotImplementedError
    if not all(constant_along(t, taps) for t in weight.terms):
        raise NotImplementedError
    label = walk.system.canonical(walk.single(input))
    if not constant_along(label, taps):
        raise NotImplementedError
    flat = Scales(tuple(t[(..., *(0 for _ in taps))] for t in weight.terms))
    rows, columns = _sides(flat.terms)
    sides = [rows[:, 0], columns[0]]
    out, into = sides if walk.option("output_padding") is None else sides[::-1]
    walk.system.equate_all(into, label[(..., *(0 for _ in taps))])
    out = out if bias is None else walk.system.choose(out, walk.single(bias))
    return walk.made(out.reshape(-1, *(1 for _ in taps)))


def embedding(walk: Walk, weight: Any, indices: Any, *_: Any, **__: Any) -> Scales:
    rows, columns = _sides(_matrix(weight))
    walk.block(Scales((rows[:, 0],)), "look-up")
    return walk.made(columns[0])


def reduces(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    """Sums over all units do not know their order; over other axes the labels stay."""
    dims, keepdim = reduced_dims(walk, self.ndim)
    label = walk.system.canonical(walk.single(self))
    if not constant_along(label, dims):
        return walk.made(torch.tensor(WILD))
    gone = {d % label.ndim for d in dims}
    small = label[tuple(slice(0, 1) if d in gone else slice(None) for d in range(label.ndim))]
    return walk.made(small if keepdim else dropped(small, dims))


def pools(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    label = walk.system.canonical(walk.single(self))
    spatial = list(range(2, label.ndim))
    if not constant_along(label, spatial):
        raise NotImplementedError
    return walk.made(label[(slice(None), slice(None), *(slice(0, 1) for _ in spatial))])


def last_norm(
    walk: Walk, input: Any, shape: Any, weight: Any = None, bias: Any = None, *_: Any, **__: Any
) -> Scales:
    return elementwise(walk, *(v for v in (input, weight, bias) if isinstance(v, Scales)))


def channel_norm(walk: Walk, input: Any, *args: Any) -> Any:
    """Gains, biases and statistics belong to their channels; groups are told apart by the proof."""
    label = walk.single(input)
    for key in ("weight", "bias", "running_mean", "running_var"):
        value = _given(walk, key, args)
        if isinstance(value, Tensor):
            raise NotImplementedError  # statistics that cannot move along
        if isinstance(value, Scales):
            ids = walk.single(value)
            label = walk.system.choose(label, ids.reshape(-1, *(1 for _ in range(label.ndim - 2))))
    assert walk.node is not None
    made = walk.node.meta["val"]
    if isinstance(made, Tensor):
        return walk.made(label)
    return walk.made(label, made[0].shape), *(walk.still(v.shape) for v in made[1:])


def _given(walk: Walk, key: str, args: tuple[Any, ...]) -> Any:
    """An argument behind the first, by its name."""
    assert walk.node is not None
    names = [a.name for a in schema(walk.node)][1:]
    return args[names.index(key)] if key in names else None


def glu(walk: Walk, self: Any, dim: int) -> Scales:
    """A unit and its gate are one."""
    return walk.made(walk.system.choose(*walk.single(self).chunk(2, dim)))


def prelu(walk: Walk, self: Any, weight: Any) -> Scales:
    """One slope for all units tells none apart; slopes per channel move along."""
    if weight.shape.numel() == 1:
        walk.block(weight, "prelu slope")
        return walk.made(walk.single(self))
    slopes = walk.single(weight).reshape(-1, *(1 for _ in range(self.ndim - 2)))
    return walk.made(walk.system.choose(walk.single(self), slopes))


def unit_softmax(walk: Walk, self: Any, *_: Any, **__: Any) -> Scales:
    return walk.made(walk.single(self))


rnn, rnn_cell = recurrent.layers(_mapped), recurrent.cell(_mapped)
