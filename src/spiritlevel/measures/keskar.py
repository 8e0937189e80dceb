"""Keskar's sharpness: the worst loss in a box of the parameters, or of a random subspace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import Bounds, minimize
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.tensors import gaussian, generator, laid_along
from spiritlevel.measures.base import PERMUTATION, Measure, Work
from spiritlevel.measures.instruments import Instruments

ITERATIONS = 10  # part of the published definition
EPS = 1e-3
SUBSPACE = 100
SUBSPACE_NUMBERS = 5 * 10**8  # of the random matrix, that is 2 or 4 GB


def keskar(instruments: Instruments, eps: float = EPS) -> Estimate:
    """100 (max over |y_i| <= eps (|x_i| + 1) of f(x + y) - f(x)) / (1 + f(x)).

    Keskar et al. (2017), full space: ten iterations of L-BFGS-B on the whole training loss.
    """
    x = instruments.objective.vector
    box = eps * (x.abs() + 1)
    start = laid_along(_chance(instruments, len(x)), x)  # goes along with a renumbering of units
    return _keskar(instruments, start, lambda z: box * z, lambda g: box * g, eps)


def keskar_subspace(instruments: Instruments, eps: float = EPS) -> Estimate:
    """Keskar's sharpness over x + A y, A a random matrix of 100 unit columns.

    |y_i| <= eps (|(A^+ x)_i| + 1); how the columns were normalized is not published.
    """
    objective = instruments.objective
    x, p = objective.vector, min(SUBSPACE, objective.size)
    if objective.size * p > SUBSPACE_NUMBERS:
        raise SpiritlevelError(
            f"keskar_subspace lays out a matrix of {objective.size} x {p} numbers: too many; "
            'choose parameters with params=, or use "keskar"'
        )
    a = gaussian((objective.size, p), generator(instruments.seed), x)
    a = a / a.norm(dim=0)
    pseudo = torch.linalg.lstsq(a, x[:, None]).solution[:, 0]
    box = eps * (pseudo.abs() + 1)
    start = _chance(instruments, p)
    return _keskar(instruments, start, lambda z: a @ (box * z), lambda g: box * (a.T @ g), eps)


Map = Callable[[Tensor], Tensor]


def _chance(instruments: Instruments, count: int) -> Tensor:
    """A random place in [-1, 1]^p, where the search begins."""
    draws = generator(instruments.seed)
    return 2 * torch.rand(count, generator=draws, dtype=torch.float64) - 1


def _keskar(instruments: Instruments, start: Tensor, forth: Map, back: Map, eps: float) -> Estimate:
    """The box is mapped to [-1, 1]^p and the rise divided by eps^2, or SciPy would not move."""
    if not eps**2 > 0:
        raise SpiritlevelError(f"eps={eps:g} is too small: give one whose square is a number")
    objective, begin = instruments.objective, time.perf_counter()
    theta, base = objective.vector, objective.value()
    best, passes = base, 0

    def fall(z: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, passes
        there = objective.at(theta + forth(torch.from_numpy(z).to(theta)))
        (loss, slope), passes = there.value_and_gradient(), passes + 1
        best = max(best, loss) if math.isfinite(loss) else best
        return -(loss - base) / eps**2, -back(slope).double().cpu().numpy() / eps**2

    minimize(
        fall,
        start.numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(-1.0, 1.0),
        options={"maxiter": ITERATIONS, "ftol": 0.0, "gtol": 0.0},
    )
    return Estimate(
        100 * (best - base) / (1 + base),
        matvecs=passes,
        seconds=time.perf_counter() - begin,
        status=Status.LOWER_BOUND,
    )


ENTRIES: dict[str, Measure] = {
    "keskar": Measure(
        keskar,
        title="Keskar sharpness",
        family="worst case",
        invariances=PERMUTATION,
        reference="Keskar et al. (2017)",
        cost="12 gradients",
        is_sharpness=True,
        work=Work(gradients=12),
    ),
    "keskar_subspace": Measure(
        keskar_subspace,
        title="Keskar, 100 directions",
        family="worst case",
        reference="Keskar et al. (2017)",
        cost="12 gradients",
        is_sharpness=True,
        work=Work(gradients=12),
    ),
}
