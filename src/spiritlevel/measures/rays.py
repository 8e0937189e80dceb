"""How far it is along rays to the end of a region, and which rays to draw."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.operator import Operator
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator, lost
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.logmean import log_mean
from spiritlevel.objective import Objective
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.spectral.probes import standard_error

DIRECTIONS = 32
FARTHER, NEAREST = 1.02, 1e-30  # than a parabola says; the least radius that is looked for
STEP = 2.0  # the factor from one radius that is looked at to the next
NEAR = 1e-6  # relative: the closest that a radius is known, whatever the dimension
LANCZOS, NUMBERS = 128, 2**28  # steps that tell directions apart, and numbers that they may hold

Rise = Callable[[Tensor], float]  # at a place, by how much


@dataclass(frozen=True)
class Parabola:
    """g' u r + u' H u r^2 / 2: how what rises begins along a unit vector u."""

    operator: Operator
    gradient: Tensor | None = None

    def radius(self, u: Tensor, limit: float) -> float:
        """Where |g' u| r + |u' H u| r^2 / 2 comes to the limit."""
        slope = 0.0 if self.gradient is None else abs(float(self.gradient.double() @ u.double()))
        bend = abs(float(u.double() @ (self.operator @ u).double()))
        steep = slope + math.sqrt(slope**2 + 2 * bend * limit)
        return 2 * limit / steep if 0 < steep < math.inf else math.inf


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

    def whole(self) -> Estimate:
        """log 1 where no ray ends: by Laplace's rule the next one does in one case of k + 2."""
        return Estimate(
            0.0,
            stderr=1 / (len(self.radii) + 2),
            matvecs=self.passes,
            seconds=self.seconds,
            status=Status.CONVERGED,
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
    parabola: Parabola | None = None,
    half_width: float = math.inf,
    farthest: float = math.inf,
    directions: int = DIRECTIONS,
    seed: int = 0,
) -> Rays:
    """Where `rise` is first seen to come to `limit` along random directions, or the box ends.

    The box is |x_i - theta_i| <= half_width, a ray `farthest` long at most. It looks from half of
    a parabola's radius, or the last ray's, in factors of at most 2: not at what lies between.
    """
    number("directions", directions, 2, whole=True)
    begin, theta, draws = time.perf_counter(), objective.vector, generator(seed)
    seen: list[tuple[float, float, float]] = []
    passes, tol, guess = 0, max(0.1 / objective.size, NEAR), 0.1 * (float(theta.norm()) or 1.0)

    def along(u: Tensor, r: float) -> float:
        nonlocal passes
        passes += 1
        return rise(theta + r * u)

    with bar(directions, "rays") as progress:
        for _ in range(directions):
            u, weight = _direction(objective, shape, draws)
            most = min(half_width / float(u.abs().max()), farthest)
            first = min(guess, math.inf if parabola is None else parabola.radius(u, limit)) / STEP
            guess = _radius(lambda r, u=u: along(u, r), limit, most, min(first, most), tol)
            _refuse_lost(theta, guess * u)
            seen.append((guess, float(u.double() @ theta.double()), weight))
            progress.update()
    cost = passes + _set_up(shape, parabola, directions)
    elapsed = time.perf_counter() - begin + (0.0 if shape is None else shape.seconds)
    radii, slopes, weights = torch.tensor(seen, dtype=torch.float64).unbind(1)
    return Rays(radii, slopes, weights, objective.size, tol, cost, elapsed)


def _refuse_lost(theta: Tensor, step: Tensor) -> None:
    if lost(theta, step):
        raise SpiritlevelError(
            f"the region is as small as the rounding of {theta.dtype} at this point: try "
            "dtype=torch.float64, or a larger eps= or cutoff="
        )


def _set_up(shape: Shape | None, parabola: Parabola | None, directions: int) -> float:
    """What is known of the directions before and beside the passes, in products."""
    ahead = 0.0 if shape is None else shape.products
    return ahead + (0.0 if parabola is None else directions * parabola.operator.cost)


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
    if stretch < NEAREST:
        raise _no_room()
    return u / stretch, shape.log_det - objective.size * math.log(stretch)


def _radius(
    rise: Callable[[float], float], limit: float, most: float, guess: float, tol: float
) -> float:
    """The first r that is seen with rise(r) = limit, to `tol` of it: outwards from the guess."""
    low, high, r = 0.0, math.inf, guess
    while not (low and high < math.inf):
        found = rise(r)
        if found < limit:
            if r >= most:
                return most
            low = r
            far = FARTHER * math.sqrt(limit / found) if found > 0 else STEP
            r = min(r * min(far, STEP), most)
        else:
            high = r
            r *= max(math.sqrt(limit / found) / FARTHER if math.isfinite(found) else 0.0, 0.5)
            if r < NEAREST:
                raise _no_room()

    def beyond(log_r: float) -> float:
        found = rise(math.exp(log_r)) / limit
        return math.sqrt(min(max(found, 0.0), 1e6)) - 1 if math.isfinite(found) else 1e3

    return math.exp(brentq(beyond, math.log(low), math.log(high), xtol=tol))  # type: ignore[arg-type]


def _no_room() -> SpiritlevelError:
    return SpiritlevelError("the region ends at the point itself: give a larger eps= or cutoff=")
