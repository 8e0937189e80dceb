"""Sharpness of networks with attention, where no change of basis inside a head is seen."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.operator import Operator
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.measures.ball import ADAPTIVE_RADIUS
from spiritlevel.measures.base import LAYER, ONE_END, TOP, TWO, Measure, Work
from spiritlevel.measures.heads import Chart, chart_of
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.spectral import eigenpairs
from spiritlevel.witnesses.worst import BALLS, Worst, highest, leads

ROUGHLY = 0.05  # the tolerance of a direction in which a search begins


def geodesic_curvature(instruments: Instruments) -> Estimate:
    """lambda_max(S H S), S^-2 the metric tr((U U')^-1 dU dU' + (V V')^-1 dV dV') of every head.

    Geodesic sharpness (da Silva et al., 2025) to second order at a critical point, U and V the
    projections to queries and keys, or to values and outputs; all else is relative to itself,
    1/theta^2. No invertible map of a head changes it; gains of single channels before the heads
    do. Directions along those maps are not left out: at a critical point they do not curve.
    """
    objective = instruments.objective
    chart = instruments.once(
        "heads", lambda: chart_of(objective, "geodesic_curvature", "adaptive_spectral")
    )
    return eigenpairs(
        _in_metric(instruments.hessian, chart),
        tol=instruments.tol,
        budget=instruments.budget,
        seed=instruments.seed,
    )[0]


def geodesic_sharpness(instruments: Instruments, radius: float = ADAPTIVE_RADIUS) -> Estimate:
    """max over |xi|_g <= rho, xi horizontal, of L(geodesic(xi)) - L, a lower bound.

    Da Silva, Dangel and Oore (2025). g is tr((U U')^-1 dU dU' + (V V')^-1 dV dV') on every head, a
    bias relative to its size in that metric, all else relative to itself; xi is horizontal where it
    is orthogonal to all maps of the heads, and the geodesic is followed to second order, in all
    parameters: theta (1 + t + t^2 / 2) where it is a single one.
    """
    objective = instruments.objective
    chart = instruments.once(
        "heads", lambda: chart_of(objective, "geodesic_sharpness", "adaptive_worst")
    )
    curves = _in_metric(instruments.hessian, chart)
    top = eigenpairs(curves, tol=ROUGHLY, seed=instruments.seed)
    found = worst_along_geodesics(
        objective, chart, radius, start=top.vectors[:, 0], seed=instruments.seed
    )
    spent = found.passes + top[0].matvecs
    return replace(found.estimate(found.rise), matvecs=spent)


@set_apart()
def worst_along_geodesics(
    objective: Objective, chart: Chart, radius: float, *, start: Tensor, seed: int = 0
) -> Worst:
    """The largest L(geodesic(xi)) found for horizontal xi no longer than `radius`.

    Projected ascent in orthonormal coordinates of the metric, from the slope, at random, and from
    `start` both ways. Coordinates and starts go along with any map of a head, so the search does.
    """
    if not all(side.full for side in chart.sides):
        raise SpiritlevelError(
            "a head has more dimensions than its weights have directions (weights that are zero, "
            "or heads wider than what they read): geodesic_sharpness has no metric for it; use "
            "adaptive_worst"
        )
    begin, ball = time.perf_counter(), BALLS["l2"]

    def slope(u: Tensor) -> tuple[float, Tensor]:
        with torch.enable_grad():
            held = u.detach().requires_grad_()
            there = chart.point(held)
            loss, along = objective.at(there.detach()).value_and_gradient()
            [back] = torch.autograd.grad(there, held, along)
        return loss, chart.horizontal(back)

    noise = gaussian(objective.size, generator(seed), objective.vector)
    given = (chart.pull(objective.gradient()), noise, start, -start)
    ways = [way for way in map(chart.horizontal, given) if leads(way)]
    middle = objective.value(), torch.zeros_like(noise)
    starts = (radius * ball.steepest(way) for way in ways)
    loss, u, passes = highest(slope, middle, ball, starts, radius)
    way = chart.point(u) - objective.vector
    return Worst(loss, middle[0], way, passes, time.perf_counter() - begin)


def _in_metric(operator: Operator, chart: Chart) -> Operator:
    """B' A B: the matrix in coordinates in which the metric is the identity."""
    return replace(
        operator,
        matvec=lambda v: chart.pull(operator.matvec(chart.push(v))),
        name=f"{operator.name} in the metric of the heads",
    )


ENTRIES: dict[str, Measure] = {
    "geodesic_curvature": Measure(
        geodesic_curvature,
        title="geodesic curvature",
        family="curvature",
        invariances=LAYER,
        reference="da Silva et al. (2025)",
        cost=TOP,
        is_sharpness=True,
        points=TWO,
        work=ONE_END,
    ),
    "geodesic_sharpness": Measure(
        geodesic_sharpness,
        title="geodesic worst case",
        family="worst case",
        invariances=LAYER,
        reference="da Silva et al. (2025)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50, products=12),
    ),
}
