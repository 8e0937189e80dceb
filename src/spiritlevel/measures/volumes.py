"""The volume of the region around the point where the loss, or the predictions, hardly change.

Of what can be seen from the point: along a ray the region ends where it is first seen to be left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.scope import kept_rng
from spiritlevel.curvature import ggn
from spiritlevel.measures.base import DINH, PERMUTATION, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.rays import DIRECTIONS, Parabola, Rise, rays, shape
from spiritlevel.objective import Objective, classes
from spiritlevel.spectral.probes import standard_error

EPS = 0.1  # by how much the loss may rise
CUTOFF = 1e-2  # by how many nats predictions may change
HALF_WIDTH = 1.0
OUTSIDE = 40.0  # deviations beyond the typical radius of a Gaussian, where nothing of it is left
NODES, DEPTH = 200, 45.0  # of a radial integral, and how far its logarithm is followed down


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


def _where(
    rising: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> np.ndarray:
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
    Hessian is small; where still too few carry it, it is a lower bound: E n log r(u). A ray ends
    at the first crossing that is seen, in steps of a factor 2 from half of what a parabola says.
    """
    objective, base = instruments.objective, instruments.objective.value()
    found = rays(
        objective,
        lambda x: objective.at(x).value() - base,
        eps,
        shape=shape(instruments, 2 * eps / half_width**2),
        parabola=Parabola(instruments.hessian, instruments.gradient),
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

    In the box |x_i - theta_i| <= half_width, and to the first crossing that is seen, as log_volume.
    """
    objective, base = instruments.objective, instruments.objective.value()
    found = rays(
        objective,
        lambda x: objective.at(x).value() - base,
        eps,
        parabola=Parabola(instruments.hessian, instruments.gradient),
        half_width=half_width,
        directions=directions,
        seed=instruments.seed,
    )
    value = float(found.radii.mean())
    stderr = math.hypot(standard_error(found.radii), found.width * value)
    known = stderr <= instruments.rtol * value
    return Estimate(
        value,
        stderr=stderr,
        matvecs=found.passes,
        seconds=found.seconds,
        status=Status.CONVERGED if known else Status.BUDGET,
        remedy="" if known else "raise directions=, or accept the error",
    )


def basin_volume(
    instruments: Instruments, cutoff: float = CUTOFF, directions: int = DIRECTIONS
) -> Estimate:
    """log P(KL(f_theta, f_x) < cutoff) over x ~ N(0, s^2 I), s^2 the mean of theta^2.

    Scherlis and Belrose (2025): a Gaussian around zero, so that it is finite without a box; the
    mean KL divergence of the predictions from those at theta. Of what is seen from theta, and a
    lower bound where few directions carry it, as log_volume; no probability exceeds 1. Where no ray
    ends before the Gaussian does, all of it belongs to the basin, but for 1 / (directions + 2).
    """
    objective = instruments.objective
    sigma = math.sqrt(float(objective.vector.double().square().mean()))
    if not sigma:
        raise SpiritlevelError("all parameters are zero: the basin volume has no scale")
    n = objective.size
    end = sigma * (2 * math.sqrt(n) + OUTSIDE)  # theta is sigma sqrt(n) away from the middle
    found = rays(
        objective,
        divergence(objective),
        cutoff,
        shape=shape(instruments, 2 * cutoff / sigma**2),
        parabola=Parabola(ggn(objective)),
        farthest=end,
        directions=directions,
        seed=instruments.seed,
    )
    if bool((found.radii >= end).all()):
        return found.whole()
    logs = log_radial(found.radii, found.slopes, n, sigma)
    area = log_ball(n) + math.log(n)
    log_p = found.estimate(logs, area - n / 2 * math.log(2 * math.pi * sigma**2) - n / 2)
    if log_p.value <= 0:
        return log_p
    return replace(log_p, value=0.0, stderr=max(log_p.error, log_p.value))


def divergence(objective: Objective) -> Rise:
    """The mean of KL(p_theta, p_x) over the decisions of a classifier, as a function of x."""
    known = _decisions(objective)
    here = [f.log_softmax(1) for f in classes.logits(objective, known)]

    def mean(x: Tensor) -> float:
        there = classes.logits(objective, known, objective.named(x))
        total = 0.0
        for p, f in zip(here, there, strict=True):
            total += float((p.exp() * (p - f.log_softmax(1))).double().sum())
        return total / known.units

    return mean


def _decisions(objective: Objective) -> classes.Labels:
    """Where a classifier decides what counts; its targets need not be labels."""
    loss, counted = objective.loss, []
    strength = loss.strength
    if loss.likelihood not in ("softmax", "bernoulli"):
        raise SpiritlevelError(
            "the basin volume is that of a classifier; this loss is none of classes (use "
            "cross_entropy, nll_loss or binary_cross_entropy_with_logits)"
        )
    with torch.no_grad(), kept_rng():
        for batch in map(objective.here, objective.batches):
            out = objective.outputs(objective.params, batch)
            weight = torch.ones_like(out)
            if strength is not None:
                weight = strength(out, batch).expand_as(out)
            if loss.likelihood == "softmax":
                weight = weight.select(loss.class_axis, 0)
            counted.append((weight > 0).flatten())
    if not any(bool(kept.any()) for kept in counted):
        raise SpiritlevelError("no example has a target that counts: the basin volume needs some")
    return classes.Labels((), tuple(counted))


ENTRIES: dict[str, Measure] = {
    "log_volume": Measure(
        log_volume,
        title="log volume",
        family="volume",
        invariances=PERMUTATION,
        reference=DINH,
        cost="about 200 forward passes and 160 products",
        work=Work(passes=200, products=160),
        reading="larger means flatter",
    ),
    "flat_radius": Measure(
        flat_radius,
        title="flat radius",
        family="volume",
        invariances=PERMUTATION,
        cost="about 200 forward passes and 32 products",
        work=Work(passes=200, products=32),
        reading="larger means flatter",
    ),
    "basin_volume": Measure(
        basin_volume,
        title="log basin volume",
        family="volume",
        invariances=PERMUTATION,
        reference="Scherlis and Belrose (2025)",
        cost="about 200 forward passes and 160 products",
        work=Work(passes=200, products=128, gauss_newton=32),
        reading="larger means flatter",
    ),
}
