"""The classical numbers: loss, slope, and the Hessian's norms, ends and traces."""

from __future__ import annotations

import time
from dataclasses import replace

from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import (
    BOTH_ENDS,
    DIAGONAL,
    DINH,
    ONE_END,
    PERMUTATION,
    PROBES,
    SQUARED,
    SUM,
    SUMMED,
    TOP,
    TRACE,
    Bottom,
    Measure,
    Work,
)
from spiritlevel.measures.instruments import Instruments


def loss(instruments: Instruments) -> Estimate:
    """L(theta)."""
    begin = time.perf_counter()
    return Estimate(instruments.objective.value(), seconds=time.perf_counter() - begin)


def gradient_norm(instruments: Instruments) -> Estimate:
    """||grad L(theta)||_2, zero at a minimum."""
    begin = time.perf_counter()
    value = float(instruments.gradient.double().norm())
    return Estimate(value, seconds=time.perf_counter() - begin)


def lambda_max(instruments: Instruments) -> Estimate:
    """The largest eigenvalue of the Hessian."""
    return instruments.extremes.values[0]


def lambda_min(instruments: Instruments) -> Estimate:
    """The smallest eigenvalue of the Hessian; negative at a saddle."""
    return instruments.extremes.values[-1]


def hessian_spectral(instruments: Instruments) -> Estimate:
    """||H||_2, the largest eigenvalue in magnitude."""
    ends = instruments.extremes.values
    largest = max(ends, key=lambda end: abs(end.value))
    highest = max(ends, key=lambda end: abs(end.value) + end.error)
    bound = abs(highest.value) + highest.error - abs(largest.value)
    # the other end, if less is known of it, may be the larger one
    return replace(
        largest,
        value=abs(largest.value),
        bound=bound,
        status=highest.status,
        remedy=highest.remedy,
    )


def hessian_trace(instruments: Instruments) -> Estimate:
    """tr H, the sum of the eigenvalues: exactly, where diag H is known, else by random signs."""
    begin, known = time.perf_counter(), instruments.curvatures
    if known is None:
        return instruments.probes.trace()
    return Estimate(float(known.sum()), seconds=time.perf_counter() - begin)


def hessian_frobenius(instruments: Instruments) -> Estimate:
    """||H||_F, the root of the sum of the squared eigenvalues."""
    return instruments.probes.frobenius()


def effective_rank(instruments: Instruments) -> Estimate:
    """(tr H)^2 / ||H||_F^2, the number of directions that curve, the participation ratio."""
    known = instruments.curvatures
    return instruments.probes.effective_rank(None if known is None else float(known.sum()))


def layer_traces(instruments: Instruments) -> dict[str, Estimate]:
    """tr H_ll for the diagonal block of every layer."""
    known, layers = instruments.curvatures, dict[str, float]()
    if known is None:
        return instruments.probes.block_traces(_layer)
    for name, span in instruments.objective.spans.items():
        layers[_layer(name)] = layers.get(_layer(name), 0.0) + float(known[span].sum())
    return {layer: Estimate(value) for layer, value in layers.items()}


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


ENTRIES: dict[str, Measure] = {
    "loss": Measure(
        loss,
        title="loss",
        family="loss",
        invariances=DIAGONAL,
        cost="one forward pass",
        standard=True,
        work=Work(passes=1),
        reading="larger means a worse fit",
    ),
    "gradient_norm": Measure(
        gradient_norm,
        title="gradient norm",
        family="loss",
        invariances=PERMUTATION,
        cost="one gradient",
        standard=True,
        work=Work(gradients=1),
        reading="larger means farther from rest",
    ),
    "hessian_spectral": Measure(
        hessian_spectral,
        title="spectral norm",
        family="curvature",
        invariances=PERMUTATION,
        reference=DINH,
        cost=TOP,
        shares="extremes",
        standard=True,
        ends=1,
        is_sharpness=True,
        bottom=Bottom("spectral"),
        work=ONE_END,
        keeps=True,
    ),
    "lambda_max": Measure(
        lambda_max,
        title="largest eigenvalue",
        family="curvature",
        invariances=PERMUTATION,
        reference=DINH,
        cost=TOP,
        shares="extremes",
        standard=True,
        ends=2,
        is_sharpness=True,
        bottom=Bottom("spectral", signed=True),
        work=BOTH_ENDS,
        keeps=True,
    ),
    "lambda_min": Measure(
        lambda_min,
        title="smallest eigenvalue",
        family="curvature",
        invariances=PERMUTATION,
        cost=TOP,
        shares="extremes",
        standard=True,
        ends=2,
        work=BOTH_ENDS,
        reading="below zero means no minimum",
        keeps=True,
    ),
    "hessian_trace": Measure(
        hessian_trace,
        title="trace",
        family="curvature",
        invariances=PERMUTATION,
        reference=DINH,
        cost=SUM,
        shares="probes",
        standard=True,
        is_sharpness=True,
        bottom=Bottom("trace"),
        work=PROBES,
        exact=SUMMED,
        keeps=True,
    ),
    "layer_traces": Measure(
        layer_traces,
        title="in",
        family="curvature",
        invariances=PERMUTATION,
        cost=SUM,
        shares="probes",
        standard=True,
        parts=True,
        work=PROBES,
        exact=SUMMED,
        reading="where the trace comes from",
        keeps=True,
    ),
    "hessian_frobenius": Measure(
        hessian_frobenius,
        title="Frobenius norm",
        family="curvature",
        invariances=PERMUTATION,
        reference=DINH,
        cost=TRACE,
        shares="probes",
        standard=True,
        is_sharpness=True,
        bottom=Bottom("frobenius"),
        work=PROBES,
        exact=SQUARED,
        keeps=True,
    ),
    "effective_rank": Measure(
        effective_rank,
        title="effective rank",
        family="curvature",
        invariances=PERMUTATION,
        cost=TRACE,
        shares="probes",
        standard=True,
        work=PROBES,
        exact=SQUARED,
        reading="larger means more directions that curve",
        keeps=True,
    ),
}
