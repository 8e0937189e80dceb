"""How the eigenvalues of the Hessian are spread: flat, bent up, bent down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.base import PERMUTATION, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.spectral import Density, density
from spiritlevel.spectral.density import resolution

PROBES = 4  # steps matter more: they place eigenvalues, and many eigenvalues average by themselves
COST = "200 products"
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Dense:
    """All eigenvalues of a small matrix, one by one; sums over them as those of a Density."""

    nodes: Tensor
    resolution: float
    matvecs: float
    seconds: float

    def sum_over(
        self,
        of: Callable[[Tensor], Tensor] = torch.ones_like,
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> Estimate:
        inside = torch.ones_like(self.nodes, dtype=torch.bool)
        if low is not None:
            inside &= self.nodes > low
        if high is not None:
            inside &= self.nodes < high
        value = float(of(self.nodes[inside]).sum())
        return Estimate(value, matvecs=self.matvecs, seconds=self.seconds)


def spectrum(instruments: Instruments) -> Dense | Density:
    """Every eigenvalue where the budget pays for it, else the density by Lanczos quadrature."""

    def make() -> Dense | Density:
        operator, budget = instruments.hessian, instruments.budget
        if operator.size <= budget:
            return _dense(instruments)
        steps = max(budget // PROBES, 1)
        return density(operator, probes=PROBES, steps=steps, seed=instruments.seed)

    return instruments.once("spectrum", make)


def _dense(instruments: Instruments) -> Dense:
    begin, operator = time.perf_counter(), instruments.hessian
    matrix = instruments.whole.cpu()
    nodes = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    blur = resolution(operator) * float(nodes.abs().max())
    return Dense(nodes, blur, operator.size * operator.cost, time.perf_counter() - begin)


def log_determinant(instruments: Instruments, above: float = 1e-3) -> Estimate:
    """sum of log lambda over the eigenvalues lambda > above * ||H||_2.

    log det of the part of the Hessian that bends up: less log volume of {L < L(theta) + eps} in
    these directions, and the weight of a minimum in the long run of SGD (Jastrzebski et al., 2018).
    0 if nothing does. Which eigenvalues count is a choice: near `above` there usually are many. An
    error of the density says how many of them may be on the other side, each worth
    |log(above * ||H||_2)|.
    """
    found = spectrum(instruments)
    total = found.sum_over(torch.log, low=_threshold(found, above))
    return _judged(instruments, total, abs(total.value))


def near_zero_share(
    instruments: Instruments, below: float = 1e-3, absolute: bool = False
) -> Estimate:
    """Share of eigenvalues with |lambda| < below * ||H||_2, or < below if `absolute`; 1 if H = 0.

    Sagun et al. (2017); Chaudhari et al. (2017) count those below 1e-4 or so, absolutely.
    """
    found = spectrum(instruments)
    edge = _threshold(found, below, absolute)
    return _share(instruments, found.sum_over(low=-edge, high=edge))


def negative_share(instruments: Instruments, below: float = 1e-3) -> Estimate:
    """Share of eigenvalues lambda < -below * ||H||_2: the index of a saddle, but for tiny ones.

    Without a threshold (Dauphin et al., 2014) no rescaling would change it, by Sylvester's law of
    inertia; but neither would rounding let it be counted where many eigenvalues are zero.
    """
    found = spectrum(instruments)
    return _share(instruments, found.sum_over(high=-_threshold(found, below)))


def _threshold(found: Dense | Density, relative: float, absolute: bool = False) -> float:
    """As asked for, but not where rounding scatters zeros."""
    norm = 1.0 if absolute else float(found.nodes.abs().max())
    return max(relative * norm, 2 * found.resolution, TINY)  # a flat loss has zeros only


def _share(instruments: Instruments, count: Estimate) -> Estimate:
    size = instruments.hessian.size
    stderr = None if count.stderr is None else count.stderr / size
    return _judged(instruments, replace(count, value=count.value / size, stderr=stderr), 1.0)


def _judged(instruments: Instruments, found: Estimate, scale: float) -> Estimate:
    """Converged only if the error is at most rtol of a scale: the value, or the whole of shares."""
    if found.status is not Status.CONVERGED or found.error <= instruments.rtol * scale:
        return found
    return replace(found, status=Status.BUDGET, remedy="raise budget, or accept the error")


ENTRIES: dict[str, Measure] = {
    "log_determinant": Measure(
        log_determinant,
        title="log determinant",
        family="curvature",
        invariances=PERMUTATION,
        reference="Jastrzebski et al. (2018)",
        cost=COST,
        shares="spectrum",
        work=Work(products=200, rough=1 / 5),
        reading="larger means less volume where it bends up",
    ),
    "near_zero_share": Measure(
        near_zero_share,
        title="flat share",
        family="curvature",
        invariances=PERMUTATION,
        reference="Sagun et al. (2017)",
        cost=COST,
        shares="spectrum",
        work=Work(products=200, rough=1 / 5),
        reading="larger means more directions that do not curve",
    ),
    "negative_share": Measure(
        negative_share,
        title="negative share",
        family="curvature",
        invariances=PERMUTATION,
        reference="Dauphin et al. (2014)",
        cost=COST,
        shares="spectrum",
        work=Work(products=200, rough=1 / 5),
        reading="larger means more ways down",
    ),
}
