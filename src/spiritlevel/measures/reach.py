"""How far a classifier's parameters can be perturbed before its accuracy falls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.objective import Objective, classes
from spiritlevel.spectral.probes import standard_error

DROP, DRAWS = 0.1, 16  # Jiang et al. (2020) draw 10 times
WIDTH = 0.01  # relative, of the bracket that a search ends with
UP, DOWN = 12, 40  # octaves that a search goes by factors of 2, and down before it gives up
LEAP, FAR = 16, 60  # the factor beyond, where only the scale may be wrong, and the last octave
ROUNDING = 1e-9  # of a share of mistakes
VAGUE = 0.25  # relative: an error that more draws should make smaller
BLIND = 1.0  # the largest error of log s: beyond, nothing is known
SLOPE = 1.25  # factor over which the slope of the accuracy is taken
ASCENTS, STRIDE = 8, 0.5  # steps along the signs of the gradient, in units of the box


@dataclass(frozen=True)
class Reach:
    """The size of the largest perturbation that a classifier stands, its error and its price.

    Where the worst perturbation was searched for there is no error, but a smaller size may do.
    """

    size: float
    stderr: float | None
    passes: int
    seconds: float

    def estimate(self, of: Callable[[float], float]) -> Estimate:
        """A falling function of the size; its error as it comes through the function."""
        stderr = None
        if self.stderr is not None:
            ways = (math.exp(sign * self.stderr / self.size) for sign in (-1, 1))
            low, high = (of(self.size * way) for way in ways)
            stderr = abs(high - low) / 2
        vague = self.stderr is not None and self.stderr > VAGUE * self.size
        sure = Status.LOWER_BOUND if stderr is None else Status.CONVERGED
        return Estimate(
            of(self.size),
            stderr=stderr,
            matvecs=self.passes,
            seconds=self.seconds,
            status=Status.BUDGET if vague else sure,
            remedy="raise draws=, or give another drop=" if vague else "",
        )


@set_apart()
def noise_reach(
    objective: Objective,
    spread: Callable[[float], Tensor],
    start: float,
    *,
    drop: float = DROP,
    draws: int = DRAWS,
    seed: int = 0,
) -> Reach:
    """The size s at which noise N(0, diag spread(s)^2) first lowers the mean accuracy by `drop`.

    The same `draws` random vectors for every s, so that a bracket closes. The error is that of
    their mean, over the slope of the accuracy, joined with the bracket's.
    """
    begin, theta = time.perf_counter(), objective.vector
    number("draws", draws, 2, whole=True)
    known = classes.labels(objective)
    base = classes.error(objective, known)
    passes = 1

    def drops(size: float) -> Tensor:
        nonlocal passes
        width, chance, found = spread(size), generator(seed), []
        for _ in range(draws):
            point = theta + width * gaussian(objective.size, chance, theta)
            found.append(_error(objective, known, point) - base)
            progress.update()
        passes += draws
        return torch.tensor(found, dtype=torch.float64)

    with bar(None, "noise") as progress:
        low, high = _bracket(lambda size: float(drops(size).mean()), start, drop, 1 - base)
        size = math.sqrt(low * high)
        gained = float((drops(size * SLOPE) - drops(size / SLOPE)).mean())
        steepness = gained / (2 * math.log(SLOPE))
        # an accuracy that rises with the noise does not tell where it crosses
        error = standard_error(drops(size)) / steepness if steepness > 0 else BLIND
    error = min(math.hypot(error, math.log(high / low) / 2), BLIND)
    return Reach(size, size * error, passes, time.perf_counter() - begin)


@set_apart()
def worst_reach(
    objective: Objective, box: Callable[[float], Tensor], start: float, *, drop: float = DROP
) -> Reach:
    """A size s at which some |u| <= box(s) is known that lowers the accuracy by more than `drop`.

    By steps along the signs of the loss's gradient, cut to the box; there may be a smaller s.
    """
    begin, passes = time.perf_counter(), 1
    known = classes.labels(objective)
    base = classes.error(objective, known)

    def worst(size: float) -> float:
        nonlocal passes
        most = 0.0
        for point in _climb(objective, box(size)):
            passes += 2
            found = _error(objective, known, point) - base
            progress.update()
            if not found <= most:
                most = found
            if _beyond(most, drop):
                break
        return most

    with bar(None, "worst case") as progress:
        _, high = _bracket(worst, start, drop, 1 - base)
    return Reach(high, None, passes, time.perf_counter() - begin)


def _climb(objective: Objective, box: Tensor) -> Iterator[Tensor]:
    """Points of the box where the loss is ever larger, from its centre and from smaller weights."""
    theta, draws = objective.vector, generator(0)
    for start in (torch.zeros_like(theta), -box * theta.sign()):
        u = start
        for _ in range(ASCENTS):
            way = objective.at(theta + u).gradient().sign()
            if not bool(way.any()):  # a stationary point: any way may lead out of it
                way = gaussian(objective.size, draws, theta).sign()
            u = (u + STRIDE * box * way).clamp(-box, box)
            yield theta + u


def _error(objective: Objective, known: classes.Labels, point: Tensor) -> float:
    """The share of mistakes at a point, or NaN where outputs overflow."""
    found = classes.margins(objective, known, objective.named(point))
    return float((found <= 0).double().mean()) if bool(found.isfinite().all()) else math.nan


def _beyond(fall: float, drop: float) -> bool:
    """Whether more than `drop` is lost; an overflow loses all."""
    return not fall <= drop + ROUNDING


def _bracket(
    fall: Callable[[float], float], start: float, drop: float, accuracy: float
) -> tuple[float, float]:
    """Sizes around the first crossing of `drop` that is seen, closed by bisection of log s.

    It looks at factors of 2, and of 16 beyond 2^12: a crossing and back between is not seen. So far
    out an overflow says nothing about the accuracy, and ends the search.
    """
    low, high, size = 0.0, math.inf, start
    while not (low and high < math.inf) and 2.0**-DOWN < size / start < 2.0**FAR:
        found, far = fall(size), size / start >= 2.0**UP
        if far and math.isnan(found):
            break
        if _beyond(found, drop):
            high, size = size, size / 2
        else:
            low, size = size, (LEAP if far else 2) * size
    if not low:
        raise SpiritlevelError(
            f"perturbations of any size lower the accuracy by more than {drop:g}: give a larger "
            "drop=, or a smaller eps= where there is one"
        )
    if high == math.inf:
        raise SpiritlevelError(
            f"no perturbation lowers the accuracy of {accuracy:.3g} by more than {drop:g}: give a "
            "smaller drop="
        )
    while high > (1 + WIDTH) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _beyond(fall(middle), drop) else (middle, high)
    return low, high
