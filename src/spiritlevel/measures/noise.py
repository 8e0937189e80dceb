"""The mean loss under random perturbations of the parameters."""

from __future__ import annotations

import math
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
from spiritlevel.objective.telling import hardest
from spiritlevel.spectral.probes import standard_error, student

SIGMA = 0.01
ADAPTIVE_SIGMA = 0.1
LOOKS = (16, 32, 64, 128)  # pairs of draws after which the standard error is looked at
# What noise does to a fifth of the data, the hardest, is what it does to all of them, but for a
# few percent of the scatter: few draws are made on all the data, and many on that fifth.
SHARE, HARD_LOOKS = 0.2, (8, *LOOKS)
TELLS = 0.8  # of the scatter: a part that says less costs more than it spares
WORTH, FEWEST = 2**25, 200  # parameters times examples, and examples, for which that is faster


class _Rises:
    """Rises of the loss under noise: of all the data, and of a part that moves with them.

    The mean is that of all the data, corrected by b (mean of all draws of the part - mean of those
    that both have), with b by least squares: unbiased but for O(1/n), whatever the part is.
    """

    def __init__(self, objective: Objective, spread: Tensor, seed: int) -> None:
        self.objective, self.spread, self.theta = objective, spread, objective.vector
        self.draws = generator(seed)
        large = objective.size * objective.examples >= WORTH and objective.examples >= FEWEST
        self.part = hardest(objective, SHARE) if large else None
        self.share = 0.0 if self.part is None else self.part.examples / objective.examples
        self.bases = [o.value() for o in (objective, self.part) if o]
        # in which the part is chosen and met; the value of all the data is known
        self.passes = 0.0 if self.part is None else 1 + 2 * self.share
        self.both: list[tuple[float, float]] = []  # of all the data and of the part
        self.more: list[float] = []  # of the part alone

    @property
    def drawn(self) -> int:
        return len(self.both) + len(self.more)

    def draw(self, whole: bool = True) -> None:
        step = self.spread * gaussian(self.objective.size, self.draws, self.theta)
        if lost(self.theta, step):
            raise SpiritlevelError(
                f"the noise is lost in the rounding of {self.objective.dtype}, for which the "
                "parameters are too large: try dtype=torch.float64, or more noise"
            )
        hard = 0.0 if self.part is None else self._rise(self.part, step) - self.bases[1]
        if not whole:
            self.more.append(hard)
            return
        self.both.append((self._rise(self.objective, step) - self.bases[0], hard))

    def _rise(self, objective: Objective, step: Tensor) -> float:
        """The mean loss at a pair of points: the slope drops out."""
        pair = [objective.at(self.theta + sign * step).value() for sign in (1, -1)]
        self.passes += 2 * (1.0 if objective is self.objective else self.share)
        return sum(pair) / 2

    def found(self) -> tuple[float, float, float]:
        """The mean, its standard error, and how much of that more draws of the part would spare."""
        rises, hard = torch.tensor(self.both, dtype=torch.float64).unbind(1)
        n, value = len(rises), float(rises.mean())
        if self.part is None:
            return value, standard_error(rises), 0.0
        beside = hard - hard.mean()
        size = float(beside.square().sum())
        slope = float(beside @ rises) / size if size else 0.0
        left = float((rises - value - slope * beside).square().sum()) / max(n - 2, 1)
        every = torch.cat([hard, torch.tensor(self.more, dtype=torch.float64)])
        shift = float(every.mean() - hard.mean())
        fixed = left * (1 / n + (shift**2 / size if size else 0.0))
        spared = slope**2 * float(every.var())
        widened = student(max(n - 1, 2))
        error = widened * math.sqrt(fixed + spared / len(every))
        return value + slope * shift, error, spared * widened**2

    def judge(self) -> None:
        """Go on without a part that says too little."""
        together = torch.corrcoef(torch.tensor(self.both, dtype=torch.float64).T)[0, 1]
        if not float(together) ** 2 >= TELLS:
            self.part, self.more = None, []

    def missing(self, rtol: float) -> float:
        """So many more draws of the part alone would do; none is enough where that is infinite."""
        value, error, spared = self.found()
        target = (rtol * value) ** 2
        if error**2 <= target:
            return 0
        known = error**2 - spared / self.drawn
        return math.inf if known >= target else spared / (target - known) - self.drawn

    def affordable(self, more: float) -> bool:
        """Whether draws of the part would cost no more than those on all the data."""
        return 0 < more < math.inf and self.share * (self.drawn + more) <= len(self.both)


@set_apart(whole=False)
def mean_rise(
    objective: Objective, spread: Tensor, *, rtol: float = 0.05, seed: int = 0
) -> Estimate:
    """E over z ~ N(0, I) of L(theta + s * z) - L, from pairs z and -z: the slope drops out."""
    begin, rises = time.perf_counter(), _Rises(objective, spread, seed)
    status, remedy = Status.BUDGET, "raise rtol, or accept the error"
    try:
        if _drawn(rises, rtol):
            status, remedy = Status.CONVERGED, ""
    except KeyboardInterrupt:
        if not keeps_what_is_done() or len(rises.both) < 2:
            raise
        status, remedy = Status.INTERRUPTED, "run again, or accept the error"
    if not all(map(math.isfinite, [*sum(rises.both, ()), *rises.more])):
        raise SpiritlevelError(
            "the loss overflows under this noise: the parameters are of too different sizes for "
            f"{objective.dtype}; try dtype=torch.float64"
        )
    value, error, _ = rises.found()
    return Estimate(
        value,
        stderr=error,
        matvecs=rises.passes,
        seconds=time.perf_counter() - begin,
        status=status,
        remedy=remedy,
    )


def _drawn(rises: _Rises, rtol: float) -> bool:
    """Whether the standard error came out small enough."""
    with bar(LOOKS[-1], "noise") as progress:
        for look in LOOKS if rises.part is None else HARD_LOOKS:
            while len(rises.both) < look:
                rises.draw()
                progress.update()
            rises.judge()
            while rises.affordable(more := rises.missing(rtol)):
                for _ in range(math.ceil(more)):
                    rises.draw(whole=False)
            if more <= 0:
                return True
    return False


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
        cost="20 to 500 forward passes",
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
        cost="20 to 500 forward passes",
        is_sharpness=True,
        work=Work(passes=64),
        keeps=True,
    ),
}
