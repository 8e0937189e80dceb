"""Sharpness that is left when the rescalings which change nothing are taken away."""

from __future__ import annotations

from spiritlevel.base.estimate import Estimate, Status
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
