"""The least norm of the Hessian over everything that computes the same function."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize as quasi_newton
from torch import Tensor

from spiritlevel.base.doors import a, number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status, format_error, format_value
from spiritlevel.base.matrices import Kind
from spiritlevel.base.operator import Operator
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded, tensor
from spiritlevel.curvature.diagonals import GaussNewtonDiagonal
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.bundle import Found, least_eigenvalue, least_norm
from spiritlevel.orbit.cells import Array, Cells
from spiritlevel.orbit.frobenius import least_frobenius
from spiritlevel.orbit.program import (
    Matrix,
    Problem,
    Solution,
    matrix_of,
    operator_of,
    problem_of,
)
from spiritlevel.orbit.traces import least_trace
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry import Certificate, Group
from spiritlevel.symmetry.find import group_of
from spiritlevel.symmetry.group import only_groups

Norm = Literal["spectral", "trace", "frobenius"]
Solver = Callable[[Problem, float, int], Solution]  # of a problem, to a tolerance, with a seed
HERE = 1e-2  # relative residual of the norm at the given point; its value is far better known
BALANCED = 2  # times the tolerance: how far from 0 a subgradient may be at the bottom


@dataclass(frozen=True)
class OrbitMinimum:
    """The least value over the orbit, where it is reached, and the proof.

    `lower_bound` holds for every point of the orbit, up to the rounding of the products: for traces
    and for the Gauss-Newton matrix. It is None for norms of the Hessian and for Frobenius norms,
    whose problem is convex but has only `balance`: the largest imbalance of a generator relative to
    the value, the distance of a subgradient from 0. `stderr` is that of a Frobenius norm from
    random probes, or of a trace from random draws, which has no bound either. `status` says whether
    the search came to rest, `certificate` that the point at the bottom is the same network.

    Where `divided_out` names one-sided rescalings (weights before a norm, layers of zeros), the
    infimum of the matrix itself is not attained. `value`, `before` and `lower_bound` are then those
    of diag(s) A diag(s), with s the root mean square of the weights that such rescalings move, cell
    by cell (a cell: weights that all rescalings scale alike).
    """

    norm: str
    operator: str
    value: float
    before: float
    lower_bound: float | None
    balance: float
    log_scales: Tensor
    start: Objective
    group: Group
    products: float
    seconds: float
    dead: int
    divided_out: tuple[str, ...]
    status: Status
    stderr: float | None = None
    seen: tuple[Objective, Certificate] | None = field(default=None, repr=False)

    @functools.cached_property
    def point(self) -> tuple[Objective, Certificate]:
        """The network at the bottom, and the proof that it predicts the same."""
        if self.seen is not None:
            return self.seen
        twin = self.group.apply(self.start, self.log_scales)
        return twin, self.group.verify(self.start, twin).require()

    @property
    def objective(self) -> Objective:
        return self.point[0]

    @property
    def certificate(self) -> Certificate:
        return self.point[1]

    def __str__(self) -> str:
        text = (
            f"least {self.norm} of the {self.operator} over the orbit: {format_value(self.value)}"
        )
        if self.stderr is not None:
            text += f" ± {format_error(self.stderr)}"
        if self.lower_bound is not None:
            text += f" (no less than {format_value(self.lower_bound)})"
        if not math.isnan(self.before):
            text += f"; {format_value(self.before)} at the given point"
        text += f", {self.products:g} products"
        if self.divided_out:
            text += (
                f"; {len(self.divided_out)} one-sided rescalings divided out: all these numbers "
                "are for unit size of the weights that they move"
            )
        return text if self.status is Status.CONVERGED else f"{text} ({self.status.value})"


@set_apart()
def minimum(
    objective: Objective,
    group: Group | None = None,
    *,
    norm: Norm | str = "spectral",
    operator: Kind | Operator | Matrix = "ggn",
    tol: float = 5e-3,
    seed: int = 0,
    diagonal: GaussNewtonDiagonal | None = None,
    certify: bool = True,
    start: Tensor | None = None,
    here: Estimate | None = None,
    before: bool = True,
) -> OrbitMinimum:
    """min over t of || exp(-B t) H exp(-B t) ||: sharpness that no rescaling can change.

    Convex in t (log-convex for every unitarily invariant norm), so the minimum is global. Only
    products with the matrix at the given point are used. `operator` may be any Operator that
    becomes D^-1 A D^-1 along the orbit, such as fisher(objective). `tol` is the relative gap
    between the value and its lower bound at which the spectral norm stops. `diagonal` is that of
    the Gauss-Newton matrix, where it is known already. Without `certify`, that the point at the
    bottom is the same network is seen when it is asked for. `start` are log-scales from which the
    norms of a Hessian are searched: those of a minimum that is near. `here` is the spectral norm at
    the given point, or an eigenvalue that is as large, where it is known; without `before` it is
    NaN where a spectral norm is not known already, which saves products. NORMS holds the norms.
    """
    one_of("norm", norm, NORMS)
    number("tol", tol, 0)
    seeded(seed)
    _refuse(objective, group, diagonal)
    if start is not None:
        tensor("start", start, None, empty=True)
    a("here", here, (Estimate, type(None)), "an Estimate of the norm at the given point")
    a("before", before, bool, "True, or False to leave the norm at the given point out")
    begin, matrix = time.perf_counter(), matrix_of(objective, operator)
    problem = _problem(objective, group_of(objective, group), diagonal, norm, matrix)
    problem = _from(replace(problem, here=here, before=before), start)
    found = _result(problem, NORMS[norm](problem, tol, seed), norm)
    seen = found.point if certify else None
    return replace(found, seen=seen, seconds=time.perf_counter() - begin)


def _result(problem: Problem, found: Solution, norm: str) -> OrbitMinimum:
    """What was found, and where."""
    return OrbitMinimum(
        norm=norm,
        operator=problem.matrix.name,
        value=found.value,
        before=found.before,
        lower_bound=found.lower_bound,
        balance=found.balance,
        log_scales=torch.from_numpy(found.t * problem.free),
        start=problem.objective,
        group=problem.group,
        products=found.products,
        seconds=0.0,
        dead=problem.dead,
        divided_out=problem.divided_out,
        status=Status.CONVERGED if found.converged else Status.BUDGET,
        stderr=found.stderr,
    )


def _from(problem: Problem, start: Tensor | None) -> Problem:
    """The same problem, searched from other log-scales, if there are any."""
    if start is None:
        return problem
    tensor("start", start, problem.group.dim)
    t = np.where(problem.free > 0, start.detach().double().cpu().numpy(), problem.start.t)
    return replace(problem, begin=t)


def _refuse(objective: Any, group: Any, diagonal: Any) -> None:
    only_objectives(objective)
    only_groups(group)
    kinds = (GaussNewtonDiagonal, type(None))
    a("diagonal", diagonal, kinds, "what ggn_diagonal(objective) returns")


def _problem(
    objective: Objective,
    group: Group,
    diagonal: GaussNewtonDiagonal | None,
    norm: str,
    matrix: Matrix,
) -> Problem:
    """The trace of H, where there is anything to minimize, is that of G."""
    if norm != "trace" or matrix.kind != "hessian" or not group.dim:
        return problem_of(objective, group, diagonal, matrix)
    try:
        same = problem_of(objective, group, diagonal, matrix_of(objective, "ggn"))
    except SpiritlevelError as error:
        raise SpiritlevelError(
            "the trace of this Hessian is not known to be a sum of exponentials along the orbit: "
            f'the loss has no Gauss-Newton matrix ({error}); use norm="spectral"'
        ) from None
    return replace(same, matrix=matrix)


@set_apart()
def balanced(
    objective: Objective,
    group: Group | None = None,
    *,
    diagonal: GaussNewtonDiagonal | None = None,
) -> Objective:
    """The canonical representative of an orbit: the point where the trace is least.

    Every generator's in- and out-curvature balance there. For one factor per layer and no biases it
    is Ibayashi et al.'s closed form (2021), with the trace K (prod_k tr_k)^(1/K).
    """
    _refuse(objective, group, diagonal)
    problem = problem_of(objective, group, diagonal, matrix_of(objective, "ggn"))
    twin = problem.group.apply(objective, torch.from_numpy(problem.start.t))
    problem.group.verify(objective, twin).require()
    return twin


def _spectral(problem: Problem, tol: float, seed: int) -> Solution:
    operator, psd = operator_of(problem), problem.matrix.psd
    if psd:
        found = least_eigenvalue(
            operator, problem.cells, problem.blocks, problem.begin, problem.free, tol, seed
        )
        bound: float | None = found.lower_bound
    else:
        found = least_norm(operator, problem.cells, problem.begin, problem.free, tol, seed)
        bound = None
    before, cost = _norm_here(problem, operator, found, seed)
    imbalance = _imbalance(problem, found)
    if psd:
        _refuse_contradictions(problem, found, before)
    return Solution(
        value=found.value,
        before=before,
        lower_bound=bound,
        balance=imbalance,
        t=found.t,
        products=found.products + cost,
        # without a bound, steps that gain nothing may have met a kink: balance tells
        converged=found.converged and (bound is not None or imbalance <= BALANCED * tol),
    )


def _refuse_contradictions(problem: Problem, found: Found, before: float) -> None:
    """A norm lies between the largest entry of the diagonal and the trace, a bound below both ends.

    Products and diagonal come from different computations: if they contradict each other, rounding
    has eaten one of them, and no bound may be printed.
    """
    slack = 0.02 if problem.source == "exact" else 1.0
    weights = np.exp(-2 * problem.cells.log_scales(found.t))
    d = problem.cells.spread(weights, problem.scale) * problem.scale**2
    entries = problem.diagonal * d
    least, most = float(entries.max()), float(entries.double().sum())
    bound = found.lower_bound
    fits = (1 - slack) * least <= (1 + slack) * found.value and found.value <= (1 + slack) * most
    if problem.source == "rows":  # norms of rows are no diagonal
        fits = True
    elif problem.source == "sampled":
        fits = found.value <= (1 + slack) * most
    norms = [norm for norm in (before, found.value) if not math.isnan(norm)]
    here = "" if math.isnan(before) else f"; {before:.3g} at the given point"
    if not (fits and math.isfinite(found.value) and bound <= (1 + HERE) * min(norms)):
        raise SpiritlevelError(
            f"the products contradict the diagonal (a norm of {found.value:.3g}, no less than "
            f"{bound:.3g}; a diagonal up to {least:.3g}, a trace of {most:.3g}{here}): rounding in "
            f"{problem.objective.dtype}; try dtype=torch.float64"
        )


def _norm_here(
    problem: Problem, operator: Operator, found: Found, seed: int
) -> tuple[float, float]:
    """At the given point, and its products: none where it is known well enough.

    Begun near what the search knows of the largest eigenvalues, and until no other can be larger.
    """
    known = problem.here
    if known is not None and not problem.divided_out and known.error <= HERE * abs(known.value):
        return abs(known.value), 0.0
    if not problem.before:
        return math.nan, 0.0
    ones = torch.ones(operator.size, dtype=operator.dtype, device=operator.device)
    near = None if found.near is None else found.near(ones, 1)
    pairs = eigenpairs(operator, which="magnitude", tol=HERE, start=near, seed=seed)
    return abs(pairs[0].value), pairs[0].matvecs


def _imbalance(problem: Problem, found: Found) -> float:
    """The distance of 0 from the subgradients B'(v * v) of the vectors near the top."""
    if not found.value > 0:
        return 0.0
    pulls = _subgradients(problem.cells, *found.top[:2], found.value) * problem.free[:, None]
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


def _subgradients(grid: Cells, values: Tensor, vectors: Tensor, value: float) -> Array:
    near = (values.abs() > 0.97 * value).to(vectors.device)
    squares = grid.gather(vectors[:, near] ** 2)
    return grid.exponents.T @ squares


NORMS: dict[str, Solver] = {
    "spectral": _spectral,
    "trace": least_trace,
    "frobenius": least_frobenius,
}
