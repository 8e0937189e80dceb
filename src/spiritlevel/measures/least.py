"""Sharpness that is left when the rescalings which change nothing are taken away."""

from __future__ import annotations

from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.base import LAYER, TWO, UNIT, Bottom, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.orbit import OrbitMinimum


def orbit_spectral(instruments: Instruments) -> Estimate:
    """min over the orbit of the largest eigenvalue of the Gauss-Newton matrix."""
    return _estimate(instruments.least_norm)


def orbit_trace(instruments: Instruments) -> Estimate:
    """min over the orbit of the trace of the Gauss-Newton matrix."""
    return _estimate(instruments.least_trace)


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
}
