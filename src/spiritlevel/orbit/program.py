"""An orbit as a convex problem: cells, masses, and what is one-sided divided out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, diags, hstack, identity
from torch import Tensor

from spiritlevel.base.doors import a, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.matrices import Kind
from spiritlevel.base.operator import Operator, scaled
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.curvature import ggn, hessian
from spiritlevel.curvature.diagonals import GaussNewtonDiagonal, ggn_diagonal
from spiritlevel.objective import Objective
from spiritlevel.orbit.balance import Balance, balance
from spiritlevel.orbit.cells import Array, Cells, cells
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.find import group_of

Source = Literal["exact", "sampled", "rows"]  # diagonals of G; norms of the rows of H
ROW_PROBES, FEW_PROBES = 8, 2
DENSE = 4000  # parameters, for the whole matrix
NEGATIVE = 1e-5  # of the largest entry of a diagonal: less is rounding
SETTLED = 1e-3  # relative gap of a balance that has found its minimum


@dataclass(frozen=True)
class Solution:
    """What a solver finds: see OrbitMinimum."""

    value: float
    before: float
    lower_bound: float | None
    balance: float
    t: Array
    products: float
    converged: bool
    stderr: float | None = None


@dataclass(frozen=True)
class Matrix:
    """What is minimized: made when products are asked for, at the given point.

    Along the orbit it is taken to become D^-1 A D^-1, as the Hessian, the Gauss-Newton matrix and
    the Fisher matrices do.
    """

    name: str
    make: Callable[[], Operator]
    psd: bool
    kind: Kind | None  # None: given from outside


def matrix_of(objective: Objective, given: Kind | Operator | Matrix) -> Matrix:
    """The Gauss-Newton matrix is positive where a diagonal is found: a concave loss has none."""
    if isinstance(given, Matrix):
        return given
    if isinstance(given, Operator):
        if given.size != objective.size:
            raise SpiritlevelError(
                f"operator has the size {given.size}; give one of the {objective.size} parameters "
                "of the objective"
            )
        return Matrix(given.name, lambda: given, given.psd, None)
    one_of("operator", given, get_args(Kind))
    make = ggn if given == "ggn" else hessian
    return Matrix(given, functools.cache(lambda: make(objective)), given == "ggn", given)


@dataclass(frozen=True)
class Problem:
    """An objective's orbit in cells, with what is one-sided divided out."""

    objective: Objective
    group: Group
    matrix: Matrix
    cells: Cells
    blocks: list[Array]
    diagonal: Tensor  # where curvature lies: that of the Gauss-Newton matrix, or like it
    source: Source  # what the diagonal is
    masses: Array  # of the same, by cell, with what is one-sided divided out
    free: Array
    start: Balance
    begin: Array  # log-scales from which norms are searched
    scale: Tensor
    dead: int
    divided_out: tuple[str, ...]
    here: Estimate | None = None  # the norm at the given point, where it is known
    before: bool = True  # whether it is wanted


def problem_of(
    objective: Objective,
    group: Group | None,
    diagonal: GaussNewtonDiagonal | None,
    matrix: Matrix,
) -> Problem:
    group = group_of(objective, group)
    curves, source = _where_it_curves(objective, diagonal, matrix)
    grid = cells(group, objective.shapes)
    blocks = layers(group)
    found = balance(grid.exponents, grid.gather(curves), blocks)
    start, relative = found, np.zeros(len(grid.gather(curves)), dtype=bool)
    scale, held = torch.ones_like(objective.vector), grid
    while True:
        masses = grid.gather(curves * scale**2)
        lonely = _runaway(held.exponents, masses, start)
        if not lonely.any():
            break
        relative |= lonely
        scale, held = _unit_size(objective, grid, relative), _fixed(grid, relative)
        start = balance(held.exponents, grid.gather(curves * scale**2), blocks)
    # every generator that moves such a cell, also one that has others left: then nothing is proved
    divided = np.flatnonzero(abs(grid.exponents).T @ relative)
    return Problem(
        objective=objective,
        group=group,
        matrix=matrix,
        cells=held,
        blocks=blocks,
        diagonal=curves,
        source=source,
        masses=masses,
        free=(~(start.dead | start.one_sided)).astype(float),
        start=start,
        begin=start.t,
        scale=scale,
        dead=int(found.dead.sum()),
        divided_out=tuple(group.generators[i].name for i in divided),
    )


def layers(group: Group) -> list[Array]:
    """The generators of each layer and kind, which move together first."""
    found: dict[tuple[str, str], list[int]] = {}
    for index, g in enumerate(group.generators):
        found.setdefault((g.layer, g.kind), []).append(index)
    return [np.array(members) for members in found.values()]


def _where_it_curves(
    objective: Objective, diagonal: GaussNewtonDiagonal | None, matrix: Matrix
) -> tuple[Tensor, Source]:
    """Which parameters matter and how much: the start of a search, and what is dead.

    The diagonal of the Gauss-Newton matrix. For the Hessian, where that is zero (or the loss has
    none), the norms of its rows instead: what G does not see may matter to H.
    """
    if matrix.kind is None:
        return _of_operator(matrix.make())
    if diagonal is None:
        try:
            diagonal = ggn_diagonal(objective)
        except SpiritlevelError:
            if matrix.kind == "ggn":
                raise
    if diagonal is None:
        return _row_norms(matrix.make()), "rows"
    source: Source = "exact" if diagonal.exact else "sampled"
    if matrix.kind == "ggn" or bool((diagonal.values > 0).all()):
        return diagonal.values, source
    rows = _row_norms(matrix.make(), FEW_PROBES)  # zero or not is all that is asked
    # a floor for the rows: rounding and underflow leave traces of what is zero
    alive = (diagonal.values > 0) | (rows <= 1e-9 * rows.max())
    return torch.where(alive, diagonal.values, rows), source


def _of_operator(operator: Operator) -> tuple[Tensor, Source]:
    """The diagonal itself where it is positive and the whole matrix fits, else its rows."""
    if operator.psd and operator.size <= DENSE:
        found = operator.dense().diagonal()
        if float(found.min()) < -NEGATIVE * float(found.abs().max()):
            raise SpiritlevelError(
                f"operator says psd=True, and its diagonal reaches {float(found.min()):.3g}: make "
                "the operator with psd=False"
            )
        return found.clamp(min=0.0), "exact"
    return _row_norms(operator), "rows"


def _row_norms(operator: Operator, probes: int = ROW_PROBES) -> Tensor:
    """The norms of the rows of A, from random vectors: E (A z)_p^2 = sum_q A_pq^2."""
    draws = generator(0)
    like = torch.zeros(operator.size, dtype=operator.dtype, device=operator.device)
    squares = torch.zeros_like(like, dtype=torch.float64)
    for _ in range(probes):  # no signs: equal entries of a row would cancel
        image = operator @ gaussian((operator.size,), draws, like)
        squares += image.double().square() / probes
    if not bool(squares.isfinite().all()):
        raise SpiritlevelError(
            f"the {operator.name} is not finite in {operator.dtype}: try float64"
        )
    return squares.sqrt()


def _runaway(exponents: csr_matrix, masses: Array, start: Balance) -> Array:
    """Cells whose curvature some rescaling sends to zero while none of the others grows.

    Those of a generator with mass on one side only; and where generators run away together, the
    largest support of B t >= 0 over the cells with mass: a linear program.
    """
    alive = masses > 0
    if start.one_sided.any():
        touched = np.asarray(abs(exponents[:, start.one_sided]).sum(axis=1)).reshape(-1) > 0
        return touched & alive
    if start.value <= (1 + SETTLED) * start.lower_bound or not alive.any():
        return np.zeros_like(alive)
    return vanishing(exponents, alive)


def vanishing(exponents: csr_matrix, alive: Array) -> Array:
    """The largest support of B t >= 0 over the cells that are alive: a linear program."""
    some = csr_matrix(exponents[alive])
    count, dim = some.shape  # type: ignore[misc]
    found = linprog(
        np.concatenate([np.zeros(dim), -np.ones(count)]),
        A_ub=hstack([-some, identity(count)]),
        b_ub=np.zeros(count),
        bounds=[(None, None)] * dim + [(0, 1)] * count,
    )
    lonely = np.zeros_like(alive)
    if found.x is None:  # the solver gave up: the balance is then not settled, and says so
        return lonely
    lonely[np.flatnonzero(alive)] = found.x[dim:] > 0.5  # a cone: its support is all or nothing
    return lonely


def _unit_size(objective: Objective, grid: Cells, relative: Array) -> Tensor:
    """Factors that measure some cells at unit root mean square of their weights.

    Scaling them up is free and their curvature then vanishes, so the infimum says nothing. With
    s = rms(w) of each cell, diag(s) H diag(s) is there what no rescaling at all can change.
    """
    counts = grid.gather(torch.ones_like(objective.vector))
    rms = (grid.gather(objective.vector**2) / np.maximum(counts, 1)) ** 0.5
    return grid.spread(np.where(relative, rms, 1.0), objective.vector)


def _fixed(grid: Cells, relative: Array) -> Cells:
    """The cells with those that are measured relative to themselves at rest."""
    return replace(grid, exponents=csr_matrix(diags((~relative).astype(float)) @ grid.exponents))


def operator_of(problem: Problem) -> Operator:
    """The matrix of a problem, with what is one-sided divided out."""
    a("problem", problem, Problem, "the problem that a norm is asked to solve")
    plain = problem.matrix.make()
    return scaled(plain, problem.scale) if problem.divided_out else plain
