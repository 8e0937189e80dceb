"""The least Frobenius norm over the orbit: from the whole matrix, or from products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize as quasi_newton
from torch import Tensor

from spiritlevel.base.operator import Operator, scaled
from spiritlevel.base.progress import bar
from spiritlevel.base.tensors import generator, rademacher
from spiritlevel.orbit.bundle import Looker, minimize_model, signed_model
from spiritlevel.orbit.cells import Array
from spiritlevel.orbit.program import DENSE, Problem, Solution, operator_of
from spiritlevel.spectral.probes import standard_error

PAIRS = 16
TAKEN = 6  # leading directions that are taken out before the rest is probed
ROUNDS = 3
PROBES = 32
AT_REST = 0.1  # of the imbalance, which random probes know to a few hundredths


def least_frobenius(problem: Problem, tol: float, seed: int) -> Solution:
    """min over t of ||D A D||_F."""
    if problem.objective.size <= DENSE:
        return _from_the_matrix(problem, tol)
    return _from_products(problem, tol, seed)


def _from_the_matrix(problem: Problem, tol: float) -> Solution:
    """sum_cd M_cd w_c w_d with w = exp(-2 B t)."""
    grid = problem.cells
    dense = operator_of(problem).dense().double()
    if not dense.any():  # flat to rounding
        size = float(problem.objective.size)
        return Solution(0.0, 0.0, None, 0.0, problem.start.t, size, True)
    rows = grid.gather(dense**2)
    table = grid.gather(torch.from_numpy(rows.T).contiguous()).T

    def value_and_slope(t: Array) -> tuple[float, Array]:
        w = np.exp(-2 * grid.log_scales(t))
        image = table @ w
        total = float(w @ image)
        slope = -2 * (grid.exponents.T @ (w * image)) / total
        return 0.5 * float(np.log(total)), slope * problem.free

    result = quasi_newton(
        value_and_slope,
        problem.start.t,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-10},
    )
    value, slope = value_and_slope(result.x)
    imbalance = float(np.abs(slope).max(initial=0.0))
    return Solution(
        value=float(np.exp(value)),
        before=float(table.sum()) ** 0.5,
        lower_bound=None,
        balance=imbalance,
        t=result.x,
        products=problem.objective.size,
        converged=imbalance <= tol,
    )


def _from_products(problem: Problem, tol: float, seed: int) -> Solution:
    """The model of the leading eigenvectors, made anew where it is least; then random probes.

    The value is unbiased with a standard error. That of a fixed set of probes is never minimized:
    the minimum would adapt to them.
    """
    plain = operator_of(problem)
    looker = Looker(plain, problem.cells, "magnitude", PAIRS)
    t, seen = problem.start.t, []
    with bar(ROUNDS + 1, "least Frobenius norm") as progress:
        for _ in range(ROUNDS):
            here = looker.look(t, 0.1, seed)
            seen.append(_probed(problem, scaled(plain, here.d), here.pairs.leading, t, seed))
            model = signed_model(problem.cells, here)
            t = minimize_model(model, t, problem.free, tol, powers=(2,))
            progress.update()
        here = looker.look(t, 0.1, seed)
        seen.append(_probed(problem, scaled(plain, here.d), here.pairs.leading, t, seed))
        progress.update()
    before = _probed(problem, plain, None, np.zeros_like(t), seed)
    best = min(seen, key=lambda p: p.value)
    return Solution(
        value=best.value,
        before=before.value,
        lower_bound=None,
        balance=best.imbalance,
        t=best.t,
        products=looker.products + sum(p.products for p in (*seen, before)),
        converged=best.stderr <= max(tol, 0.01) * best.value and best.imbalance <= AT_REST,
        stderr=best.stderr,
    )


@dataclass(frozen=True)
class _Probed:
    """||A||_F at one point, and the largest in minus out of a generator's squares, relative."""

    t: Array
    value: float
    stderr: float
    imbalance: float
    products: float


def _probed(
    problem: Problem, operator: Operator, leading: Tensor | None, t: Array, seed: int
) -> _Probed:
    """||A||_F^2 = ||A Q||_F^2 + E ||A P z||^2, cell by cell; the same signs at every point."""
    like = torch.zeros((), dtype=operator.dtype, device=operator.device)
    taken = like.new_zeros(operator.size, 0) if leading is None else leading[:, :TAKEN]
    basis = torch.linalg.qr(taken)[0]
    image = operator.matvec(basis) if basis.shape[1] else basis
    known = image.double().square().sum(1)
    draws, squares, rest = generator(seed), [], torch.zeros_like(known)
    for _ in range(PROBES):
        z = rademacher(operator.size, draws, like)
        z = z - basis @ (basis.T @ z)
        seen = operator.matvec(z).double().square()
        squares.append(float(seen.sum()))
        rest += seen / PROBES
    masses = problem.cells.gather(known + rest)
    total = masses.sum()
    pull = 2 * (problem.cells.exponents.T @ masses) * problem.free / total
    value = float(total) ** 0.5
    stderr = standard_error(torch.tensor(squares, dtype=torch.float64)) / (2 * value)
    products = basis.shape[1] + PROBES
    return _Probed(t, value, stderr, float(np.abs(pull).max(initial=0.0)), float(products))
