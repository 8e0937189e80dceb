"""The one table of what is known of every operation of torch; all walks ask it.

Names are those of `torch.ops.aten`; operations of other libraries are called "library::name".
Adding an operation is one record here, with rules from the module of their subject: `rules`,
`products`, `reductions`, `norms`, `recurrent` (scales and signs), `labels`, `forms` (degree),
`bounds` (interval), `squares` (paths), `shifts`, `moves`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from spiritlevel.symmetry.tracing import (
    bounds,
    forms,
    labels,
    moves,
    norms,
    products,
    recurrent,
    reductions,
    rules,
    shifts,
    squares,
)
from spiritlevel.symmetry.tracing.bounds import increasing
from spiritlevel.symmetry.tracing.forms import factors, linear, step
from spiritlevel.symmetry.tracing.record import Operation, Rule
from spiritlevel.symmetry.tracing.shifts import Shift
from spiritlevel.symmetry.tracing.squares import runs


def _all(names: str, operation: Operation) -> dict[str, Operation]:
    return dict.fromkeys(names.split(), operation)


def _passes(**more: Any) -> Operation:
    """f(s x) = s f(x) for every s, element by element."""
    return _linear(rules.passes, labels=labels.elementwise, **more)


def _rectifies(**more: Any) -> Operation:
    """f(s x) = s f(x) for s > 0, element by element."""
    return Operation(scales=rules.rectifies, labels=labels.elementwise, degree=linear, **more)


def _linear(rule: Rule, **more: Any) -> Operation:
    """Linear, and its equations hold for factors of either sign."""
    return Operation(scales=rule, signs=rule, degree=linear, **more)


def _signed(rule: Rule, **more: Any) -> Operation:
    """Its equations hold for factors of either sign."""
    return Operation(scales=rule, signs=rule, **more)


def _moves(action: Any = moves.as_it_is, **more: Any) -> Operation:
    """Only moves elements, for whole numbers too."""
    return Operation(moves=action, degree=linear, **more)


def _bends(**more: Any) -> Operation:
    return Operation(bends=True, **more)


_COPIES: dict[str, Any] = {"interval": bounds.moved, "paths": squares.copies, "renames": True}
_FOLLOWS = Shift(follows=shifts.always)

ELEMENTWISE = {
    **_all("alias clone", _passes(**_COPIES, shift=Shift(shifts.always, scores=shifts.stay))),
    "detach": _passes(**_COPIES, shift=_FOLLOWS),
    "contiguous": _passes(paths=squares.copies, shift=_FOLLOWS),
    "neg": _passes(interval=bounds.neg, writes=True, shift=_FOLLOWS),
    "positive": Operation(scales=rules.passes, labels=labels.elementwise, degree=linear),
    "lift_fresh_copy": _passes(),
    "lift_fresh": Operation(interval=bounds.moved),
    "to": _linear(
        rules.converts, labels=labels.elementwise, renames=True, paths=squares.copies,
        shift=Shift(shifts.another_precision, scores=shifts.stay_floats),
    ),
    "_to_copy": _linear(
        rules.converts, labels=labels.elementwise, interval=bounds.converted, paths=squares.copies,
        shift=Shift(shifts.another_precision, scores=shifts.stay_floats),
    ),
    "type_as": Operation(scales=rules.converts, labels=labels.elementwise, degree=linear),
    "getitem": Operation(degree=linear, renames=True),  # of several results
    **_all("dropout feature_dropout", _passes(paths=squares.dropout)),
    "native_dropout": _linear(rules.drops_out),
    **_all(
        "alpha_dropout feature_alpha_dropout", Operation(scales=rules.drops_alpha, degree=linear)
    ),
    # rectifiers
    "relu": _rectifies(interval=increasing, paths=runs, writes=True),
    "leaky_relu": _rectifies(interval=bounds.leaky, paths=runs, writes=True),
    "rrelu": _rectifies(),
    "abs": _rectifies(interval=bounds.absolute, writes=True),
    "prelu": Operation(
        scales=rules.prelu, labels=labels.prelu, degree=factors("self", "weight")
    ),
    **_all(
        "clamp clamp_min",
        _bends(scales=rules.clamp, degree=linear, interval=increasing, writes=True),
    ),
    "clamp_max": _bends(scales=rules.clamp_max, degree=linear, interval=increasing, writes=True),
    "clip": Operation(scales=rules.clamp, degree=linear),
    "hardtanh": _bends(
        scales=rules.hardtanh, signs=rules.clipped, degree=linear, interval=increasing, writes=True
    ),
    "threshold": _bends(scales=rules.threshold, degree=linear),
    "nan_to_num": Operation(degree=linear),
    # functions that let no positive factor through; odd ones let a sign through
    "tanh": _bends(signs=rules.passes, interval=increasing, writes=True),
    **_all("sin erf", _bends(signs=rules.passes)),
    **_all("asinh sinh atan tan", Operation(signs=rules.passes)),
    **_all("softshrink hardshrink", _bends(signs=rules.passes, degree=linear)),
    "hardsigmoid": _bends(degree=linear),
    **_all("exp sigmoid", _bends(interval=increasing, writes=True)),
    **_all("expm1 log log1p logsumexp softplus", _bends(interval=increasing)),
    **_all(
        "celu cos elu gelu hardswish log_sigmoid mish selu silu gru gru_cell lstm lstm_cell",
        _bends(),
    ),
    "logaddexp": Operation(interval=increasing),
    # powers
    "pow": Operation(scales=rules.power, interval=bounds.power),
    "square": _signed(rules.of_degree(2)),
    "reciprocal": _signed(rules.of_degree(-1)),
    "sqrt": Operation(scales=rules.of_degree(Fraction(1, 2)), interval=increasing),
    "rsqrt": Operation(scales=rules.of_degree(Fraction(-1, 2))),
    # steps
    **_all("ceil floor round trunc", _bends(degree=step)),
    **_all("sgn sign", Operation(scales=rules.keeps_sign, degree=step)),
    **_all("gt lt ge le eq ne", Operation(scales=rules.compares)),
}  # fmt: skip

_QUOTIENT: dict[str, Any] = {"degree": forms.quotient, "paths": squares.scale}
_FACTORS: dict[str, Any] = {"degree": factors("self", "other"), "paths": squares.scale}
_SCALED = Shift(shifts.by_number, scores=shifts.scaled)
_ADDED = Shift(scores=shifts.added)

OF_SEVERAL = {
    "add": _linear(
        rules.add, interval=bounds.add, writes=True, paths=squares.add, shift=_ADDED
    ),
    "sub": _linear(rules.add, interval=bounds.sub, writes=True, shift=_ADDED),
    "rsub": _linear(rules.add, interval=bounds.rsub),
    "mul": _signed(rules.mul, **_FACTORS, interval=bounds.mul, writes=True, shift=_SCALED),
    "multiply": _signed(rules.mul, **_FACTORS),
    "div": _signed(rules.div, **_QUOTIENT, interval=bounds.div, writes=True, shift=_SCALED),
    "divide": _signed(rules.div, **_QUOTIENT),
    "true_divide": Operation(scales=rules.div, **_QUOTIENT),
    "addcmul": _signed(rules.addcmul, degree=factors("tensor1", "tensor2")),
    "lerp": Operation(scales=rules.lerp, degree=forms.lerp),
    "glu": _signed(rules.glu, labels=labels.glu),
    **_all(
        "maximum minimum",
        Operation(scales=reductions.extremes, degree=linear, interval=increasing),
    ),
    **_all("max min", Operation(scales=reductions.extremes, degree=linear)),
    "where": Operation(
        scales=rules.where, degree=linear, interval=increasing, shift=Shift(scores=shifts.masked)
    ),
    "masked_fill": Operation(
        scales=rules.masked_fill, degree=linear, interval=increasing, writes=True,
        shift=Shift(scores=shifts.masked),
    ),
    "softmax": _signed(rules.softmax, labels=labels.unit_softmax, shift=Shift(scores=shifts.end)),
    "_softmax": _signed(
        rules.softmax, labels=labels.unit_softmax, interval=bounds.softmax,
        shift=Shift(scores=shifts.end),
    ),
    "log_softmax": _signed(rules.softmax),
    "_log_softmax": _signed(rules.softmax, interval=bounds.log_softmax),
    "_safe_softmax": Operation(scales=rules.softmax),
}  # fmt: skip

REDUCTIONS = {
    "sum": _linear(reductions.reduces, labels=labels.reduces, interval=increasing, paths=runs),
    "mean": _linear(
        reductions.reduces, labels=labels.reduces, interval=increasing, paths=squares.mean
    ),
    **_all(
        "amax amin",
        Operation(
            scales=reductions.reduces, labels=labels.reduces, degree=linear, interval=increasing
        ),
    ),
    "linalg_vector_norm": Operation(
        scales=reductions.vector_norm, labels=labels.reduces, interval=bounds.of_size
    ),
    "norm": Operation(scales=reductions.vector_norm),
    "var": Operation(scales=reductions.variance, labels=labels.reduces),
    "std": Operation(scales=reductions.reduces, labels=labels.reduces),
    "cumsum": _linear(reductions.cumulates, interval=increasing),
    **_all("topk sort", Operation(scales=reductions.selects, degree=linear)),
    **_all("argmax argmin argsort", Operation(scales=reductions.argument)),
}


def _pooling(n: int) -> dict[str, Operation]:
    """Pooling and resampling along n axes."""
    rule = reductions.pools(n)
    largest = Operation(scales=rule, labels=labels.pools, degree=linear)
    return {
        f"max_pool{n}d": Operation(
            scales=rule, labels=labels.pools, degree=linear, paths=squares.max_pool(n)
        ),
        f"adaptive_max_pool{n}d": largest,
        f"avg_pool{n}d": _linear(
            rule, labels=labels.pools, interval=increasing, paths=squares.average_pool(n)
        ),
        f"adaptive_avg_pool{n}d": _linear(
            rule, labels=labels.pools, paths=squares.adaptive_pool(n)
        ),
        f"upsample_nearest{n}d": Operation(scales=rule, degree=linear),
    }


def _indexed(n: int) -> Operation:
    return Operation(scales=reductions.pools(n), degree=linear, interval=bounds.pooled)


POOLING = {
    **_pooling(1),
    **_pooling(2),
    **_pooling(3),
    "max_pool1d_with_indices": Operation(degree=linear),
    "max_pool2d_with_indices": _indexed(2),
    "max_pool3d_with_indices": _indexed(3),
    **_all("_adaptive_avg_pool2d _adaptive_avg_pool3d", Operation(interval=increasing)),
    "upsample_linear1d": Operation(scales=reductions.pools(1), degree=linear),
    **_all(
        "upsample_bilinear2d upsample_bicubic2d",
        Operation(scales=reductions.pools(2), degree=linear),
    ),
    "upsample_trilinear3d": Operation(scales=reductions.pools(3), degree=linear),
}

MOVES = {
    **_all("view _unsafe_view", _moves(moves.by_reshape, interval=bounds.moved)),
    **_all(
        "reshape permute transpose t squeeze unsqueeze expand slice select split "
        "split_with_sizes unbind flip repeat narrow diagonal",
        _moves(interval=bounds.moved),
    ),
    **_all(
        "adjoint atleast_2d broadcast_to chunk expand_as flatten hsplit mH mT movedim numpy_T "
        "repeat_interleave reshape_as roll rot90 swapaxes tensor_split tile tril triu unflatten "
        "unfold view_as vsplit",
        _moves(),
    ),
    **_all("channel_shuffle im2col pixel_shuffle pixel_unshuffle", _moves(moves.in_floats)),
    "cat": _moves(moves.joined, interval=bounds.moved),
    "concat": _moves(moves.joined),
    "stack": _moves(interval=bounds.moved),
    "_reshape_alias": Operation(interval=bounds.moved),
    "col2im": Operation(degree=linear),
}

_MADE: dict[str, Any] = {"degree": step, "interval": bounds.constant}

PLACES = {
    "embedding": _linear(products.embedding, labels=labels.embedding, matrix="last"),
    "index": _linear(products.index, interval=increasing, paths=runs, matrix="last"),
    "index_select": _linear(products.index_select, interval=increasing),
    "gather": _linear(products.gather, interval=increasing),
    "pad": _linear(rules.padded, labels=rules.padded, paths=squares.pad),
    "constant_pad_nd": _linear(
        rules.constant_pad,
        labels=rules.constant_pad,
        interval=increasing,
        paths=squares.constant_pad,
    ),
    "index_put": _linear(rules.put),
    **_all("copy fill", _linear(rules.replaced)),
    **_all("slice_scatter select_scatter", _linear(rules.scattered)),
    "diagonal_scatter": Operation(scales=rules.scattered, degree=linear),
    "scatter": Operation(interval=bounds.scattered),
    "ones_like": _signed(rules.like, labels=rules.like, **_MADE),
    **_all("full_like new_ones", _signed(rules.like, **_MADE)),
    "new_full": Operation(scales=rules.like, **_MADE),
    "zeros_like": _signed(rules.zeros, labels=rules.zeros, **_MADE),
    "new_zeros": _signed(rules.zeros, **_MADE),
    "zero": _signed(rules.zeros, degree=step),
    **_all("empty_like new_empty", Operation(interval=bounds.constant)),
}


def _convolution(*, transposed: bool) -> Operation:
    return _signed(
        products.convolution(transposed=transposed), labels=labels.convolve,
        degree=factors("input", "weight"), paths=runs, matrix="first", bias="bias", channels=1,
    )  # fmt: skip


def _product(*names: str, **more: Any) -> Operation:
    return _signed(products.matmul, degree=factors(*names), **more)


_MATRICES: dict[str, Any] = {"labels": labels.matmul, "matrix": "last"}

PRODUCTS = {
    "linear": _signed(
        products.linear, labels=labels.linear, degree=factors("input", "weight"), paths=runs,
        matrix="last", bias="bias", channels=-1,
    ),
    **_all("conv1d conv2d conv3d", _convolution(transposed=False)),
    **_all("conv_transpose1d conv_transpose2d conv_transpose3d", _convolution(transposed=True)),
    "convolution": Operation(interval=bounds.convolution),
    "matmul": _product("self", "other", **_MATRICES, paths=runs, shift=Shift(keys="other")),
    "mm": _product("self", "mat2", **_MATRICES, paths=runs, interval=bounds.matmul),
    "bmm": _product(
        "self", "mat2", **_MATRICES, interval=bounds.matmul, shift=Shift(keys="mat2")
    ),
    "mv": _product("self", "vec", interval=bounds.matmul),
    "dot": _product("self", "tensor", interval=bounds.matmul),
    "vdot": _product("self", "other"),
    "addmm": _signed(
        products.addmm, labels=labels.addmm, degree=factors("mat1", "mat2"),
        interval=bounds.addmm, paths=squares.addmm, matrix="last", bias="self", channels=-1,
    ),
    "baddbmm": _signed(
        products.addmm, degree=factors("batch1", "batch2"), interval=bounds.addmm, matrix="last",
        bias="self",
    ),
    "addmv": Operation(interval=bounds.addmm),
    "bilinear": Operation(degree=factors("input1", "input2", "weight")),
    "einsum": _signed(products.einsum, labels=labels.einsum, degree=forms.einsum, matrix="last"),
    "scaled_dot_product_attention": _signed(
        products.attention, labels=labels.attention,
        degree=forms.bending("query", "key", "attn_mask"), shift=Shift(blind=shifts.of_keys),
    ),
    "rnn_relu": Operation(scales=recurrent.rnn, labels=labels.rnn, matrix="last"),
    "rnn_relu_cell": Operation(scales=recurrent.rnn_cell, labels=labels.rnn_cell, matrix="last"),
    "rnn_tanh": _bends(signs=recurrent.rnn, labels=labels.rnn, matrix="last"),
    "rnn_tanh_cell": _bends(signs=recurrent.rnn_cell, labels=labels.rnn_cell, matrix="last"),
}  # fmt: skip

_CHANNELS: dict[str, Any] = {"labels": labels.channel_norm, "degree": forms.norm}
_STATISTICS = Shift(blind=shifts.of_statistics("training"))

NORMS = {
    "layer_norm": _signed(norms.layer_norm, labels=labels.last_norm, degree=forms.norm),
    "rms_norm": _signed(norms.rms_norm, labels=labels.last_norm, degree=forms.norm),
    "group_norm": _signed(norms.group_norm, **_CHANNELS),
    "instance_norm": _signed(
        norms.instance_norm, **_CHANNELS,
        shift=Shift(blind=shifts.of_statistics("use_input_stats")),
    ),
    "batch_norm": _signed(
        norms.batch_norm, **_CHANNELS, paths=squares.batch_norm, shift=_STATISTICS
    ),
    "_native_batch_norm_legit_no_training": _signed(
        norms.batch_norm_with_statistics, **_CHANNELS, interval=bounds.batch_norm,
        paths=squares.batch_norm_with_statistics,
    ),
    "_native_batch_norm_legit_functional": Operation(
        scales=norms.batch_norm_without_writes, **_CHANNELS,
        paths=squares.batch_norm_without_writes, shift=_STATISTICS,
    ),
    "native_batch_norm": Operation(interval=bounds.batch_norm),
    "_weight_norm": Operation(
        scales=norms.weight_norm, degree=forms.bending("v"), matrix="first"
    ),
}  # fmt: skip

LOSSES = {
    **_all("nll_loss_forward nll_loss2d_forward", Operation(interval=bounds.nll)),
    **_all("mse_loss smooth_l1_loss huber_loss", Operation(interval=bounds.of_distance)),
    "binary_cross_entropy_with_logits": Operation(interval=bounds.bernoulli),
}

OPERATIONS: dict[str, Operation] = {
    **ELEMENTWISE,
    **OF_SEVERAL,
    **REDUCTIONS,
    **POOLING,
    **MOVES,
    **PLACES,
    **PRODUCTS,
    **NORMS,
    **LOSSES,
}
