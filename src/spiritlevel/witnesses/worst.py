"""The worst loss near a point that a search meets: in a ball or a box."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import number, one_of
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded, tensor
from spiritlevel.base.tensors import gaussian, generator, laid_along
from spiritlevel.objective import Objective, only_objectives

RADIUS = 0.05  # the rho of sharpness-aware minimization (Foret et al., 2021)
STEPS = 12
SETTLED = 1e-4  # of the rise: a step that gains less is the last
Slope = Callable[[Tensor], tuple[float, Tensor]]  # at a place: the loss, and its gradient there


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
    each parameter). It starts along the gradient, along the columns of `starts`, at random (in the
    order of theta / s, so that a renumbering of units takes the start along), and towards zero
    layers that lie in the ball: near a minimum the gradient is blind, and beyond dead units any
    search is.
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
    middle = objective.value(), torch.zeros_like(theta)
    places = _starts(objective, ball, s, radius, starts, seed)
    loss, u, passes = highest(_slope(objective, s), middle, ball, places, radius, steps)
    return Worst(loss, middle[0], s * u, passes, time.perf_counter() - begin)


def _slope(objective: Objective, s: Tensor) -> Slope:
    """The loss at theta + s * u, as a function of u."""

    def at(u: Tensor) -> tuple[float, Tensor]:
        loss, there = objective.at(objective.vector + s * u).value_and_gradient()
        return loss, s * there

    return at


def _starts(
    objective: Objective, ball: Ball, s: Tensor, radius: float, given: Tensor | None, seed: int
) -> Iterator[Tensor]:
    """Points of the sphere, and layers of zeros inside it."""
    relative = torch.where(s > 0, objective.vector / s, 0.0)
    chance = laid_along(gaussian(objective.size, generator(seed), s), relative)
    directions = [s * objective.gradient(), chance]
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
    slope: Slope,
    middle: tuple[float, Tensor],
    ball: Ball,
    starts: Iterable[Tensor],
    radius: float,
    steps: int = STEPS,
) -> tuple[float, Tensor, int]:
    """The largest loss that ascents find, where, and the gradients that it took.

    `middle` is the loss at zero, and zero: what is no larger does not count.
    """
    (best, where), passes = middle, 0
    for start in starts:
        loss, u, spent = climb(slope, middle[0], ball, start, radius, steps)
        passes += spent
        if loss > best:
            best, where = loss, u
    return best, where, passes


def climb(
    slope: Slope, base: float, ball: Ball, u: Tensor, radius: float, steps: int = STEPS
) -> tuple[float, Tensor, int]:
    """Steps along the steepest way up, projected; halved when the loss does not rise."""
    length, passes = ball.stride * radius, 1
    loss, way = slope(u)
    loss = finite(loss)
    for _ in range(steps):
        if not leads(way):
            break
        tried = ball.inside(u + length * ball.steepest(way), radius)
        found, there = slope(tried)
        found, passes = finite(found), passes + 1
        if found <= loss:
            length /= 2
            continue
        done = found - loss <= SETTLED * abs(found - base)
        loss, u, way = found, tried, there
        if done:
            break
    return loss, u, passes


def leads(direction: Tensor) -> bool:
    """Whether it leads anywhere."""
    return 0 < float(direction.norm()) < math.inf


def finite(loss: float) -> float:
    """A loss that overflowed says nothing; it does not win."""
    return loss if math.isfinite(loss) else -math.inf
