"""The mean of numbers in [0, 1] that were drawn independently: how large it can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.asking import chance, share
from spiritlevel.bounds.binary import kl_inverse

# Bets, as shares of the largest one that cannot lose more than all; half the gamblers' money is on
# the largest, which is best where the numbers hardly vary.
BETS = 2.0 ** (-np.arange(25) / 2)
MONEY = np.array([0.5] + [0.5 / 24] * 24)
FARTHEST = 37.0  # -log(1 - p) of means that differ from 1 by less than rounding
ROUNDS = 100  # of Newton's method
BEYOND = 1e-10  # by which log W is to be above what refuses, so that rounding cannot undo it
ROUNDING = 4e-16  # of a mean that is made of its u
AT_ONCE = 10_000  # numbers, with all bets


def drawn(*, error: float, draws: int, delta: float = 0.01) -> float:
    """The largest p with kl(error, p) <= log(2 / delta) / draws.

    The mean is at most that but for a share delta of such drawings; Chernoff's inequality, for
    numbers in [0, 1] by Hoeffding 1963. Langford & Caruana 2002; Dziugaite & Roy 2017. From above
    alone log(1 / delta) would do.
    """
    error, delta = share("error", error), chance("delta", delta)
    number("draws", draws, 1, whole=True)
    return kl_inverse(error, math.log(2 / delta) / int(draws))


def mean_above(values: Sequence[float] | np.ndarray, delta: float) -> float:
    """A number that the mean is below, but for a share delta of such drawings; by betting.

    W(p) = sum_b money_b prod_i (1 - b + b (1 - x_i) / (1 - p)), 0 < b <= 1, has the mean 1 where p
    is the true mean, so that it reaches 1 / delta there with probability at most delta (Markov).
    Every factor rises with p, so all means above a refused one are refused. In u = -log(1 - p) the
    logarithm of W is convex: Newton's method from the right stays where means are refused, and only
    what was seen to be is handed out. Nothing is far below log(1 / delta) / len(values) above the
    values' mean: a rare 1 could have been missed. Waudby-Smith & Ramdas 2024.
    """
    left = 1 - _values(values)
    delta = chance("delta", delta)
    refused, u = math.inf, FARTHEST
    for _ in range(ROUNDS):
        wealth, slope = _log_wealth(left, u)
        if wealth < -math.log(delta):
            break
        refused, u = u, u - (wealth + math.log(delta) - BEYOND) / slope
        if not 0 < u < refused:
            break
    return min(1.0, -math.expm1(-refused) + ROUNDING)


def _values(values: Any) -> np.ndarray:
    """Numbers in [0, 1] as a row."""
    try:
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        kind = type(values).__name__
        raise SpiritlevelError(f"values is a {kind}; give a row of numbers in [0, 1]") from error
    if x.ndim != 1 or not x.size or not bool(((x >= 0) & (x <= 1)).all()):
        raise SpiritlevelError("values holds what is no number in [0, 1]; give a row of such")
    return x


def _log_wealth(left: np.ndarray, u: float) -> tuple[float, float]:
    """log W and its slope in u; what rounding can have added to it is taken off."""
    logs, slopes = np.log(MONEY) - 2e-15 * len(left), np.zeros(len(BETS))
    for begin in range(0, len(left), AT_ONCE):
        won = np.outer(BETS, left[begin : begin + AT_ONCE] * math.exp(u))
        factors = won + (1 - BETS)[:, None]
        with np.errstate(divide="ignore"):  # a gambler can lose everything
            parts = np.log(factors)
        logs = logs + parts.sum(1) - 4e-15 * np.abs(parts).sum(1)
        slopes += np.divide(won, factors, out=np.zeros_like(won), where=factors > 0).sum(1)
    top = logs.max()
    weights = np.exp(logs - top)
    return float(top + np.log(weights.sum())), float(weights @ slopes / weights.sum())
