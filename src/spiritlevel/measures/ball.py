"""The worst loss near the point: in a ball or a box, also relative to each parameter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import number, one_of
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.operator import scaled
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded, tensor
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.measures.base import (
    BOTH_ENDS,
    DIAGONAL,
    DINH,
    PERMUTATION,
    TOP,
    Bottom,
    Measure,
    Work,
)
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.spectral import eigenpairs

RADIUS = 0.05  # the rho of sharpness-aware minimization (Foret et al., 2021)
ADAPTIVE_RADIUS = 0.5  # that of its adaptive form (Kwon et al., 2021)
BOX_RADIUS = 2e-3  # amid those of Andriushchenko et al. (2023), and twice that
ADAPTIVE_BOX_RADIUS = 4e-3
STEPS = 12
SETTLED = 1e-4  # of the rise: a step that gains less is the last


Climb = Callable[[Tensor], tuple[float, Tensor]]  # the loss at a vector, and the slope there


@dataclass(frozen=True)
class Ball:
    """The unit ball of a norm: how long a vector is, the way up, and the nearest point inside.

    `stride` is the first step, in radii: from corner to corner, in a box.
    """

    size: Callable[[Tensor], float]
    steepest: Callable[[Tensor], Tensor]  # of length 1, along a slope that is not zero
    inside: Callable[[Tensor, float], Tensor]
    stride: float = 1.0


BALLS: dict[str, Ball] = {
    "l2": Ball(
        size=lambda u: float(u.norm()),
        steepest=lambda g: g / g.norm(),
        inside=lambda u, radius: u * min(1.0, radius / max(float(u.norm()), 1e-300)),
    ),
    "linf": Ball(
        size=lambda u: float(u.abs().max()),
        steepest=torch.sign,
        inside=lambda u, radius: u.clamp(-radius, radius),
        stride=2.0,
    ),
}


@dataclass(frozen=True)
class Worst:
    """The largest loss that a search found near a point: a lower bound of the largest there is.

    `perturbation` is the way there, `sharpness` (L(theta + perturbation) - L) / (1 + L).
    """

    loss: float
    base: float
    perturbation: Tensor
    passes: int
    seconds: float

    @property
    def rise(self) -> float:
        return self.loss - self.base

    @property
    def sharpness(self) -> float:
        return self.rise / (1 + self.base)

    def estimate(self, value: float) -> Estimate:
        return Estimate(value, matvecs=self.passes, seconds=self.seconds, status=Status.LOWER_BOUND)


@set_apart()
def worst_in_ball(
    objective: Objective,
    radius: float = RADIUS,
    *,
    norm: str = "l2",
    scale: Tensor | None = None,
    starts: Tensor | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> Worst:
    """max of L(theta + s * u) over ||u|| <= radius, by projected ascent from several starts.

    `norm` is "l2" or "linf", of BALLS. `scale` is s, one if left out (|theta| makes it relative to
    each parameter). It starts along the gradient, along the columns of `starts`, at random, and
    towards zero layers that lie in the ball: near a minimum the gradient is blind, and beyond dead
    units any search is.
    """
    only_objectives(objective)
    number("radius", radius, above=0)
    one_of("norm", norm, BALLS)
    number("steps", steps, 1, whole=True)
    seeded(seed)
    if scale is not None:
        tensor("scale", scale, objective.size)
    if starts is not None:
        tensor("starts", starts, objective.size, None)
    begin, theta, ball = time.perf_counter(), objective.vector, BALLS[norm]
    s = torch.ones_like(theta) if scale is None else scale.to(theta)

    def climb(u: Tensor) -> tuple[float, Tensor]:
        loss, slope = objective.at(theta + s * u).value_and_gradient()
        return loss, s * slope

    middle = objective.value(), torch.zeros_like(theta)
    places = _starts(objective, ball, s, radius, starts, seed)
    best, u, passes = highest(climb, ball, places, radius, middle, steps)
    return Worst(best, objective.value(), s * u, passes, time.perf_counter() - begin)


def _starts(
    objective: Objective, ball: Ball, s: Tensor, radius: float, given: Tensor | None, seed: int
) -> Iterator[Tensor]:
    """Points of the sphere, and layers of zeros inside it."""
    directions = [s * objective.gradient(), gaussian(objective.size, generator(seed), s)]
    if given is not None:
        directions += [sign * v for v in given.to(s).unbind(1) for sign in (1.0, -1.0)]
    for direction in directions:
        if leads(direction):
            yield radius * ball.steepest(direction)
    for span in objective.spans.values():
        u = torch.zeros_like(s)
        u[span] = torch.where(s[span] > 0, -objective.vector[span] / s[span], 0.0)
        if 0 < ball.size(u) <= radius:
            yield u


def highest(
    climb: Climb,
    ball: Ball,
    starts: Iterable[Tensor],
    radius: float,
    middle: tuple[float, Tensor],
    steps: int = STEPS,
) -> tuple[float, Tensor, int]:
    """The largest loss that projected ascents find, where, and the gradients that it took.

    `middle` is the loss at zero, and zero: what is no larger does not count.
    """
    (best, where), passes = middle, 0
    for start in starts:
        loss, u, spent = _ascend(climb, ball, start, radius, middle[0], steps)
        passes += spent
        if loss > best:
            best, where = loss, u
    return best, where, passes


def _ascend(
    climb: Climb, ball: Ball, u: Tensor, radius: float, base: float, steps: int
) -> tuple[float, Tensor, int]:
    """Steps along the steepest way up, projected; halved when the loss does not rise."""
    length, passes = ball.stride * radius, 1
    loss, slope = climb(u)
    loss = _finite(loss)
    for _ in range(steps):
        if not leads(slope):
            break
        tried = ball.inside(u + length * ball.steepest(slope), radius)
        found, there = climb(tried)
        found, passes = _finite(found), passes + 1
        if found <= loss:
            length /= 2
            continue
        done = found - loss <= SETTLED * abs(found - base)
        loss, u, slope = found, tried, there
        if done:
            break
    return loss, u, passes


def leads(direction: Tensor) -> bool:
    """Whether it leads anywhere."""
    return 0 < float(direction.norm()) < math.inf


def _finite(loss: float) -> float:
    """A loss that overflowed says nothing; it does not win."""
    return loss if math.isfinite(loss) else -math.inf


def eps_sharpness(instruments: Instruments, radius: float = RADIUS) -> Estimate:
    """max over ||d||_2 <= rho of (L(theta + d) - L) / (1 + L), a lower bound."""
    found = worst_in_ball(
        instruments.objective,
        radius,
        starts=instruments.extremes.vectors[:, :1],
        seed=instruments.seed,
    )
    return found.estimate(found.sharpness)


def eps_sharpness_box(instruments: Instruments, radius: float = BOX_RADIUS) -> Estimate:
    """max over |d_i| <= rho of (L(theta + d) - L) / (1 + L), a lower bound.

    rho ||grad L||_1 / (1 + L) to first order; ascent along the signs of the gradient.
    """
    found = worst_in_ball(
        instruments.objective,
        radius,
        norm="linf",
        starts=instruments.extremes.vectors[:, :1],
        seed=instruments.seed,
    )
    return found.estimate(found.sharpness)


def quadratic_factor(objective: Objective, radius: float = RADIUS) -> float:
    """rho^2 / (2 (1 + L)): what lambda_max is multiplied by."""
    return radius**2 / (2 * (1 + objective.value()))


def eps_sharpness_quadratic(instruments: Instruments, radius: float = RADIUS) -> Estimate:
    """rho^2 lambda_max / (2 (1 + L)), the eps-sharpness to second order at a minimum."""
    top = max(instruments.extremes.values, key=lambda end: end.value)
    factor = quadratic_factor(instruments.objective, radius)
    return Estimate(
        factor * max(top.value, 0.0),
        residual=factor * top.error,
        matvecs=top.matvecs,
        seconds=top.seconds,
        status=top.status,
        remedy=top.remedy,
    )


def adaptive_worst(instruments: Instruments, radius: float = ADAPTIVE_RADIUS) -> Estimate:
    """max over ||d / |theta| ||_2 <= rho of L(theta + d) - L, a lower bound (Kwon et al., 2021).

    Without the eta that Kwon et al. add to |theta|, which would break the invariance: weights that
    are zero stay zero.
    """
    return worst_relative(instruments, instruments.objective.vector.abs(), radius)


def adaptive_box(instruments: Instruments, radius: float = ADAPTIVE_BOX_RADIUS) -> Estimate:
    """max over |d_i| <= rho |theta_i| of L(theta + d) - L, a lower bound.

    Andriushchenko et al. (2023), on all the data instead of batches of 128.
    """
    size = instruments.objective.vector.abs()
    return worst_relative(instruments, size, radius, norm="linf")


def worst_relative(
    instruments: Instruments, scale: Tensor, radius: float, norm: str = "l2"
) -> Estimate:
    """max over ||u|| <= rho of L(theta + s * u) - L, also from where it curves most."""
    top = eigenpairs(scaled(instruments.hessian, scale), tol=0.05, seed=instruments.seed)
    found = worst_in_ball(
        instruments.objective,
        radius,
        norm=norm,
        scale=scale,
        starts=top.vectors,
        seed=instruments.seed,
    )
    return found.estimate(found.rise)


ENTRIES: dict[str, Measure] = {
    "eps_sharpness": Measure(
        eps_sharpness,
        title="eps-sharpness",
        family="worst case",
        invariances=PERMUTATION,
        reference=DINH,
        cost="about 40 gradients",
        is_sharpness=True,
        work=Work(gradients=40),
    ),
    "eps_sharpness_box": Measure(
        eps_sharpness_box,
        title="eps-sharpness in a box",
        family="worst case",
        invariances=PERMUTATION,
        reference="Andriushchenko et al. (2023)",
        cost="about 40 gradients",
        is_sharpness=True,
        work=Work(gradients=40, products=50),
    ),
    "eps_sharpness_quadratic": Measure(
        eps_sharpness_quadratic,
        title="eps-sharpness, order 2",
        family="worst case",
        invariances=PERMUTATION,
        reference=DINH,
        cost=TOP,
        shares="extremes",
        ends=2,
        is_sharpness=True,
        bottom=Bottom("spectral", factor=quadratic_factor, signed=True),
        work=BOTH_ENDS,
    ),
    "adaptive_worst": Measure(
        adaptive_worst,
        title="adaptive worst case",
        family="worst case",
        invariances=DIAGONAL,
        reference="Kwon et al. (2021)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50),
    ),
    "adaptive_box": Measure(
        adaptive_box,
        title="adaptive box",
        family="worst case",
        invariances=DIAGONAL,
        reference="Andriushchenko et al. (2023)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50, products=12),
    ),
}
