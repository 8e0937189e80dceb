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
from spiritlevel.spectral import density
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.spectral.probes import standard_error

GAMMA = 10.0
LEVELS, CHAINS = 24, 8
POWER = 3  # the weights of the loss are (k / levels)^3: most change at small ones
LOCALIZATION = 100.0
WALKS, STEPS, LEAPS = 6, 54, 2
WARM_UP = 1 / 3  # of a chain
AGREED = 1.1  # of the Gelman-Rubin ratio of chains that agree
SOME = 0.3  # acceptance
PROBES, LANCZOS = 12, 16
MORE, NUMBERS = 8, 2**28  # times as many steps for the gradient, and numbers that they may hold


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


def local_entropy_laplace(
    instruments: Instruments, gamma: float = GAMMA, probes: int = PROBES, steps: int = LANCZOS
) -> Estimate:
    """n/2 log 2pi - L - log det(H + gamma I) / 2 + g' (H + gamma I)^-1 g / 2, g the gradient.

    The local entropy of the quadratic that touches the loss (Chaudhari et al., 2017).
    The determinant by stochastic Lanczos quadrature, exactly where the Hessian is small.
    """
    begin, operator = time.perf_counter(), instruments.hessian
    if operator.size <= probes * steps:
        found = _dense(instruments.whole, instruments.gradient.double(), gamma)
    else:
        found = _quadrature(instruments, gamma, max(probes, 2), steps)
    objective = instruments.objective
    constant = objective.size / 2 * math.log(2 * math.pi) - objective.value()
    return Estimate(
        constant + (found.form - found.log_det) / 2,
        stderr=found.stderr / 2 if found.products else None,
        matvecs=found.products * operator.cost,
        seconds=time.perf_counter() - begin,
        status=found.status,
        remedy="" if found.status is not Status.BUDGET else "raise steps=, or give a larger gamma=",
    )


@dataclass(frozen=True)
class _Quadratic:
    """log det(H + gamma I) with its error, and g' (H + gamma I)^-1 g."""

    log_det: float
    form: float
    stderr: float = 0.0
    products: float = 0.0
    status: Status = Status.EXACT


def _dense(hessian: Tensor, slope: Tensor, gamma: float) -> _Quadratic:
    values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
    _refuse_saddle(float(values[0]), gamma)
    form = (vectors.T @ slope).square() / (values + gamma)
    return _Quadratic(float((values + gamma).log().sum()), float(form.sum()))


def _quadrature(instruments: Instruments, gamma: float, probes: int, steps: int) -> _Quadratic:
    operator = instruments.hessian
    ends = instruments.extremes.values
    low, high = ends[-1].value - ends[-1].error, ends[0].value + ends[0].error
    _refuse_saddle(low, gamma)
    rule = density(operator, probes=probes, steps=steps, points=1, seed=instruments.seed)
    terms = operator.size * (rule.weights * (rule.nodes / gamma).log1p()).sum(1)
    # what more Lanczos steps would change falls by this power of the root of the condition number
    root = math.sqrt((gamma + high) / (gamma + low))
    cut = 2 * operator.size * math.log(root) * ((root - 1) / (root + 1)) ** (2 * steps)
    spread = standard_error(terms)
    form, width, rounding, taken = _form(instruments, gamma, steps, spread, (low, high))
    return _Quadratic(
        log_det=operator.size * math.log(gamma) + float(terms.mean()),
        form=form,
        stderr=math.hypot(spread, cut, width, rounding),
        products=probes * steps + taken,
        status=Status.CONVERGED if max(cut, width) <= spread else Status.BUDGET,
    )


def _form(
    instruments: Instruments, gamma: float, steps: int, enough: float, ends: tuple[float, float]
) -> tuple[float, float, float, int]:
    """g' (H + gamma I)^-1 g, how far off it may be, its rounding error, and how many steps it took.

    It is x' g + r' (H + gamma I)^-1 r, x of the Krylov space of g and r = g - (H + gamma I) x.
    The second term lies between ||r||^2 over the ends of H + gamma I: its middle is added, half of
    the range is the error. Steps are taken until that is `enough`, as far as memory allows.
    """
    operator, slope = instruments.hessian, instruments.gradient
    if float(slope.norm()) == 0:
        return 0.0, 0.0, 0.0, 0
    square = _square(slope)
    most = max(steps, min(MORE * steps, NUMBERS // operator.size))
    krylov = Krylov(operator, slope, most, generator(instruments.seed))
    while True:
        krylov.expand()
        if krylov.length % steps and not krylov.full:
            continue
        values, coordinates, _ = krylov.ritz()
        shares = coordinates[0] / (values + gamma)
        form = square * float((coordinates[0] * shares).sum())
        m, known = krylov.length, krylov.length + krylov.pending
        rest = krylov.coefficients[m:known, :m] @ (coordinates @ shares)
        least, largest = (square * _square(rest) / (gamma + end) for end in reversed(ends))
        if krylov.full or (largest - least) / 2 <= enough:
            width, rounding = (largest - least) / 2, krylov.rounding * form
            return form + (least + largest) / 2, width, rounding, m


def _square(vector: Tensor) -> float:
    return float(vector.double().square().sum())


def _refuse_saddle(lowest: float, gamma: float) -> None:
    if lowest <= -gamma:
        raise SpiritlevelError(
            f"H + gamma I is not positive definite: an eigenvalue of H may be {lowest:.3g}; give "
            "a larger gamma=, or use local_entropy, which needs no quadratic"
        )


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
    "local_entropy_laplace": Measure(
        local_entropy_laplace,
        title="local entropy, order 2",
        family="entropy",
        invariances=PERMUTATION,
        reference="Chaudhari et al. (2017)",
        cost="210 products",
        shares="extremes",
        ends=2,
        work=Work(products=260),
        reading="larger means more room around the point",
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
