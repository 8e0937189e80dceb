"""Numbers that no rescaling of a network changes."""

from __future__ import annotations

import math
import time

from spiritlevel.curvature import ggn
from spiritlevel.estimate import Estimate, Status
from spiritlevel.measures.instruments import Instruments
from spiritlevel.operators import scaled
from spiritlevel.orbit import OrbitMinimum, minimum
from spiritlevel.spectral import eigenpairs


def orbit_spectral(instruments: Instruments) -> Estimate:
    """min over the orbit of the largest eigenvalue of the Gauss-Newton matrix."""
    found = minimum(
        instruments.objective,
        instruments.group,
        seed=instruments.seed,
        diagonal=instruments.diagonal,
    )
    return _estimate(found)


def orbit_trace(instruments: Instruments) -> Estimate:
    """min over the orbit of the trace of the Gauss-Newton matrix."""
    found = minimum(
        instruments.objective, instruments.group, norm="trace", diagonal=instruments.diagonal
    )
    return _estimate(found)


def _estimate(found: OrbitMinimum) -> Estimate:
    """The distance to the lower bound is the error."""
    assert found.lower_bound is not None
    return Estimate(
        found.value,
        residual=found.value - found.lower_bound,
        matvecs=found.products,
        seconds=found.seconds,
        status=found.status,
        remedy="" if found.status is Status.CONVERGED else "the search did not come to rest",
    )


def adaptive_spectral(instruments: Instruments) -> Estimate:
    """||diag|theta| H diag|theta| ||_2: worst-case curvature relative to each parameter.

    The second-order form of adaptive sharpness (Kwon et al., 2021, elementwise).
    """
    operator = scaled(instruments.hessian, instruments.objective.vector.abs())
    top = eigenpairs(
        operator,
        which="magnitude",
        tol=instruments.tol,
        budget=instruments.budget,
        seed=instruments.seed,
    )[0]
    return Estimate(
        abs(top.value),
        residual=top.residual,
        matvecs=top.matvecs,
        seconds=top.seconds,
        status=top.status,
        remedy=top.remedy,
    )


def fisher_rao(instruments: Instruments) -> Estimate:
    """sqrt(theta' G theta), the Fisher-Rao norm (Liang et al., 2019).

    G is the Gauss-Newton matrix, which is the Fisher where the loss is a log-likelihood.
    """
    begin = time.perf_counter()
    theta = instruments.objective.vector
    square = float(theta.double() @ (ggn(instruments.objective) @ theta).double())
    return Estimate(math.sqrt(max(square, 0.0)), matvecs=1, seconds=time.perf_counter() - begin)
