"""The worst loss near the point: in an l2 ball, in a ball relative to each parameter, in a box."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
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
STEPS = 12
KESKAR_ITERATIONS = 10  # part of the published definition
KESKAR_EPS = 1e-3
SUBSPACE = 100
SUBSPACE_NUMBERS = 5 * 10**8  # of the random matrix, that is 2 or 4 GB


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
    scale: Tensor | None = None,
    starts: Tensor | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> Worst:
    """max of L(theta + s * u) over ||u||_2 <= radius, by projected ascent from several starts.

    `scale` is s, one if left out (|theta| makes it relative to each parameter). It starts along the
    gradient, along the columns of `starts`, at random, and towards zero layers that lie in the
    ball: near a minimum the gradient is blind, and beyond dead units any search is.
    """
    only_objectives(objective)
    number("radius", radius, above=0)
    number("steps", steps, 1, whole=True)
    seeded(seed)
    if scale is not None:
        tensor("scale", scale, objective.size)
    if starts is not None:
        tensor("starts", starts, objective.size, None)
    begin, theta = time.perf_counter(), objective.vector
    s = torch.ones_like(theta) if scale is None else scale.to(theta)
    best, way, passes = objective.value(), torch.zeros_like(theta), 0
    for start in _starts(objective, s, radius, starts, seed):
        loss, u, spent = _ascend(objective, s, start, radius, steps)
        passes += spent
        if loss > best:
            best, way = loss, s * u
    return Worst(best, objective.value(), way, passes, time.perf_counter() - begin)


def _starts(
    objective: Objective, s: Tensor, radius: float, given: Tensor | None, seed: int
) -> Iterator[Tensor]:
    """Points of the sphere, and layers of zeros inside it."""
    directions = [s * objective.gradient(), gaussian(objective.size, generator(seed), s)]
    if given is not None:
        directions += [sign * v for v in given.to(s).unbind(1) for sign in (1.0, -1.0)]
    for direction in directions:
        size = float(direction.norm())
        if size > 0 and math.isfinite(size):
            yield radius * direction / size
    for span in objective.spans.values():
        u = torch.zeros_like(s)
        u[span] = torch.where(s[span] > 0, -objective.vector[span] / s[span], 0.0)
        if 0 < float(u.norm()) <= radius:
            yield u


def _ascend(
    objective: Objective, s: Tensor, u: Tensor, radius: float, steps: int
) -> tuple[float, Tensor, int]:
    """Steps along the normalized gradient, projected; halved when the loss does not rise."""
    theta, length, passes = objective.vector, radius, 0
    here = objective.at(theta + s * u)
    loss = _finite(here.value())
    slope = s * here.gradient()
    for _ in range(steps):
        size = float(slope.norm())
        if not 0 < size < math.inf:
            break
        tried = u + length * slope / size
        tried = tried * min(1.0, radius / max(float(tried.norm()), 1e-300))
        there = objective.at(theta + s * tried)
        passes += 1
        found = _finite(there.value())
        if found <= loss:
            length /= 2
            continue
        done = found - loss <= 1e-4 * abs(found)
        loss, u = found, tried
        if done:
            break
        slope = s * there.gradient()
    return loss, u, passes + 1


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
    """max over ||d / |theta| ||_2 <= rho of L(theta + d) - L, a lower bound (Kwon et al., 2021)."""
    size = instruments.objective.vector.abs()
    top = eigenpairs(scaled(instruments.hessian, size), tol=0.05, seed=instruments.seed)
    found = worst_in_ball(
        instruments.objective, radius, scale=size, starts=top.vectors, seed=instruments.seed
    )
    return found.estimate(found.rise)


def keskar(instruments: Instruments, eps: float = KESKAR_EPS) -> Estimate:
    """100 (max over |y_i| <= eps (|x_i| + 1) of f(x + y) - f(x)) / (1 + f(x)).

    Keskar et al. (2017), full space: ten iterations of L-BFGS-B on the whole training loss.
    """
    x = instruments.objective.vector
    box = eps * (x.abs() + 1)
    return _keskar(instruments, box, lambda z: box * z, lambda g: box * g, eps)


def keskar_subspace(instruments: Instruments, eps: float = KESKAR_EPS) -> Estimate:
    """Keskar's sharpness over x + A y, A a random matrix of 100 unit columns.

    |y_i| <= eps (|(A^+ x)_i| + 1); how the columns were normalized is not published.
    """
    objective = instruments.objective
    x, p = objective.vector, min(SUBSPACE, objective.size)
    if objective.size * p > SUBSPACE_NUMBERS:
        raise SpiritlevelError(
            f"keskar_subspace lays out a matrix of {objective.size} x {p} numbers: too many; "
            'choose parameters with params=, or use "keskar"'
        )
    a = gaussian((objective.size, p), generator(instruments.seed), x)
    a = a / a.norm(dim=0)
    pseudo = torch.linalg.lstsq(a, x[:, None]).solution[:, 0]
    box = eps * (pseudo.abs() + 1)
    return _keskar(instruments, box, lambda z: a @ (box * z), lambda g: box * (a.T @ g), eps)


def _keskar(instruments: Instruments, box: Tensor, forth, back, eps: float) -> Estimate:  # type: ignore[no-untyped-def]
    """The box is mapped to [-1, 1]^p and the rise divided by eps^2, or SciPy would not move."""
    objective, begin = instruments.objective, time.perf_counter()
    theta, base = objective.vector, objective.value()
    best, passes = base, 0

    def fall(z: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, passes
        there = objective.at(theta + forth(torch.from_numpy(z).to(theta)))
        loss, passes = there.value(), passes + 1
        best = max(best, _finite(loss))
        slope = back(there.gradient()).double().cpu().numpy()
        return -(loss - base) / eps**2, -slope / eps**2

    draws = generator(instruments.seed)
    start = 2 * torch.rand(len(box), generator=draws, dtype=torch.float64) - 1
    minimize(
        fall,
        start.numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-1.0, 1.0)] * len(box),
        options={"maxiter": KESKAR_ITERATIONS, "ftol": 0.0, "gtol": 0.0},
    )
    return Estimate(
        100 * (best - base) / (1 + base),
        matvecs=passes,
        seconds=time.perf_counter() - begin,
        status=Status.LOWER_BOUND,
    )


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
    "keskar": Measure(
        keskar,
        title="Keskar sharpness",
        family="worst case",
        invariances=PERMUTATION,
        reference="Keskar et al. (2017)",
        cost="12 gradients",
        is_sharpness=True,
        work=Work(passes=12, gradients=12),
    ),
    "keskar_subspace": Measure(
        keskar_subspace,
        title="Keskar, 100 directions",
        family="worst case",
        reference="Keskar et al. (2017)",
        cost="12 gradients",
        is_sharpness=True,
        work=Work(passes=12, gradients=12),
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
}
