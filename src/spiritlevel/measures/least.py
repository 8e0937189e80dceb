"""Sharpness that is left when the rescalings which change nothing are taken away."""

from __future__ import annotations

from dataclasses import replace

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.ball import RADIUS, worst_relative
from spiritlevel.measures.base import DINH, LAYER, TWO, UNIT, Bottom, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.orbit import OrbitMinimum, worst_case


def orbit_spectral(instruments: Instruments) -> Estimate:
    """min over the orbit of the largest eigenvalue of the Gauss-Newton matrix."""
    return _estimate(instruments.least_norm)


def orbit_trace(instruments: Instruments) -> Estimate:
    """min over the orbit of the trace of the Gauss-Newton matrix."""
    return _estimate(instruments.least_trace)


def orbit_frobenius(instruments: Instruments) -> Estimate:
    """min over the orbit of the Frobenius norm of the Gauss-Newton matrix."""
    return _estimate(instruments.least("frobenius", seed=instruments.seed))


def balanced_sharpness(instruments: Instruments, radius: float = RADIUS) -> Estimate:
    """max over ||d||_2 <= rho of (L(t + d) - L) / (1 + L), t where tr G is least over the orbit.

    The eps-sharpness of Dinh et al. (2017) at the one point that the orbit singles out, a lower
    bound of it. It is not the least over the orbit, which lies below the true maximum there. Only
    parameters with G_ii > 0 move: no orbit says of which size those of dead units should be.
    """
    least = instruments.least_trace
    if least.divided_out:
        raise SpiritlevelError(
            "this network has rescalings with curvature on one side only (weights before a norm): "
            'its orbit singles out no point; use "orbit_trace" or "adaptive_worst"'
        )
    there = Instruments(least.objective, seed=instruments.seed, compile=instruments.compile)
    curved = (instruments.diagonal.values > 0).to(least.objective.vector)
    found = worst_relative(there, curved, radius)
    return replace(found, value=found.value / (1 + least.objective.value()))


def orbit_worst_case(instruments: Instruments, radius: float = RADIUS) -> Estimate:
    """min over the orbit of max over ||d||_2 <= rho of (L(t + d) - L) / (1 + L), from below.

    What no rescaling avoids: proved for every point of the orbit (`sl.orbit.worst_case`, which also
    says what a search meets), where `balanced_sharpness` is a search at one of them.
    """
    found = worst_case(
        instruments.objective, instruments.group, radius=radius, seed=instruments.seed
    )
    return Estimate(
        found.sharpness,
        matvecs=found.passes,
        seconds=found.seconds,
        status=Status.LOWER_BOUND,
    )


def _estimate(found: OrbitMinimum) -> Estimate:
    """The distance to the lower bound is the error, or that of the random draws."""
    below = None if found.lower_bound is None else found.value - found.lower_bound
    return Estimate(
        found.value,
        stderr=found.stderr,
        residual=below,
        matvecs=found.products,
        seconds=found.seconds,
        status=found.status,
        remedy="" if found.status is Status.CONVERGED else "the search did not come to rest",
    )


def layer_minimum(instruments: Instruments) -> Estimate:
    """min of the trace over one factor per layer: Ibayashi et al.'s minimum sharpness (2021)."""
    return _estimate(instruments.least("trace", instruments.group.layerwise()))


ENTRIES: dict[str, Measure] = {
    "layer_minimum": Measure(
        layer_minimum,
        title="layer-wise minimum",
        family="orbit",
        invariances=LAYER,
        reference="Ibayashi et al. (2021)",
        cost="an exact diagonal",
        is_sharpness=True,
        bottom=Bottom("trace", "ggn"),
        work=Work(diagonals=1),
    ),
    "orbit_trace": Measure(
        orbit_trace,
        title="least Gauss-Newton trace",
        family="orbit",
        invariances=UNIT,
        cost="an exact diagonal",
        is_sharpness=True,
        bottom=Bottom("trace", "ggn"),
        points=TWO,
        work=Work(diagonals=1),
    ),
    "orbit_spectral": Measure(
        orbit_spectral,
        title="least Gauss-Newton norm",
        family="orbit",
        invariances=UNIT,
        cost="30 to 60 products",
        is_sharpness=True,
        bottom=Bottom("spectral", "ggn"),
        points=TWO,
        work=Work(gauss_newton=40, diagonals=1),
    ),
    "orbit_frobenius": Measure(
        orbit_frobenius,
        title="least Frobenius norm of G",
        family="orbit",
        invariances=UNIT,
        cost="500 products, or the whole matrix",
        is_sharpness=True,
        bottom=Bottom("frobenius", "ggn"),
        points=TWO,
        work=Work(gauss_newton=500, diagonals=1),
    ),
    "balanced_sharpness": Measure(
        balanced_sharpness,
        title="eps-sharpness, balanced",
        family="orbit",
        invariances=UNIT,
        reference=DINH,
        cost="an exact diagonal and 40 gradients",
        is_sharpness=True,
        points=TWO,
        work=Work(gradients=40, products=12, diagonals=1),
    ),
    "orbit_worst_case": Measure(
        orbit_worst_case,
        title="least eps-sharpness, proved",
        family="orbit",
        invariances=UNIT,
        reference=DINH,
        cost="about 400 gradients and 60 products",
        is_sharpness=True,
        points=TWO,
        work=Work(gradients=400, products=60, diagonals=1),
    ),
}
