"""The mean loss under random perturbations of the parameters."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.interrupts import keeps_what_is_done
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator, lost
from spiritlevel.measures.base import DIAGONAL, PERMUTATION, Bottom, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.spectral.probes import standard_error

SIGMA = 0.01
ADAPTIVE_SIGMA = 0.1
LOOKS = (16, 32, 64, 128)  # pairs of draws after which the standard error is looked at


@set_apart(whole=False)
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
                if lost(theta, step):
                    raise SpiritlevelError(
                        f"the noise is lost in the rounding of {objective.dtype}, for which the "
                        "parameters are too large: try dtype=torch.float64, or more noise"
                    )
                pair = [objective.at(theta + sign * step).value() for sign in (1, -1)]
                rises.append(sum(pair) / 2 - base)
                progress.update()
                if len(rises) in LOOKS and _enough(rises, rtol):
                    status, remedy = Status.CONVERGED, ""
                    break
        except KeyboardInterrupt:
            if not keeps_what_is_done() or len(rises) < 2:
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
        keeps=True,
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
        keeps=True,
    ),
}
