"""Perturbations that a classifier stands, and the PAC-Bayes bounds that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import DIAGONAL, JIANG, PERMUTATION, Invariance, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.reach import DRAWS, DROP, Reach, noise_reach, worst_reach
from spiritlevel.objective import classes

EPS = 1e-3  # the least noise of a weight, where a bound divides by it
NOISE, MAGNITUDE, WORST = "noise reach", f"magnitude noise, eps={EPS}", "worst reach"
GUARANTEE = "larger means a weaker guarantee"


def _sigma(instruments: Instruments, drop: float, draws: int) -> Reach:
    theta = instruments.objective.vector
    return instruments.once(
        NOISE,
        lambda: noise_reach(
            instruments.objective,
            lambda sigma: torch.full_like(theta, sigma),
            _tenth(theta),
            drop=drop,
            draws=draws,
            seed=instruments.seed,
        ),
        *(drop, draws),
    )


def _magnitude_sigma(instruments: Instruments, drop: float, draws: int, eps: float) -> Reach:
    square = instruments.objective.vector.square()
    return instruments.once(
        f"magnitude noise, eps={eps}",
        lambda: noise_reach(
            instruments.objective,
            lambda sigma: (sigma**2 * square + eps**2).sqrt(),
            0.1,
            drop=drop,
            draws=draws,
            seed=instruments.seed,
        ),
        *(drop, draws),
    )


def _alpha(instruments: Instruments, drop: float) -> Reach:
    theta = instruments.objective.vector
    return instruments.once(
        WORST,
        lambda: worst_reach(
            instruments.objective,
            lambda alpha: torch.full_like(theta, alpha),
            _tenth(theta),
            drop=drop,
        ),
        drop,
    )


def _tenth(theta: Tensor) -> float:
    """Of a typical parameter."""
    return 0.1 * (float(theta.double().square().mean().sqrt()) or 1.0)


def _bound(instruments: Instruments, complexity: float, size: float) -> float:
    """sqrt((complexity + log(m / size) + 10) / m), m the number of training examples."""
    m = instruments.once("units", lambda: classes.labels(instruments.objective).units)
    return math.sqrt(max(complexity + math.log(m / size) + 10, 0.0) / m)


def _square(vector: Tensor) -> float:
    return float(vector.double().square().sum())


def pac_bayes_sigma(instruments: Instruments, drop: float = DROP, draws: int = DRAWS) -> Estimate:
    """The sigma at which noise N(0, sigma^2 I) first lowers the training accuracy by 0.1.

    Jiang et al. (2020). A standard deviation; their published code passes its square as one.
    """
    return _sigma(instruments, drop, draws).estimate(lambda sigma: sigma)


def pac_bayes_flatness(
    instruments: Instruments, drop: float = DROP, draws: int = DRAWS
) -> Estimate:
    """1 / sigma^2, sigma as in pac_bayes_sigma (Jiang et al., 2020, equation 53)."""
    return _sigma(instruments, drop, draws).estimate(lambda sigma: sigma**-2)


def pac_bayes_orig(instruments: Instruments, drop: float = DROP, draws: int = DRAWS) -> Estimate:
    """sqrt((||w||^2 / (4 sigma^2) + log(m / sigma) + 10) / m), sigma as in pac_bayes_sigma.

    Jiang et al. (2020), equation 49; w are all chosen parameters, biases among them.
    """
    square = _square(instruments.objective.vector)
    return _sigma(instruments, drop, draws).estimate(
        lambda sigma: _bound(instruments, square / (4 * sigma**2), sigma)
    )


def pac_bayes_init(instruments: Instruments, drop: float = DROP, draws: int = DRAWS) -> Estimate:
    """sqrt((||w - w0||^2 / (4 sigma^2) + log(m / sigma) + 10) / m), w0 from before training.

    Jiang et al. (2020), equation 48.
    """
    square = _square(instruments.objective.vector - instruments.init)
    return _sigma(instruments, drop, draws).estimate(
        lambda sigma: _bound(instruments, square / (4 * sigma**2), sigma)
    )


def pac_bayes_magnitude_flatness(
    instruments: Instruments, drop: float = DROP, draws: int = DRAWS, eps: float = 0.0
) -> Estimate:
    """1 / s^2 with noise N(0, s^2 w_i^2 + eps^2) that lowers the training accuracy by 0.1.

    Jiang et al. (2020), equation 61, but for their eps of 1e-3, which is 0 unless given: weights
    that a rescaling makes small drown in it; without it no rescaling changes the number, nor does
    the scale of the outputs.
    """
    return _magnitude_sigma(instruments, drop, draws, eps).estimate(lambda s: s**-2)


def pac_bayes_magnitude_orig(
    instruments: Instruments, drop: float = DROP, draws: int = DRAWS, eps: float = EPS
) -> Estimate:
    """sqrt((sum_i log((eps^2 + (s^2 + 1) ||w||^2 / n) / (eps^2 + s^2 w_i^2)) / 4 + ...) / m).

    ... = log(m / s) + 10, s as in pac_bayes_magnitude_flatness with this eps (Jiang et al., 2020,
    equation 57). Their code has w - w0 in the denominator, where the noise that is drawn has w.
    """
    return _magnitude_bound(instruments, instruments.objective.vector, drop, draws, eps)


def pac_bayes_magnitude_init(
    instruments: Instruments, drop: float = DROP, draws: int = DRAWS, eps: float = EPS
) -> Estimate:
    """As pac_bayes_magnitude_orig, of w - w0: the weights less those before training.

    Jiang et al. (2020), equation 56.
    """
    moved = instruments.objective.vector - instruments.init
    return _magnitude_bound(instruments, moved, drop, draws, eps)


def _magnitude_bound(
    instruments: Instruments, vector: Tensor, drop: float, draws: int, eps: float
) -> Estimate:
    squares = vector.double().square()

    def bound(s: float) -> float:
        above = eps**2 + (s**2 + 1) * squares.mean()
        complexity = float((above / (eps**2 + s**2 * squares)).log().sum()) / 4
        return _bound(instruments, complexity, s)

    return _magnitude_sigma(instruments, drop, draws, eps).estimate(bound)


def sharpness_flatness(instruments: Instruments, drop: float = DROP) -> Estimate:
    """1 / alpha^2, alpha the least max |u_i| that lowers the training accuracy by more than 0.1.

    Jiang et al. (2020). The u is searched for, so there may be a smaller alpha: a lower bound.
    """
    return _alpha(instruments, drop).estimate(lambda alpha: alpha**-2)


def sharpness_magnitude_flatness(
    instruments: Instruments, drop: float = DROP, eps: float = 0.0
) -> Estimate:
    """1 / a^2, a the least one with |u_i| <= a |w_i| + eps that lowers the accuracy by 0.1.

    Jiang et al. (2020), with eps = 0 as in pac_bayes_magnitude_flatness; a lower bound.
    """
    sizes = instruments.objective.vector.abs()
    found = worst_reach(instruments.objective, lambda a: a * sizes + eps, 0.1, drop=drop)
    return found.estimate(lambda a: a**-2)


def sharpness_orig(instruments: Instruments, drop: float = DROP) -> Estimate:
    """sqrt((||w||^2 log(2 n) / (4 alpha^2) + log(m / alpha) + 10) / m), n parameters.

    Jiang et al. (2020), alpha as in sharpness_flatness: a lower bound.
    """
    return _sharpness_bound(instruments, instruments.objective.vector, drop)


def sharpness_init(instruments: Instruments, drop: float = DROP) -> Estimate:
    """sqrt((||w - w0||^2 log(2 n) / (4 alpha^2) + log(m / alpha) + 10) / m), n parameters.

    Jiang et al. (2020), alpha as in sharpness_flatness: a lower bound.
    """
    return _sharpness_bound(instruments, instruments.objective.vector - instruments.init, drop)


def _sharpness_bound(instruments: Instruments, vector: Tensor, drop: float) -> Estimate:
    factor = _square(vector) * math.log(2 * instruments.objective.size) / 4
    return _alpha(instruments, drop).estimate(
        lambda alpha: _bound(instruments, factor / alpha**2, alpha)
    )


def _drawn(function: Callable[..., Any], title: str, **more: Any) -> Measure:
    work = Work(passes=240)
    return _entry(function, title, cost="about 240 forward passes", work=work, **more)


def _searched(function: Callable[..., Any], title: str, **more: Any) -> Measure:
    work = Work(passes=120, gradients=120)
    return _entry(function, title, cost="about 120 gradients", work=work, **more)


def _entry(
    function: Callable[..., Any],
    title: str,
    invariances: tuple[Invariance, ...] = PERMUTATION,
    **more: Any,
) -> Measure:
    return Measure(function, title, "PAC-Bayes", invariances, JIANG, **more)


ENTRIES: dict[str, Measure] = {
    "pac_bayes_sigma": _drawn(
        pac_bayes_sigma, "tolerated noise", shares=NOISE, reading="larger means flatter"
    ),
    "pac_bayes_flatness": _drawn(
        pac_bayes_flatness, "1 / sigma^2", shares=NOISE, is_sharpness=True
    ),
    "pac_bayes_orig": _drawn(
        pac_bayes_orig, "noise bound, origin", shares=NOISE, reading=GUARANTEE
    ),
    "pac_bayes_init": _drawn(
        pac_bayes_init,
        "noise bound, init",
        shares=NOISE,
        reading=GUARANTEE,
        needs=("init",),
        invariances=(),
    ),
    "pac_bayes_magnitude_flatness": _drawn(
        pac_bayes_magnitude_flatness,
        "1 / sigma^2, magnitudes",
        invariances=(*DIAGONAL, "output"),
        is_sharpness=True,
    ),
    "pac_bayes_magnitude_orig": _drawn(
        pac_bayes_magnitude_orig, "magnitude bound, origin", shares=MAGNITUDE, reading=GUARANTEE
    ),
    "pac_bayes_magnitude_init": _drawn(
        pac_bayes_magnitude_init,
        "magnitude bound, init",
        shares=MAGNITUDE,
        reading=GUARANTEE,
        needs=("init",),
        invariances=(),
    ),
    "sharpness_flatness": _searched(
        sharpness_flatness, "1 / alpha^2", shares=WORST, is_sharpness=True
    ),
    "sharpness_orig": _searched(
        sharpness_orig, "sharpness bound, origin", shares=WORST, reading=GUARANTEE
    ),
    "sharpness_init": _searched(
        sharpness_init,
        "sharpness bound, init",
        shares=WORST,
        reading=GUARANTEE,
        needs=("init",),
        invariances=(),
    ),
    "sharpness_magnitude_flatness": _searched(
        sharpness_magnitude_flatness,
        "1 / alpha^2, magnitudes",
        invariances=DIAGONAL,
        is_sharpness=True,
    ),
}
