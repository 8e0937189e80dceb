"""The least trace over the orbit: from the diagonal, from random draws, or of one point."""

from __future__ import annotations

import numpy as np
import torch

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.operator import entry
from spiritlevel.curvature.diagonals import sampled_traces
from spiritlevel.orbit.program import DENSE, Problem, Solution, operator_of
from spiritlevel.spectral import trace
from spiritlevel.spectral.probes import standard_error
from spiritlevel.symmetry.tracing.degree import obstacle

SAMPLED = 0.05  # relative: the standard error with which a trace from random draws is known
SPOTS = 6  # places at which the two diagonals are compared


def least_trace(problem: Problem, tol: float, seed: int) -> Solution:
    """min over t of tr D A D."""
    if not problem.group.dim and (problem.matrix.kind == "hessian" or problem.source == "rows"):
        return _trace_here(problem, tol, seed)
    products = 0.0
    if problem.matrix.kind == "hessian":
        _check_diagonals(problem)
        products = float(SPOTS)
    if problem.source == "rows":
        raise SpiritlevelError(
            f"the trace of the {problem.matrix.name} over the orbit needs its diagonal, which is "
            f"made of operators with psd=True up to a size of {DENSE}; use "
            'norm="spectral"'
        )
    if problem.source == "sampled":
        return _sampled_trace(problem, tol)
    found = problem.start
    return Solution(
        value=found.value,
        before=float(problem.masses.sum()),
        lower_bound=found.lower_bound,
        balance=found.residual,
        t=found.t,
        products=products,
        converged=found.value <= found.lower_bound * (1 + tol),
    )


def _trace_here(problem: Problem, tol: float, seed: int) -> Solution:
    """Without rescalings the orbit is one point: nothing has to be known along it."""
    operator, t = operator_of(problem), problem.start.t
    if operator.size <= DENSE:
        value = float(operator.dense().double().trace())
        return Solution(value, value, None, 0.0, t, float(operator.size), True)
    found = trace(operator, method="hutch++", rtol=max(tol, SAMPLED), seed=seed)
    value, products = found.value, found.matvecs
    return Solution(value, value, None, 0.0, t, products, found.converged, found.stderr)


def _sampled_trace(problem: Problem, tol: float) -> Solution:
    """The trace at the point where a sampled one is least, from new draws: no bound, an error."""
    grid, t = problem.cells, problem.start.t
    factors = grid.spread(np.exp(-2 * grid.log_scales(t)), problem.scale) * problem.scale**2
    fresh = sampled_traces(problem.objective, torch.stack([factors, problem.scale**2]))
    value, before = fresh.mean(0).tolist()
    stderr = standard_error(fresh[:, 0])
    return Solution(
        value=value,
        before=before,
        lower_bound=None,
        balance=problem.start.residual,
        t=t,
        products=float(len(fresh)),
        converged=stderr <= max(tol, SAMPLED) * value,
        stderr=stderr,
    )


def _check_diagonals(problem: Problem) -> None:
    """diag(H) = diag(G) holds for nets that are piecewise linear in each parameter: see if so."""
    against = obstacle(problem.objective)
    if against is not None:
        raise SpiritlevelError(
            "the trace of this Hessian is not known to be a sum of exponentials along the orbit: "
            "the network is not piecewise linear in each parameter, as far as is known "
            f'({against}); use operator="ggn", or norm="spectral"'
        )
    expected, operator = problem.diagonal, problem.matrix.make()
    for place in expected.argsort(descending=True)[:SPOTS].tolist():
        (found, unsure), wanted = entry(operator, place), float(expected[place])
        if abs(found - wanted) > max(1e-3 * float(expected.max()), unsure):
            raise SpiritlevelError(
                f"the diagonal of the Hessian ({found:.4g}) is not that of the Gauss-Newton matrix "
                f"({wanted:.4g}) where it should be: rounding in {problem.objective.dtype}; try "
                "dtype=torch.float64"
            )
