"""Exact diagonals, from one backward pass per output instead of one product per parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import hessian as second_derivative
from torch.func import vjp, vmap

from spiritlevel import batches as frozen
from spiritlevel.batches import Batch
from spiritlevel.errors import SpiritlevelError
from spiritlevel.objective import Objective
from spiritlevel.scope import set_apart
from spiritlevel.tensors import flatten, map_tensors

MOST_OUTPUTS = 128  # of one example
CONCAVE = 1e-4  # relative: less is rounding
SOME = 16  # examples on which a loss is seen to be convex
PRODUCTS = {"linear", "conv1d", "conv2d", "conv3d", "matmul", "__matmul__", "addmm", "mm"}
PIECEWISE_LINEAR = PRODUCTS | set(
    "relu relu_ leaky_relu leaky_relu_ batch_norm dropout dropout2d max_pool1d max_pool2d "
    "max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d flatten view reshape permute transpose contiguous squeeze unsqueeze cat "
    "stack add add_ __add__ __iadd__ __radd__ sum mean pad __getitem__ __get__ size dim numel "
    "__len__ chunk split clone to float double is_floating_point".split()
)
NUMBERS_AT_ONCE = {"cpu": 2**26, "cuda": 2**30}


@set_apart()
def ggn_diagonal(objective: Objective) -> Tensor:
    """diag(G), exactly: (1/n) sum_i sum_c (S_i' J_i)_cp^2 with grad_f^2 l_i = S_i S_i'.

    For nets that are piecewise linear in each parameter (rectified ones without norms) it is the
    diagonal of the Hessian too.
    """
    outputs = _outputs(objective)
    if not objective.separable or objective.loss.on_outputs is None or outputs > MOST_OUTPUTS:
        raise SpiritlevelError(
            "the exact diagonal needs a loss that is a sum over examples, of outputs and targets, "
            f"with at most {MOST_OUTPUTS} outputs; diagonal(ggn(objective)) estimates it"
        )
    _check_convex(objective)
    room = NUMBERS_AT_ONCE.get(objective.device.type, NUMBERS_AT_ONCE["cpu"])
    at_once = max(room // (outputs * objective.size), 1)
    total = torch.zeros(objective.size, dtype=objective.dtype, device=objective.device)
    with objective.smooth():
        for batch in objective.batches:
            for start in range(0, frozen.examples(batch), at_once):
                piece = objective.here(frozen.rows(batch, slice(start, start + at_once)))
                total += _squares(objective, piece)
    return total / objective.count


def _check_convex(objective: Objective) -> None:
    """A square root of the loss's curvature exists where the loss is convex in the outputs."""
    few, ends = objective.here(objective.few(SOME)), []
    for one in frozen.singles(few) if frozen.divisible(few) else (few,):
        with torch.no_grad():
            outputs = objective.outputs(objective.params, one)
        values = torch.linalg.eigvalsh(_output_curvature(objective, outputs, one))
        ends.append((float(values[0]), float(values[-1])))
    # over all examples: what is fitted to the last digit has rounding for curvature
    if min(low for low, _ in ends) < -CONCAVE * max(high for _, high in ends):
        raise SpiritlevelError(
            "this loss is not convex in the outputs: its Gauss-Newton matrix is not positive "
            "semi-definite and has no least value over the orbit"
        )


def _outputs(objective: Objective) -> int:
    with torch.no_grad():
        return objective.outputs(objective.params, objective.few(1)).numel()


def _squares(objective: Objective, batch: Batch) -> Tensor:
    """Summed over the examples of a batch and the columns of their S."""
    point = objective.params

    def one(example: Batch) -> Tensor:
        alone = map_tensors(lambda t: t.unsqueeze(0), example)
        found: Any = vjp(lambda params: objective.outputs(params, alone), point)
        outputs, pull = found
        root = _root(objective, outputs, alone)
        rows = vmap(lambda v: flatten(pull(v.reshape(outputs.shape))[0]))(root.mT)
        return rows.square().sum(0)

    try:
        return vmap(one)(batch).sum(0)
    except (RuntimeError, ValueError):  # no batching rule: one example after another
        rows = range(frozen.examples(batch))
        return torch.stack([one(map_tensors(lambda t, i=i: t[i], batch)) for i in rows]).sum(0)


def _root(objective: Objective, outputs: Tensor, example: Batch) -> Tensor:
    """S with S S' = grad_f^2 l, for a loss that is convex in the outputs."""
    values, vectors = torch.linalg.eigh(_output_curvature(objective, outputs, example))
    return vectors * values.clamp(min=0).sqrt()


def _output_curvature(objective: Objective, outputs: Tensor, example: Batch) -> Tensor:
    """grad_f^2 of the loss of one example, a square matrix over all its outputs."""
    on_outputs = objective.loss.on_outputs
    assert on_outputs is not None

    def loss(z: Tensor) -> Tensor:
        return on_outputs(z.reshape(outputs.shape), example)[0]

    curvature = second_derivative(loss)(outputs.detach().reshape(-1))
    return (curvature + curvature.mT) / 2
