"""The least norm of the Hessian over everything that computes the same function."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from scipy.optimize import minimize as quasi_newton
from torch import Tensor

from spiritlevel.curvature import ggn, hessian
from spiritlevel.diagonals import ggn_diagonal
from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Status, format_value
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.operators import Operator, scaled
from spiritlevel.orbit.balance import Balance, balance
from spiritlevel.orbit.bundle import Found, least_eigenvalue, least_norm
from spiritlevel.orbit.cells import Array, Cells, cells
from spiritlevel.scope import set_apart
from spiritlevel.spectral import Eigenpairs, eigenpairs
from spiritlevel.symmetry import Group, symmetries

Norm = Literal["spectral", "trace", "frobenius"]
Matrix = Literal["hessian", "ggn"]
DENSE = 4000  # parameters, for the Frobenius norm from the whole matrix
SPOTS = 6  # places at which the two diagonals are compared


@dataclass(frozen=True)
class OrbitMinimum:
    """The least value over the orbit, where it is reached, and the proof.

    `lower_bound` holds for every point of the orbit, up to the rounding of the products: for traces
    and for the Gauss-Newton matrix. It is None for norms of the Hessian and for Frobenius norms,
    whose problem is convex but has only `balance`: the largest imbalance of a generator relative to
    the value, the distance of a subgradient from 0. `status` says whether the search came to rest.

    Where `divided_out` names one-sided rescalings (weights before a norm, layers of zeros), the
    infimum of the matrix itself is not attained. `value`, `before` and `lower_bound` are then those
    of diag(s) A diag(s), with s the root mean square of the weights that such a rescaling moves.
    """

    norm: Norm
    matrix: Matrix
    value: float
    before: float
    lower_bound: float | None
    balance: float
    log_scales: Tensor
    objective: Objective
    products: float
    seconds: float
    dead: int
    divided_out: tuple[str, ...]
    status: Status

    def __str__(self) -> str:
        text = f"least {self.norm} of the {self.matrix} over the orbit: {format_value(self.value)}"
        if self.lower_bound is not None:
            text += f" (no less than {format_value(self.lower_bound)})"
        text += f"; {format_value(self.before)} at the given point, {self.products:g} products"
        if self.divided_out:
            text += (
                f"; {len(self.divided_out)} one-sided rescalings divided out: all these numbers "
                "are for unit size of the weights that they move"
            )
        return text if self.status is Status.CONVERGED else f"{text} ({self.status.value})"


@dataclass(frozen=True)
class _Solution:
    """What a solver finds: see OrbitMinimum."""

    value: float
    before: float
    lower_bound: float | None
    balance: float
    t: Array
    products: float
    converged: bool


@dataclass(frozen=True)
class _Problem:
    """An objective's orbit in cells, with what is one-sided divided out."""

    objective: Objective
    group: Group
    cells: Cells
    blocks: list[Array]
    diagonal: Tensor  # of the Gauss-Newton matrix
    masses: Array  # of the same, by cell, with what is one-sided divided out
    free: Array
    start: Balance
    scale: Tensor
    divided_out: tuple[str, ...]


@set_apart()
def minimum(
    objective: Objective,
    group: Group | None = None,
    *,
    norm: Norm = "spectral",
    matrix: Matrix = "ggn",
    tol: float = 5e-3,
    seed: int = 0,
    diagonal: Tensor | None = None,
) -> OrbitMinimum:
    """min over t of || exp(-B t) H exp(-B t) ||: sharpness that no rescaling can change.

    Convex in t (log-convex for every unitarily invariant norm), so the minimum is global. Only
    products with the matrix at the given point are used. `tol` is the relative gap between the
    value and its lower bound at which the spectral norm stops. `diagonal` is that of the
    Gauss-Newton matrix, where it is known already.
    """
    if norm not in get_args(Norm):
        raise SpiritlevelError(f"norm is {norm!r}; choose one of {', '.join(get_args(Norm))}")
    if matrix not in get_args(Matrix):
        raise SpiritlevelError(f"matrix is {matrix!r}; choose one of {', '.join(get_args(Matrix))}")
    only_objectives(objective)
    begin = time.perf_counter()
    problem = _problem(objective, group, diagonal)
    solve = {"spectral": _spectral, "trace": _trace, "frobenius": _frobenius}[norm]
    found = solve(problem, matrix, tol, seed)
    t = torch.from_numpy(found.t * problem.free)
    return OrbitMinimum(
        norm=norm,
        matrix=matrix,
        value=found.value,
        before=found.before,
        lower_bound=found.lower_bound,
        balance=found.balance,
        log_scales=t,
        objective=problem.group.apply(objective, t),
        products=found.products,
        seconds=time.perf_counter() - begin,
        dead=int(problem.start.dead.sum()),
        divided_out=problem.divided_out,
        status=Status.CONVERGED if found.converged else Status.BUDGET,
    )


@set_apart()
def balanced(
    objective: Objective, group: Group | None = None, *, diagonal: Tensor | None = None
) -> Objective:
    """The canonical representative of an orbit: the point where the trace is least.

    Every generator's in- and out-curvature balance there. For one factor per layer and no biases it
    is Ibayashi et al.'s closed form (2021), with the trace K (prod_k tr_k)^(1/K).
    """
    only_objectives(objective)
    problem = _problem(objective, group, diagonal)
    return problem.group.apply(objective, torch.from_numpy(problem.start.t))


def _problem(objective: Objective, group: Group | None, diagonal: Tensor | None) -> _Problem:
    group = symmetries(objective) if group is None else group
    grid = cells(group, objective.shapes)
    layers: dict[str, list[int]] = {}
    for index, generator in enumerate(group.generators):
        layers.setdefault(f"{generator.layer} {generator.kind}", []).append(index)
    blocks = [np.array(members) for members in layers.values()]
    diagonal = ggn_diagonal(objective) if diagonal is None else diagonal
    found = balance(grid.exponents, grid.gather(diagonal), blocks)
    lonely = np.flatnonzero(found.one_sided)
    scale = _unit_size(objective, grid, lonely)
    masses = grid.gather(diagonal * scale**2)
    start = balance(grid.exponents, masses, blocks) if len(lonely) else found
    free = ~(start.dead | start.one_sided | found.one_sided)
    names = tuple(group.generators[i].name for i in lonely)
    return _Problem(
        objective=objective,
        group=group,
        cells=grid,
        blocks=blocks,
        diagonal=diagonal,
        masses=masses,
        free=free.astype(float),
        start=start,
        scale=scale,
        divided_out=names,
    )


def _unit_size(objective: Objective, grid: Cells, lonely: Array) -> Tensor:
    """Factors that measure one-sided groups at unit root mean square of their weights.

    Scaling such a group up is free and its curvature then vanishes, so the infimum says nothing;
    diag(s) H diag(s) with s = rms(w) does not change under that scaling.
    """
    scale = torch.ones_like(objective.vector)
    counts, squares = grid.gather(torch.ones_like(scale)), grid.gather(objective.vector**2)
    for index in lonely:
        members = np.abs(grid.exponents[:, [index]].toarray()[:, 0]) > 0
        rms = (squares[members].sum() / max(counts[members].sum(), 1)) ** 0.5
        mask = grid.spread(members.astype(float), scale) > 0
        scale = torch.where(mask, scale * rms, scale)
    return scale


def _operator(problem: _Problem, matrix: Matrix) -> Operator:
    make = hessian if matrix == "hessian" else ggn
    plain = make(problem.objective)
    return scaled(plain, problem.scale) if problem.divided_out else plain


def _trace(problem: _Problem, matrix: Matrix, tol: float, seed: int) -> _Solution:
    products = 0.0
    if matrix == "hessian":
        _check_diagonals(problem)
        products = float(SPOTS)
    found = problem.start
    return _Solution(
        value=found.value,
        before=float(problem.masses.sum()),
        lower_bound=found.lower_bound,
        balance=found.residual,
        t=found.t,
        products=products,
        converged=found.value <= found.lower_bound * (1 + tol),
    )


def _check_diagonals(problem: _Problem) -> None:
    """diag(H) = diag(G) holds for nets that are piecewise linear in each parameter: see if so."""
    expected = problem.diagonal
    operator = hessian(problem.objective)
    for place in expected.argsort(descending=True)[:SPOTS].tolist():
        unit = torch.zeros_like(expected)
        unit[place] = 1.0
        found = float((operator @ unit)[place])
        if abs(found - float(expected[place])) > 1e-3 * float(expected.max()):
            raise SpiritlevelError(
                "the trace of this Hessian is no sum of exponentials along the orbit: its diagonal "
                'differs from the Gauss-Newton one; use matrix="ggn", or norm="spectral"'
            )


def _spectral(problem: _Problem, matrix: Matrix, tol: float, seed: int) -> _Solution:
    operator = _operator(problem, matrix)
    if matrix == "ggn":
        found = least_eigenvalue(
            operator, problem.cells, problem.blocks, problem.start.t, problem.free, tol, seed
        )
        bound: float | None = found.lower_bound
    else:
        found = least_norm(operator, problem.cells, problem.start.t, problem.free, tol, seed)
        bound = None
    before, cost = _norm_here(operator, seed)
    return _Solution(
        value=found.value,
        before=before,
        lower_bound=bound,
        balance=_imbalance(problem, found),
        t=found.t,
        products=found.products + cost,
        converged=found.converged,
    )


def _norm_here(operator: Operator, seed: int) -> tuple[float, float]:
    pairs = eigenpairs(operator, which="magnitude", seed=seed)
    return abs(pairs[0].value), pairs[0].matvecs


def _imbalance(problem: _Problem, found: Found) -> float:
    """The distance of 0 from the subgradients B'(v * v) of the vectors near the top."""
    pulls = _subgradients(problem.cells, found.pairs, found.value) * problem.free[:, None]
    k = pulls.shape[1]
    if k == 0 or not pulls.any():
        return 0.0
    start = np.full(k, 1 / k)
    result = quasi_newton(
        lambda w: (float(((pulls @ w) ** 2).sum()), 2 * pulls.T @ (pulls @ w)),
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * k,
        constraints=[{"type": "eq", "fun": lambda w: w.sum() - 1}],
    )
    return float(np.abs(pulls @ result.x).max())


def _subgradients(grid: Cells, pairs: Eigenpairs, value: float) -> Array:
    near = [i for i, e in enumerate(pairs.values) if abs(e.value) > 0.97 * value]
    squares = grid.gather(pairs.vectors[:, near] ** 2)
    return grid.exponents.T @ squares


def _frobenius(problem: _Problem, matrix: Matrix, tol: float, seed: int) -> _Solution:
    """sum_cd M_cd w_c w_d with w = exp(-2 B t), from the whole matrix."""
    objective, grid = problem.objective, problem.cells
    if objective.size > DENSE:
        raise SpiritlevelError(
            f"the Frobenius norm over the orbit needs the whole matrix: {objective.size} "
            f'parameters are too many (at most {DENSE}); use norm="spectral" or "trace", or params='
        )
    dense = _operator(problem, matrix).dense().double()
    rows = grid.gather(dense**2)
    table = grid.gather(torch.from_numpy(rows.T).contiguous()).T

    def objective_and_slope(t: Array) -> tuple[float, Array]:
        w = np.exp(-2 * grid.log_scales(t))
        image = table @ w
        total = float(w @ image)
        slope = -2 * (grid.exponents.T @ (w * image)) / total
        return 0.5 * float(np.log(total)), slope * problem.free

    result = quasi_newton(
        objective_and_slope,
        problem.start.t,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-10},
    )
    value, slope = objective_and_slope(result.x)
    imbalance = float(np.abs(slope).max())
    return _Solution(
        value=float(np.exp(value)),
        before=float(table.sum()) ** 0.5,
        lower_bound=None,
        balance=imbalance,
        t=result.x,
        products=objective.size,
        converged=imbalance <= tol,
    )
