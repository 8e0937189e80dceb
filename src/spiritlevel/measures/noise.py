"""The mean loss under random perturbations of the parameters."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.measures.base import DIAGONAL, PERMUTATION, Bottom, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import Total
from spiritlevel.spectral.probes import standard_error

SIGMA = 0.01
ADAPTIVE_SIGMA = 0.1
SMALLEST = 1e-10  # norm of logits that all are one number, beyond which they are not divided by it
LOOKS = (16, 32, 64, 128)  # pairs of draws after which the standard error is looked at


@set_apart()
def mean_rise(
    objective: Objective, spread: Tensor, *, rtol: float = 0.05, seed: int = 0
) -> Estimate:
    """E over z ~ N(0, I) of L(theta + s * z) - L, from pairs z and -z: the slope drops out."""
    begin, base, theta = time.perf_counter(), objective.value(), objective.vector
    draws, rises = generator(seed), []
    status, remedy = Status.BUDGET, "raise rtol, or accept the error"
    with bar(LOOKS[-1], "noise") as progress:
        try:
            while len(rises) < LOOKS[-1]:
                step = spread * gaussian(objective.size, draws, theta)
                pair = [objective.at(theta + sign * step).value() for sign in (1, -1)]
                rises.append(sum(pair) / 2 - base)
                progress.update()
                if len(rises) in LOOKS and _enough(rises, rtol):
                    status, remedy = Status.CONVERGED, ""
                    break
        except KeyboardInterrupt:
            if len(rises) < 2:
                raise
            status, remedy = Status.INTERRUPTED, "run again, or accept the error"
    found = torch.tensor(rises, dtype=torch.float64)
    if not bool(found.isfinite().all()):
        raise SpiritlevelError(
            "the loss overflows under this noise: the parameters are of too different sizes for "
            f"{objective.dtype}; try dtype=torch.float64"
        )
    return Estimate(
        float(found.mean()),
        stderr=standard_error(found),
        matvecs=2 * len(rises),
        seconds=time.perf_counter() - begin,
        status=status,
        remedy=remedy,
    )


def _enough(rises: list[float], rtol: float) -> bool:
    found = torch.tensor(rises, dtype=torch.float64)
    return standard_error(found) <= rtol * abs(float(found.mean()))


def expected_sharpness(instruments: Instruments, sigma: float = SIGMA) -> Estimate:
    """E over d ~ N(0, sigma^2 I) of L(theta + d) - L (Neyshabur et al., 2017)."""
    spread = torch.full_like(instruments.objective.vector, sigma)
    return mean_rise(instruments.objective, spread, rtol=instruments.rtol, seed=instruments.seed)


def adaptive_average(instruments: Instruments, sigma: float = ADAPTIVE_SIGMA) -> Estimate:
    """E over d ~ N(0, sigma^2 diag(theta^2)) of L(theta + d) - L (Andriushchenko et al., 2023)."""
    spread = sigma * instruments.objective.vector.abs()
    return mean_rise(instruments.objective, spread, rtol=instruments.rtol, seed=instruments.seed)


def adaptive_average_normalized(
    instruments: Instruments, sigma: float = ADAPTIVE_SIGMA
) -> Estimate:
    """E over d ~ N(0, sigma^2 diag(theta^2)) of L(theta + d) - L, logits of unit norm.

    Andriushchenko et al. (2023): without it the scale of the outputs, which decides nothing, is
    free to make a cross-entropy steep or flat. Logits are centred, as in the authors' code.
    """
    unit = unit_logits(instruments.objective)
    return mean_rise(unit, sigma * unit.vector.abs(), rtol=instruments.rtol, seed=instruments.seed)


def unit_logits(objective: Objective) -> Objective:
    """The same network with (f - mean f) / ||f - mean f|| over the classes for its logits f."""
    loss = objective.loss
    on_outputs = loss.on_outputs
    if loss.likelihood != "softmax" or on_outputs is None:
        raise SpiritlevelError(
            "only the logits of several classes can be normalized; use cross_entropy or nll_loss, "
            "or the measure without normalization"
        )

    def normalized(out: Tensor, batch: Batch) -> Total:
        centred = out - out.mean(loss.class_axis, keepdim=True)
        sizes = centred.norm(dim=loss.class_axis, keepdim=True)
        return on_outputs(centred / sizes.clamp(min=SMALLEST), batch)

    return objective.replaced(
        _loss=replace(
            loss,
            total=lambda model, b: normalized(loss.outputs(model, b), b),
            on_outputs=normalized,
        )
    )


ENTRIES: dict[str, Measure] = {
    "expected_sharpness": Measure(
        expected_sharpness,
        title="expected sharpness",
        family="noise",
        invariances=PERMUTATION,
        reference="Neyshabur et al. (2017)",
        cost="32 to 256 forward passes",
        is_sharpness=True,
        bottom=Bottom("trace", factor=lambda _: SIGMA**2 / 2, order=2),
        work=Work(passes=32),
    ),
    "adaptive_average": Measure(
        adaptive_average,
        title="adaptive average",
        family="noise",
        invariances=DIAGONAL,
        reference="Andriushchenko et al. (2023)",
        cost="32 to 256 forward passes",
        is_sharpness=True,
        work=Work(passes=64),
    ),
    "adaptive_average_normalized": Measure(
        adaptive_average_normalized,
        title="adaptive average, unit logits",
        family="noise",
        invariances=(*DIAGONAL, "output"),
        reference="Andriushchenko et al. (2023)",
        cost="32 to 256 forward passes",
        is_sharpness=True,
        work=Work(passes=64),
    ),
}
