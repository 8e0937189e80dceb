"""How much room there is around the point: local entropies and the learning coefficient."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import generator
from spiritlevel.measures.base import PERMUTATION, Measure, Work
from spiritlevel.measures.examples import units
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.logmean import LogMean, log_mean
from spiritlevel.measures.sampling import Angle, Well
from spiritlevel.objective import Objective
from spiritlevel.spectral.probes import standard_error

GAMMA = 10.0
LEVELS, CHAINS = 24, 8
POWER = 3  # the weights of the loss are (k / levels)^3: most change at small ones
LOCALIZATION = 100.0
WALKS, STEPS, LEAPS = 6, 54, 2
WARM_UP = 1 / 3  # of a chain
AGREED = 1.1  # of the Gelman-Rubin ratio of chains that agree
SOME = 0.3  # acceptance


@dataclass(frozen=True)
class Annealed:
    """log E exp(-(L(x) - L(theta))) over x ~ N(theta, I / gamma), and what it took."""

    mean: LogMean
    passes: float
    seconds: float

    def estimate(self, value: float) -> Estimate:
        """A number that is this logarithm but for a sign and a constant."""
        return Estimate(
            value,
            stderr=self.mean.stderr,
            matvecs=self.passes,
            seconds=self.seconds,
            status=Status.CONVERGED if self.mean.known else Status.BUDGET,
            remedy="" if self.mean.known else "raise levels= or chains=, or give a larger gamma=",
        )


@set_apart()
def annealed(
    objective: Objective,
    gamma: float = GAMMA,
    *,
    levels: int = LEVELS,
    chains: int = CHAINS,
    seed: int = 0,
) -> Annealed:
    """By annealed importance sampling (Neal, 2001): unbiased for the mean, however chains mix.

    Each chain starts with a draw of the Gaussian and takes one Metropolis step for each weight of
    the loss on the way from 0 to 1. One more chain, which does not count, finds their lengths.
    """
    number("chains", chains, 2, whole=True)
    begin, draws, well = time.perf_counter(), generator(seed), Well(objective, gamma)
    weights = [(k / levels) ** POWER for k in range(levels + 1)]
    with bar((chains + 1) * levels, "local entropy") as progress:
        angles = _tuned(well, weights, draws)
        progress.update(levels)
        logs = []
        for _ in range(chains):
            here, log_weight = well.place(well.draw(draws)), 0.0
            for k in range(1, levels + 1):
                log_weight -= (weights[k] - weights[k - 1]) * _finite(here.rise)
                if k < levels:
                    here, _ = well.step(here, weights[k], angles[k], 1, draws)
                progress.update()
            logs.append(log_weight)
    found = log_mean(torch.tensor(logs, dtype=torch.float64))
    return Annealed(found, (chains + 1) * levels, time.perf_counter() - begin)


def _tuned(well: Well, weights: list[float], draws: torch.Generator) -> list[float]:
    """The angles of one leap at every weight, from a chain of its own."""
    here = well.place(well.draw(draws))
    angle, found = Angle.first(well, here, weights[1], 1, draws), [0.0]
    for weight in weights[1:]:
        found.append(angle.value)
        here, acceptance = well.step(here, weight, angle.value, 1, draws)
        angle.tune(acceptance)
    return found


def _finite(rise: float) -> float:
    """A loss that overflowed counts as one that is large: the draw carries nothing."""
    return rise if math.isfinite(rise) else 1e300


def _annealed(instruments: Instruments, gamma: float, levels: int, chains: int) -> Annealed:
    return instruments.once(
        "annealed",
        lambda: annealed(
            instruments.objective, gamma, levels=levels, chains=chains, seed=instruments.seed
        ),
        *(gamma, levels, chains),
    )


def local_entropy(
    instruments: Instruments, gamma: float = GAMMA, levels: int = LEVELS, chains: int = CHAINS
) -> Estimate:
    """F = log of the integral of exp(-L(x) - gamma/2 ||x - theta||^2) over x.

    Chaudhari et al. (2017), who maximize it with a gamma of 1 and less; L is the mean loss.
    """
    found, objective = _annealed(instruments, gamma, levels, chains), instruments.objective
    volume = objective.size / 2 * math.log(2 * math.pi / gamma)
    return found.estimate(found.mean.value - objective.value() + volume)


def local_entropy_gap(
    instruments: Instruments, gamma: float = GAMMA, levels: int = LEVELS, chains: int = CHAINS
) -> Estimate:
    """-log E exp(-(L(x) - L(theta))) over x ~ N(theta, I / gamma): what F lacks to a flat loss.

    The local entropy of Chaudhari et al. (2017) without its constants: -L - F + n/2 log(2pi/gamma).
    """
    found = _annealed(instruments, gamma, levels, chains)
    return found.estimate(-found.mean.value)


@dataclass(frozen=True)
class Walk:
    """n beta (L - L(theta)) along a chain that is warm, and how often it was accepted."""

    rises: Tensor
    acceptance: float


@set_apart()
def walks(
    objective: Objective,
    gamma: float = LOCALIZATION,
    *,
    chains: int = WALKS,
    steps: int = STEPS,
    leaps: int = LEAPS,
    seed: int = 0,
) -> list[Walk]:
    """Chains in exp(-(n / log n) L(x)) N(x; theta, I / gamma), from its middle and from outside.

    Every other one starts with a draw of the Gaussian, far above the density that it walks in: if
    they agree with those from below, they have arrived. Where the loss overflows, from closer by.
    """
    draws, well, weight = generator(seed), Well(objective, gamma), _weight(objective)
    warm, found = math.ceil(WARM_UP * steps), []
    with bar(chains * steps, "chains") as progress:
        for chain in range(chains):
            start = well.draw(draws) if chain % 2 else torch.zeros_like(objective.vector)
            here, accepted, rises = well.inside(start), 0.0, []
            angle = Angle.first(well, here, weight, leaps, draws)
            for step in range(steps):
                if step == warm:
                    angle.keep()
                here, acceptance = well.step(here, weight, angle.value, leaps, draws)
                progress.update()
                if step < warm:
                    angle.tune(acceptance)
                else:
                    rises.append(weight * here.rise)
                    accepted += acceptance
            found.append(Walk(torch.tensor(rises, dtype=torch.float64), accepted / len(rises)))
    return found


def _weight(objective: Objective) -> float:
    """n beta = n / log n: the temperature at which the mean loss tells the coefficient."""
    n = units(objective)
    if n < 2:
        raise SpiritlevelError("the learning coefficient is one of many examples: give at least 2")
    return n / math.log(n)


def local_learning_coefficient(
    instruments: Instruments,
    gamma: float = LOCALIZATION,
    chains: int = WALKS,
    steps: int = STEPS,
) -> Estimate:
    """(n / log n) (E L(x) - L(theta)), x drawn from exp(-(n / log n) L(x)) N(x; theta, I / gamma).

    Lau et al. (2023): d/2 at a regular minimum of d parameters, less at a singular one. Their
    chains are Langevin's; these are corrected by Metropolis, so that no step is too long. What
    gamma holds back does not count: the smaller it is the larger the number, and the slower.
    """
    begin = time.perf_counter()
    number("chains", chains, 2, whole=True)
    number("steps", steps, 12, whole=True)
    found = walks(instruments.objective, gamma, chains=chains, steps=steps, seed=instruments.seed)
    halves = torch.stack([walk.rises[: 2 * (len(walk.rises) // 2)] for walk in found])
    halves = halves.reshape(2 * chains, -1)
    value, stderr = float(halves.mean()), standard_error(halves.mean(1))
    if not math.isfinite(value + stderr):
        raise SpiritlevelError("the loss overflows along the chains: give a larger gamma=")
    remedy = _unhealthy(found, halves, value, stderr)
    return Estimate(
        value,
        stderr=stderr,
        matvecs=chains * (steps + 1) * LEAPS,
        seconds=time.perf_counter() - begin,
        status=Status.BUDGET if remedy else Status.CONVERGED,
        remedy=remedy,
    )


def _unhealthy(found: list[Walk], halves: Tensor, value: float, stderr: float) -> str:
    """What to do about chains that do not mix, do not move, or go down."""
    if value < -2 * stderr:
        return "the loss falls from here, this is no minimum: train further"
    if min(walk.acceptance for walk in found) < SOME:
        return "steps are rarely accepted: raise steps="
    if gelman_rubin(halves) > AGREED:
        return "chains do not agree: raise steps=, or give a larger gamma="
    return ""


def gelman_rubin(chains: Tensor) -> float:
    """sqrt of the variance of all over that within chains, (chains, steps); 1 if they agree."""
    steps = chains.shape[1]
    within = float(chains.var(1).mean())
    between = float(chains.mean(1).var())
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return math.sqrt((steps - 1) / steps + between / within)


ENTRIES: dict[str, Measure] = {
    "local_entropy": Measure(
        local_entropy,
        title="local entropy",
        family="entropy",
        invariances=PERMUTATION,
        reference="Chaudhari et al. (2017)",
        cost="about 200 gradients",
        work=Work(gradients=216),
        reading="larger means more room around the point",
    ),
    "local_entropy_gap": Measure(
        local_entropy_gap,
        title="local entropy gap",
        family="entropy",
        invariances=PERMUTATION,
        reference="Chaudhari et al. (2017)",
        cost="about 200 gradients",
        is_sharpness=True,
        work=Work(gradients=216),
    ),
    "local_learning_coefficient": Measure(
        local_learning_coefficient,
        title="learning coefficient",
        family="entropy",
        invariances=PERMUTATION,
        reference="Lau et al. (2023)",
        cost="about 660 gradients",
        work=Work(gradients=660),
        reading="larger means fewer directions in which nothing changes",
    ),
}
