"""The Gauss-Newton diagonal, from a backward pass per output instead of a product per parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import free_bytes
from spiritlevel.base.scope import set_apart, without_tf32
from spiritlevel.base.tensors import flatten, generator, map_tensors, rademacher
from spiritlevel.curvature import layers as layerwise
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss.bends import combined, matrix, root
from spiritlevel.objective.telling import telling

MOST_OUTPUTS = 128  # of one example
FEW_OUTPUTS = 16  # of each, a backward pass for all the layers at once
CONCAVE = 1e-6  # of the largest curvature on all the data: less is rounding
CUT = {torch.float64: 1e-9, torch.float32: 1e-5}  # of the largest of an example: no rounding
DRAWS = 16  # of a sampled diagonal, over all batches
CHECKED = 6  # examples on which squares by layers are compared with those of single examples
ALIKE = 1e-9
NUMBERS_AT_ONCE = {"cpu": 2**26, "cuda": 2**30}
SHARE, MOST_AT_ONCE = 0.2, 2**32  # of what is free on a GPU


@dataclass(frozen=True)
class GaussNewtonDiagonal:
    """diag(G) in float64, exactly or from random draws (then it is unbiased).

    `cut` says that some example has curvature below zero, which was cut off: next to nothing of
    that of all the data, and perhaps all that there is of some parameter's.
    """

    values: Tensor
    exact: bool
    cut: bool = False

    def scaled(self, factors: Tensor) -> GaussNewtonDiagonal:
        """That of diag(d) G diag(d)."""
        return replace(self, values=self.values * factors.to(self.values) ** 2)


@set_apart()
def ggn_diagonal(objective: Objective) -> GaussNewtonDiagonal:
    """diag(G) = (1/n) sum_i sum_c (S_i' J_i)_cp^2 with grad_f^2 l_i = S_i S_i'.

    Exactly, or with random combinations of the columns of S_i where outputs are many. For nets that
    are piecewise linear in each parameter it is the diagonal of the Hessian too. That the loss is
    convex in the outputs is seen on all the data.
    """
    only_objectives(objective)
    loss = objective.loss
    if not objective.separable and objective.mode == "train":
        raise SpiritlevelError(
            "in train mode the examples of a batch depend on each other (BatchNorm, dropout): the "
            'Gauss-Newton matrix has no diagonal example by example; use mode="eval"'
        )
    if not objective.separable or loss.on_outputs is None:
        raise SpiritlevelError(
            "the Gauss-Newton diagonal needs a loss that is a sum over examples, of outputs and "
            "targets: give batches (x, y) and loss(outputs, y)"
        )
    outputs = _outputs(objective)
    if outputs > MOST_OUTPUTS and loss.strength is None:
        raise SpiritlevelError(
            f"the Gauss-Newton diagonal of {outputs} outputs per example needs a loss of known "
            "form: cross_entropy, binary_cross_entropy_with_logits, mse_loss or nll_loss"
        )
    exact = outputs <= MOST_OUTPUTS
    shape = _Curvature()
    found = _exact(objective, outputs, shape) if exact else _sampled(objective)
    if not bool(found.isfinite().all()):
        raise SpiritlevelError(
            "the diagonal of the Gauss-Newton matrix is not finite: a prediction or its derivative "
            f"overflows in {objective.dtype}; try dtype=torch.float64"
        )
    return GaussNewtonDiagonal(found, exact, shape.cut)


@set_apart()
def few_passes(objective: Objective) -> bool:
    """Whether the exact diagonal is that of plain layers with few outputs: some 20 gradients."""
    if not objective.separable or objective.mode == "train" or objective.loss.on_outputs is None:
        return False
    return layerwise.layers_of(objective) is not None and _outputs(objective) <= FEW_OUTPUTS


def _exact(objective: Objective, outputs: int, shape: _Curvature) -> Tensor:
    layers = _layers(objective)
    at_once = _at_once(objective, layers, outputs)

    def squares(batch: Batch) -> Tensor:
        total = torch.zeros(objective.size, dtype=torch.float64, device=objective.device)
        for start in range(0, frozen.examples(batch), at_once):
            piece = objective.here(frozen.rows(batch, slice(start, start + at_once)))
            units, sizes = _units(_roots(objective, piece, shape))
            total += _squares(objective, layers, piece, units, sizes)
        return total

    with objective.smooth(), without_tf32():  # of what is called exact all digits count
        found = objective.mean(squares)
    shape.refuse()
    return found


def _at_once(objective: Objective, layers: dict[str, nn.Module] | None, outputs: int) -> int:
    """How many examples fit."""
    if layers is None:
        each = outputs * objective.size
    else:
        each = layerwise.numbers(objective, layers, objective.few(1), outputs)
    room = NUMBERS_AT_ONCE.get(objective.device.type, NUMBERS_AT_ONCE["cpu"])
    if objective.device.type == "cuda":
        free = free_bytes(objective.device) / objective.vector.itemsize
        room = max(room, int(min(SHARE * free, MOST_AT_ONCE)))
    return max(room // each, 1)


@dataclass
class _Curvature:
    """The range of the loss's curvature in the outputs, over all the data."""

    least: float = 0.0
    largest: float = 0.0
    usual: float | None = None  # where outputs are smaller: the size of what rounds
    slope: float = 0.0
    cut: bool = False

    def see(self, values: Tensor, usual: Tensor | None = None, slope: float = 0.0) -> None:
        if not bool(values.isfinite().all()):
            raise SpiritlevelError("the loss has a second derivative that is not finite")
        self.least = min(self.least, float(values.min()))
        self.largest = max(self.largest, float(values.max()))
        if usual is not None and len(usual):
            self.usual = max(self.usual or 0.0, float(usual.max()))
        self.slope = max(self.slope, slope)
        each = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
        rounding = CUT[values.dtype] * each.abs().amax(1)
        self.cut = self.cut or bool((each.amin(1) < -rounding).any())

    def refuse(self) -> None:
        rounding = max(CONCAVE * self.largest, 1e-12 * (self.usual or 0.0))
        if self.least < -rounding:
            raise SpiritlevelError(
                "this loss is not convex in the outputs: its Gauss-Newton matrix is not positive "
                "semi-definite and has no least value over the orbit"
            )
        if self.slope and self.largest <= 1e-12 * (self.usual or 0.0):
            raise SpiritlevelError(
                "the Gauss-Newton matrix of this loss is empty: the loss is linear in the outputs "
                'where the data are; use the Hessian (operator="hessian")'
            )


def _roots(objective: Objective, batch: Batch, seen: _Curvature) -> Tensor:
    """S of every example, (examples, outputs, columns)."""
    loss = objective.loss
    with torch.no_grad():
        out = objective.outputs(objective.params, batch).detach()
    if loss.strength is not None:
        seen.see(loss.strength(out, batch))
        return _by_example(objective, lambda z, one: root(loss, z, one), out, batch)
    found = _by_example(objective, lambda z, one: matrix(loss, z, one), out, batch)
    usual = _usual(objective, frozen.rows(batch, slice(0, 1)))
    slope = torch.func.grad(lambda z: loss.on_outputs(z, batch)[0])(out)  # type: ignore[misc]
    values, vectors = _eigh(found)
    seen.see(values, usual, float(slope.abs().max()))
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Where LAPACK does not converge in float32 (many eigenvalues of 0), in float64."""
    try:
        return torch.linalg.eigh(matrices)
    except torch.linalg.LinAlgError:
        values, vectors = torch.linalg.eigh(matrices.double())
        return values.to(matrices), vectors.to(matrices)


def _usual(objective: Objective, one: Batch) -> Tensor:
    """How large the loss's curvature is where outputs are smaller: what rounding is relative to."""
    with torch.no_grad():
        out = objective.outputs(objective.params, one).detach()
    found = torch.stack([matrix(objective.loss, out / 4**i, one).abs().max() for i in range(4)])
    return found[found.isfinite()]


def _by_example(
    objective: Objective,
    function: Callable[[Tensor, Batch], Tensor],
    out: Tensor,
    batch: Batch,
) -> Tensor:
    """A function of outputs and targets for every example alone, by vmap where that can be."""

    def one(z: Tensor, example: Batch) -> Tensor:
        return function(z.unsqueeze(0), map_tensors(lambda t: t.unsqueeze(0), example))

    singles = frozen.singles(batch)
    if out.ndim and len(out) == len(singles):
        try:
            return vmap(one)(out, batch)
        except (RuntimeError, ValueError):  # no batching rule
            return torch.stack([function(z, s) for z, s in zip(out.split(1), singles, strict=True)])
    with torch.no_grad():  # a table of tokens: outputs cannot be cut
        alone = [objective.outputs(objective.params, single) for single in singles]
    return torch.stack([function(z, s) for z, s in zip(alone, singles, strict=True)])


def _sampled(objective: Objective) -> Tensor:
    """E (sum_i J_i' S_i e_i)^2 with random signs e: one backward pass for each draw and batch."""
    repeats = max(-(-DRAWS // len(objective.batches)), 2)
    draws = generator(0)

    def squares(batch: Batch) -> Tensor:
        columns = _random_columns(objective, batch, repeats, draws)
        return torch.as_tensor(sum(column.double().square() / repeats for column in columns))

    return objective.mean(squares)


@set_apart()
def sampled_traces(objective: Objective, weights: Tensor) -> Tensor:
    """Independent unbiased estimates of sum_p w_p G_pp, (draws, rows of `weights`)."""
    draws = generator(1)

    def traces(batch: Batch) -> Tensor:
        columns = _random_columns(objective, batch, DRAWS, draws)
        return torch.stack([weights.double() @ column.double().square() for column in columns])

    return objective.mean(traces).cpu()


def _random_columns(
    objective: Objective, batch: Batch, repeats: int, draws: torch.Generator
) -> Iterator[Tensor]:
    """sum_i J_i' S_i e_i over the examples of a batch, `repeats` times."""
    here = objective.here(batch)
    with objective.smooth():
        point = {k: v.clone().requires_grad_() for k, v in objective.params.items()}
        out = objective.outputs(point, here)
        for _ in range(repeats):
            signs = rademacher(out.numel(), draws, out).view_as(out)
            column = combined(objective.loss, out.detach(), here, signs)
            pieces = torch.autograd.grad(
                out, list(point.values()), column, retain_graph=True, materialize_grads=True
            )
            yield torch.cat([piece.reshape(-1) for piece in pieces])


def _outputs(objective: Objective) -> int:
    with torch.no_grad():
        return objective.outputs(objective.params, objective.few(1)).numel()


def _units(roots: Tensor) -> tuple[Tensor, Tensor]:
    """Every S in units of its own size: squares of float32 underflow, where a network is fitted."""
    sizes = roots.abs().flatten(1).amax(1).clamp(min=torch.finfo(roots.dtype).tiny)
    return roots / sizes.view(-1, *(1,) * (roots.ndim - 1)), sizes


def _layers(objective: Objective) -> dict[str, nn.Module] | None:
    """The layers of a plain network, if squares by layers are those of single examples."""
    layers = layerwise.layers_of(objective)
    if layers is None:
        return None
    try:  # in float64: products of tf32 differ by as much as a wrong one might
        some = telling(objective, CHECKED).to(torch.float64)
        piece, copies = some.here(some.batches[0]), layerwise.layers_of(some)
        with some.smooth():
            units, sizes = _units(_roots(some, piece, _Curvature()))
            found = layerwise.squares(some, copies or {}, piece, units, sizes)
            wanted = sizes.double().square() @ _of_examples(some, piece, units)
    except RuntimeError:  # written over, of shapes that are not known, or of one precision
        return None
    if found is None:
        return None
    apart = float((found - wanted).abs().max())
    return layers if apart <= ALIKE * float(wanted.max()) else None


def _squares(
    objective: Objective,
    layers: dict[str, nn.Module] | None,
    batch: Batch,
    units: Tensor,
    sizes: Tensor,
) -> Tensor:
    """Summed over the examples of a batch and the columns of their S."""
    if layers is not None:
        found = layerwise.squares(objective, layers, batch, units, sizes)
        if found is not None:
            return found
    return sizes.double().square() @ _of_examples(objective, batch, units)


def _of_examples(objective: Objective, batch: Batch, units: Tensor) -> Tensor:
    """For each example by itself, in float64."""
    point = objective.params

    def one(example: Batch, columns: Tensor) -> Tensor:
        alone = map_tensors(lambda t: t.unsqueeze(0), example)
        found: Any = vjp(lambda params: objective.outputs(params, alone), point)
        outputs, pull = found
        rows = vmap(lambda v: flatten(pull(v.reshape(outputs.shape))[0]))(columns.mT)
        return rows.square().sum(0)

    try:
        squares = vmap(one)(batch, units)
    except (RuntimeError, ValueError):  # no batching rule: one example after another
        pairs = [(map_tensors(lambda t, i=i: t[i], batch), units[i]) for i in range(len(units))]
        try:
            squares = torch.stack([one(*pair) for pair in pairs])
        except RuntimeError:  # an autograd.Function without setup_context
            squares = torch.stack([_by_autograd(objective, *pair) for pair in pairs])
    return squares.double()


def _by_autograd(objective: Objective, example: Batch, columns: Tensor) -> Tensor:
    """For one example, a backward pass for each column."""
    point = {name: p.clone().requires_grad_() for name, p in objective.params.items()}
    alone = map_tensors(lambda t: t.unsqueeze(0), example)
    with torch.enable_grad():
        outputs = objective.outputs(point, alone)
    total = columns.new_zeros(objective.size)
    for v in columns.mT:
        pieces = torch.autograd.grad(
            outputs,
            list(point.values()),
            v.reshape(outputs.shape),
            retain_graph=True,
            materialize_grads=True,
        )
        total += torch.cat([piece.reshape(-1) for piece in pieces]).square()
    return total
