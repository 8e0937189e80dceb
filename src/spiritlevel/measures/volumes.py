"""The volume of the region around the point where the loss, or the predictions, hardly change.

Of what can be seen from the point: along a ray the region ends where it is first left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import gammaln
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.measures import classes
from spiritlevel.measures.base import DINH, PERMUTATION, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.logmean import log_mean
from spiritlevel.objective import Objective
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.spectral.probes import standard_error

EPS = 0.1  # by how much the loss may rise
CUTOFF = 1e-2  # by how many nats predictions may change
HALF_WIDTH = 1.0
DIRECTIONS = 32
FARTHER, NEAREST = 1.02, 1e-30  # than a parabola says; the least radius that is looked for
NEAR = 1e-6  # relative: the closest that a radius is known, whatever the dimension
LANCZOS, NUMBERS = 128, 2**28  # steps that tell directions apart, and numbers that they may hold
NODES, DEPTH = 200, 45.0  # of a radial integral, and how far its logarithm is followed down

Rise = Callable[[Tensor], float]  # at a place, by how much


@dataclass(frozen=True)
class Rays:
    """How far it is to the end of a region along random directions u.

    `slopes` are theta' u, `weights` log of how much more often than evenly a direction should have
    been drawn, `width` is the relative error of a radius, `passes` what it took.
    """

    radii: Tensor
    slopes: Tensor
    weights: Tensor
    size: int
    width: float
    passes: float
    seconds: float

    def estimate(self, logs: Tensor, constant: float) -> Estimate:
        """constant + log of the mean of exp(logs) over even directions.

        Where few of them carry that mean its error is not known, and the mean of the logarithms
        stands for it: a lower bound (Jensen) with an error that is.
        """
        terms = logs + self.weights
        mean = log_mean(terms)
        value, stderr = mean.value, mean.stderr
        if not mean.known:
            value, stderr = float(terms.mean()), standard_error(terms)
        return Estimate(
            constant + value,
            stderr=math.hypot(stderr, self.size * self.width),
            matvecs=self.passes,
            seconds=self.seconds,
            status=Status.CONVERGED if mean.known else Status.LOWER_BOUND,
        )


@dataclass(frozen=True)
class Shape:
    """v -> A v = v + V (s - 1) V' v with V orthonormal: directions in which there is more room."""

    vectors: Tensor
    factors: Tensor
    products: float = 0.0
    seconds: float = 0.0

    def __call__(self, v: Tensor) -> Tensor:
        return v + self.vectors @ ((self.factors - 1) * (self.vectors.T @ v))

    @property
    def log_det(self) -> float:
        return float(self.factors.double().log().sum())


def shape(instruments: Instruments, bend: float) -> Shape:
    """A = (bend / (|H| + bend))^(1/2), for what some Lanczos steps see of the Hessian H.

    What is drawn with it is unbiased whatever it is; a good one takes the variance away.
    """
    begin = time.perf_counter()
    operator, draws = instruments.hessian, generator(instruments.seed)
    steps = min(operator.size, LANCZOS, max(NUMBERS // operator.size, 1))
    start = gaussian(operator.size, draws, instruments.objective.vector)
    krylov = Krylov(operator, start, steps, draws)
    while not krylov.full:
        krylov.expand()
    values, coordinates, _ = krylov.ritz()
    vectors = krylov.lift(coordinates)
    factors = (bend / (values.abs() + bend)).sqrt().to(vectors)
    return Shape(vectors, factors, steps * operator.cost, time.perf_counter() - begin)


@set_apart()
def rays(
    objective: Objective,
    rise: Rise,
    limit: float,
    *,
    shape: Shape | None = None,
    half_width: float = math.inf,
    directions: int = DIRECTIONS,
    seed: int = 0,
) -> Rays:
    """Where `rise` first comes to `limit` along random directions, or the box ends.

    The box is |x_i - theta_i| <= half_width.
    """
    if directions < 2:
        raise SpiritlevelError("directions=1: an error needs at least 2")
    begin, theta, draws = time.perf_counter(), objective.vector, generator(seed)
    tol = max(0.1 / objective.size, NEAR)
    radii, slopes, weights = [], [], []
    passes, guess = 0, 0.1 * (float(theta.norm()) or 1.0)

    def along(u: Tensor, r: float) -> float:
        nonlocal passes
        passes += 1
        return rise(theta + r * u)

    with bar(directions, "rays") as progress:
        for _ in range(directions):
            u, weight = _direction(objective, shape, draws)
            most = half_width / float(u.abs().max())
            guess = _radius(lambda r, u=u: along(u, r), limit, most, min(guess, most), tol)
            radii.append(guess)
            slopes.append(float(u.double() @ theta.double()))
            weights.append(weight)
            progress.update()
    found = torch.tensor([radii, slopes, weights], dtype=torch.float64)
    cost, elapsed = float(passes), time.perf_counter() - begin
    if shape is not None:
        cost, elapsed = cost + shape.products, elapsed + shape.seconds
    return Rays(found[0], found[1], found[2], objective.size, tol, cost, elapsed)


def _direction(
    objective: Objective, shape: Shape | None, draws: torch.Generator
) -> tuple[Tensor, float]:
    """A unit vector, and log of how much more often it should have been drawn."""
    v = gaussian(objective.size, draws, objective.vector)
    v = v / v.norm()
    if shape is None:
        return v, 0.0
    u = shape(v)
    stretch = float(u.double().norm())
    return u / stretch, shape.log_det - objective.size * math.log(stretch)


def _radius(
    rise: Callable[[float], float], limit: float, most: float, guess: float, tol: float
) -> float:
    """The least r with rise(r) = limit, to `tol` of it: from a bracket that parabolas find."""
    low, high, r = 0.0, math.inf, guess
    while not (low and high < math.inf):
        found = rise(r)
        if found < limit:
            if r >= most:
                return most
            low = r
            far = FARTHER * math.sqrt(limit / found) if found > 0 else 2.0
            r = min(r * min(far, 2.0), most)
        else:
            high = r
            r *= max(math.sqrt(limit / found) / FARTHER if math.isfinite(found) else 0.0, 0.5)
            if r < NEAREST:
                raise SpiritlevelError(
                    "the region ends at the point itself: give a larger eps= or cutoff="
                )

    def beyond(log_r: float) -> float:
        found = rise(math.exp(log_r)) / limit
        return math.sqrt(min(max(found, 0.0), 1e6)) - 1 if math.isfinite(found) else 1e3

    return math.exp(brentq(beyond, math.log(low), math.log(high), xtol=tol))  # type: ignore[arg-type]


def log_ball(size: int) -> float:
    """The logarithm of the volume of the unit ball."""
    return size / 2 * math.log(math.pi) - float(gammaln(size / 2 + 1))


def log_radial(radii: Tensor, slopes: Tensor, size: int, sigma: float) -> Tensor:
    """log of the integral of r^(n-1) exp(-(r^2 + 2 r b) / (2 sigma^2)) from 0 to R.

    By Gauss' rule in log r, over all that counts: the integrand has one maximum, and its logarithm
    falls to both sides of it.
    """
    end, b = radii.numpy() / sigma, slopes.numpy() / sigma

    def log_density(t: np.ndarray) -> np.ndarray:
        return size * t - np.exp(2 * t) / 2 - b[:, None] * np.exp(t)

    peak = np.log(np.minimum((np.sqrt(b**2 + 4 * size) - b) / 2, end))[:, None]
    top = log_density(peak)
    low = _where(lambda t: log_density(t) - top + DEPTH, peak - 2 * DEPTH - 10, peak)
    high = _where(lambda t: top - DEPTH - log_density(t), peak, np.log(end)[:, None])
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    t = (low + high) / 2 + (high - low) / 2 * nodes
    total = (np.exp(log_density(t) - top) * weights).sum(1) * (high - low)[:, 0] / 2
    return torch.from_numpy(top[:, 0] + np.log(total) + size * math.log(sigma))


def _where(rising: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray):  # type: ignore[no-untyped-def]
    """Where functions that rise pass zero, or the end that is nearest to it."""
    for _ in range(60):
        middle = (low + high) / 2
        below = rising(middle) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return high


def log_volume(
    instruments: Instruments,
    eps: float = EPS,
    half_width: float = HALF_WIDTH,
    directions: int = DIRECTIONS,
) -> Estimate:
    """log Vol {L < L(theta) + eps, |x_i - theta_i| <= w}, of what is seen from theta: E r(u)^n.

    Dinh et al. (2017), in a box of half-width w: without one it is infinite for rectified nets. The
    mean over directions u of r^n is carried by the few widest ones, so more are drawn where the
    Hessian is small; where still too few carry it, it is a lower bound: E n log r(u).
    """
    objective, base = instruments.objective, instruments.objective.value()
    found = rays(
        objective,
        lambda x: objective.at(x).value() - base,
        eps,
        shape=shape(instruments, 2 * eps / half_width**2),
        half_width=half_width,
        directions=directions,
        seed=instruments.seed,
    )
    return found.estimate(found.size * found.radii.log(), log_ball(found.size))


def flat_radius(
    instruments: Instruments,
    eps: float = EPS,
    half_width: float = HALF_WIDTH,
    directions: int = DIRECTIONS,
) -> Estimate:
    """E r(u) over random directions u: how far the loss stays below L(theta) + eps on average.

    In the box |x_i - theta_i| <= half_width, as log_volume.
    """
    objective, base = instruments.objective, instruments.objective.value()
    found = rays(
        objective,
        lambda x: objective.at(x).value() - base,
        eps,
        half_width=half_width,
        directions=directions,
        seed=instruments.seed,
    )
    value = float(found.radii.mean())
    return Estimate(
        value,
        stderr=math.hypot(standard_error(found.radii), found.width * value),
        matvecs=found.passes,
        seconds=found.seconds,
        status=Status.CONVERGED,
    )


def basin_volume(
    instruments: Instruments, cutoff: float = CUTOFF, directions: int = DIRECTIONS
) -> Estimate:
    """log P(KL(f_theta, f_x) < cutoff) over x ~ N(0, s^2 I), s^2 the mean of theta^2.

    Scherlis and Belrose (2025): a Gaussian around zero, so that it is finite without a box; the
    mean KL divergence of the predictions from those at theta. Of what is seen from theta, and a
    lower bound where few directions carry it, as log_volume.
    """
    objective = instruments.objective
    sigma = math.sqrt(float(objective.vector.double().square().mean()))
    if not sigma:
        raise SpiritlevelError("all parameters are zero: the basin volume has no scale")
    found = rays(
        objective,
        divergence(objective),
        cutoff,
        shape=shape(instruments, 2 * cutoff / sigma**2),
        directions=directions,
        seed=instruments.seed,
    )
    logs = log_radial(found.radii, found.slopes, found.size, sigma)
    n = found.size
    area = log_ball(n) + math.log(n)
    return found.estimate(logs, area - n / 2 * math.log(2 * math.pi * sigma**2) - n / 2)


def divergence(objective: Objective) -> Rise:
    """The mean of KL(p_theta, p_x) over the decisions of a classifier, as a function of x."""
    known = classes.labels(objective)
    here = [f.log_softmax(1) for f in classes.logits(objective, known)]

    def mean(x: Tensor) -> float:
        there = classes.logits(objective, known, objective.named(x))
        total = 0.0
        for p, f in zip(here, there, strict=True):
            total += float((p.exp() * (p - f.log_softmax(1))).double().sum())
        return total / known.units

    return mean


ENTRIES: dict[str, Measure] = {
    "log_volume": Measure(
        log_volume,
        title="log volume",
        family="volume",
        invariances=PERMUTATION,
        reference=DINH,
        cost="about 200 forward passes and 128 products",
        work=Work(passes=200, products=128),
        reading="larger means flatter",
    ),
    "flat_radius": Measure(
        flat_radius,
        title="flat radius",
        family="volume",
        invariances=PERMUTATION,
        cost="about 200 forward passes",
        work=Work(passes=200),
        reading="larger means flatter",
    ),
    "basin_volume": Measure(
        basin_volume,
        title="log basin volume",
        family="volume",
        invariances=PERMUTATION,
        reference="Scherlis and Belrose (2025)",
        cost="about 200 forward passes and 128 products",
        work=Work(passes=200, products=128),
        reading="larger means flatter",
    ),
}
