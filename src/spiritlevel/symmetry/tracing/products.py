"""Rules of operations that multiply and sum: linear maps, convolutions, look-ups, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from spiritlevel.symmetry.tracing.equations import WILD, ZERO
from spiritlevel.symmetry.tracing.state import Reason, Scales, Walk


def add_bias(walk: Walk, out: Tensor, bias: Any, dim: int) -> Tensor:
    """out + b: a bias moves with its channel, unless it was found to be dead."""
    if bias is None:
        return out
    ids = walk.single(bias)
    shape = [1] * out.ndim
    shape[dim] = -1
    return walk.system.choose(out, ids.reshape(shape) if ids.ndim == 1 else ids)


def linear(walk: Walk, input: Any, weight: Any, bias: Any = None) -> Scales:
    return walk.made(mapped(walk, input, weight, bias))


def mapped(walk: Walk, input: Any, weight: Any, bias: Any) -> Tensor:
    """y_j = sum_k W_jk x_k + b_j."""
    a = [t.unsqueeze(-2) for t in walk.terms(input)]
    out = walk.contract([weight], a + walk.terms(weight), [-1]).squeeze(-1)
    if weight.ndim == 1:
        out = out.squeeze(-1)
    return add_bias(walk, out, bias, -1)


def matmul(walk: Walk, input: Any, other: Any) -> Scales:
    """Matrix products with broadcast batches; vectors as torch.matmul takes them."""
    _note_attention(walk, input, other)
    a, b = walk.terms(input), walk.terms(other)
    left, right = a[0].ndim == 1, b[0].ndim == 1
    a = [t.unsqueeze(0) if left else t for t in a]
    b = [t.unsqueeze(-1) if right else t for t in b]
    terms = [t.unsqueeze(-2) for t in a] + [t.mT.unsqueeze(-3) for t in b]
    out = walk.contract([input, other], terms, [-1]).squeeze(-1)
    if right:
        out = out.squeeze(-1)
    if left:
        out = out.squeeze(-1 if right else -2)
    return walk.made(out)


def _note_attention(walk: Walk, input: Any, other: Any) -> None:
    """Activations times activations: scores of queries and keys, or weights times values."""
    both = [v for v in (input, other) if isinstance(v, Scales) and len(v.terms) == 1]
    if len(both) < 2 or walk.meets_parameter:
        return
    weights = bool((walk.system.canonical(both[0].terms[0]) == ZERO).all())
    for value in both:
        walk.note("value-output" if weights else "query-key", value)


def addmm(
    walk: Walk, self: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> Scales:
    out = matmul(walk, mat1, mat2).terms[0]
    return walk.made(walk.system.choose(out, walk.single(self)))


def einsum(walk: Walk, equation: str, tensors: list[Any], path: Any = None) -> Scales:
    """Sums of products by letters; other forms are left to blocking."""
    if "->" not in equation or "." in equation:
        raise NotImplementedError
    left, result = equation.replace(" ", "").split("->")
    words = left.split(",")
    if any(len(set(word)) < len(word) for word in words):
        raise NotImplementedError
    summed = sorted(set("".join(words)) - set(result))
    order = list(result) + summed
    terms = []
    for word, value in zip(words, tensors, strict=True):
        present = [word.index(letter) for letter in order if letter in word]
        spread = tuple(slice(None) if letter in word else None for letter in order)
        terms += [term.permute(present)[spread] for term in walk.terms(value)]
    dims = list(range(len(result), len(order)))
    out = walk.contract(list(tensors), terms, dims)
    return walk.made(out.reshape(out.shape[: len(result)]))


def convolution(*, transposed: bool) -> Callable[..., Scales]:
    """Kernels (out, in / groups), or (in, out / groups) where transposed.

    One equation per pair of channels: padding and positions add none that are new.
    """

    def rule(walk: Walk, input: Any, weight: Any, bias: Any = None, *_: Any, **__: Any) -> Scales:
        groups = walk.option("groups") or 1
        flat = input.ndim == weight.ndim - 1  # without a batch
        images = Scales(tuple(t.unsqueeze(0) if flat else t for t in walk.terms(input)))
        x = walk.tied(images, list(range(2, images.ndim))).flatten(1)
        kernel = Scales(tuple(_taps_tied(walk, weight)))
        laid = [t.unflatten(0, (groups, -1)) for t in kernel.terms]
        laid = [t.mT.unsqueeze(0) if transposed else t.unsqueeze(0) for t in laid]
        split = x.reshape(x.shape[0], groups, 1, -1)
        out = walk.contract([kernel], [split, *laid], [-1])
        out = add_bias(walk, out.reshape(x.shape[0], -1), bias, 1)
        out = out[0] if flat else out
        return walk.made(out[(...,) + (None,) * (weight.ndim - 2)])

    return rule


def _taps_tied(walk: Walk, weight: Any) -> list[Tensor]:
    terms = walk.terms(weight)
    dims = list(range(2, weight.ndim))
    if all(t.stride(d) == 0 or t.shape[d] == 1 for t in terms for d in dims):
        return [t[(..., *(0 for _ in dims))] for t in terms]
    return [walk.tied(weight, dims)[(..., *(0 for _ in dims))]]


def embedding(
    walk: Walk,
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Scales:
    """Rows looked up by the user's tokens share one scale per column; constants pick theirs."""
    if isinstance(indices, Tensor):
        return Scales(tuple(t[indices] for t in walk.terms(weight)))
    return walk.made(walk.tied(weight, [0])[0])


def index(walk: Walk, self: Any, indices: list[Any]) -> Scales:
    """x[i, j, ...]: constants pick, what the user gives ties."""
    if all(i is None or isinstance(i, Tensor) for i in indices):
        picks = tuple(slice(None) if i is None else i for i in indices)
        return Scales(tuple(t[picks] for t in walk.terms(self)))
    dims = [d for d, i in enumerate(indices) if i is not None]
    if dims != list(range(len(dims))):
        raise NotImplementedError
    tied = walk.tied(self, dims)
    return walk.made(tied[(0,) * len(dims)])


def index_select(walk: Walk, self: Any, dim: int, index: Any) -> Scales:
    if isinstance(index, Tensor):
        return Scales(tuple(t.index_select(dim, index) for t in walk.terms(self)))
    return walk.made(walk.tied(self, [dim]))


def gather(walk: Walk, self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Scales:
    others = [d for d in range(self.ndim) if d != dim % self.ndim]
    if isinstance(index, Tensor):
        return Scales((walk.single(self).contiguous().gather(dim, index),))
    if tuple(index.shape[d] for d in others) != tuple(self.shape[d] for d in others):
        raise NotImplementedError  # gather cuts the other axes
    return walk.made(walk.tied(self, [dim]))


def attention(
    walk: Walk,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Scales:
    """softmax(q k' + mask) v: q_i + k_i = 0 for every dimension i; values share over the tokens."""
    q, k, v = walk.single(query), walk.single(key), walk.single(value)
    if enable_gqa and k.shape[-3] != q.shape[-3]:
        repeats = q.shape[-3] // k.shape[-3]
        k, v = (t.repeat_interleave(repeats, dim=-3) for t in (k, v))
    walk.note("query-key", q)
    walk.note("value-output", v)
    scores = walk.contract([], [q.unsqueeze(-2), k.unsqueeze(-3)], [-1]).squeeze(-1)
    walk.block(Scales((scores,)), "softmax", Reason.BENDS)
    if isinstance(attn_mask, Scales):
        walk.block(attn_mask, "softmax", Reason.BENDS)
    spread = walk.system.tie(v, [-2])
    if bool((spread == WILD).any()):
        raise NotImplementedError
    return walk.made(spread)
