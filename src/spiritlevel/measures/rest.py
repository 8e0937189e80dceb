"""Whether a point is a minimum: what a step still gains, and which way the loss curves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spiritlevel.base.operator import Operator
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.measures.instruments import Instruments
from spiritlevel.results.rest import Rest
from spiritlevel.spectral.krylov import Krylov

STEPS = 12  # products of the Krylov space in which the step is made
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)  # of the largest curvature: from Newton's step to a gradient's


def rest(instruments: Instruments) -> Rest | None:
    """Whether this point is a minimum; None where nothing was asked of its curvature."""
    if not instruments.used("extremes"):
        return None
    objective = instruments.objective
    loss, gradient = objective.value(), instruments.gradient
    slope = float(gradient.double().norm())
    krylov = _around(instruments.hessian, gradient, slope, generator(instruments.seed))
    values, coordinates, _ = krylov.ritz()
    parts = coordinates[0] * float(krylov.basis[0].double() @ gradient.double())  # 0 without slope
    norm = float(values.abs().max())
    sizes = [values.abs() + damping * norm for damping in DAMPINGS if norm]  # else no step is known
    steps = [coordinates @ (-parts / size) for size in sizes]
    moves = krylov.lift(torch.stack(steps, 1)).unbind(1) if steps else ()
    tried = [objective.at(objective.vector + move).value() for move in moves]
    unbounded = math.inf if slope else 0.0
    seen = [end.value for end in instruments.extremes.values]
    return Rest(
        loss=loss,
        reached=min([loss, *(value for value in tried if math.isfinite(value))]),
        model=float((parts**2 / sizes[0]).sum() / 2) if sizes else unbounded,
        slope=slope,
        lowest=min(*seen, float(values[0])),
        highest=max(*seen, float(values[-1])),
        products=krylov.products,
    )


def _around(operator: Operator, gradient: Tensor, slope: float, draws: torch.Generator) -> Krylov:
    """Of the gradient and a random vector: negative curvature may lie across the slope."""
    random = gaussian(operator.size, draws, gradient)
    start = torch.stack([gradient, random] if slope > 0 else [random], 1)[:, : operator.size]
    krylov = Krylov(operator, start, STEPS, draws)
    for _ in range(min(STEPS, operator.size)):
        krylov.expand()
    return krylov
