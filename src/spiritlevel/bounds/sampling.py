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
HALVINGS = 50  # of the range of means


def drawn(*, error: float, draws: int, delta: float = 0.01) -> float:
    """The largest p with kl(error, p) <= log(2 / delta) / draws.

    The mean is at most that but for a share delta of such drawings; Chernoff's inequality, for
    numbers in [0, 1] by Hoeffding 1963. Langford & Caruana 2002; Dziugaite & Roy 2017. From above
    alone log(1 / delta) would do.
    """
    share("error", error)
    number("draws", draws, 1, whole=True)
    chance("delta", delta)
    return kl_inverse(error, math.log(2 / delta) / draws)


def mean_above(values: Sequence[float] | np.ndarray, delta: float) -> float:
    """A number that the mean is below, but for a share delta of such drawings; by betting.

    W(p) = sum_b money_b prod_i (1 + b (p - x_i) / (1 - p)), b <= 1, has the mean 1 where p is the
    true mean, so that it reaches 1 / delta there with probability at most delta (Markov). Every
    factor rises with p: all means above the first refused one are refused too.
    Waudby-Smith & Ramdas 2024.
    """
    x = _values(values)
    chance("delta", delta)
    kept, refused = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (kept + refused) / 2
        if _log_wealth(x, middle) >= -math.log(delta):
            refused = middle
        else:
            kept = middle
    return refused


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


def _log_wealth(x: np.ndarray, p: float) -> float:
    """log W(p), from below: what rounding can add to it is taken off."""
    gain = (p - x) / (1 - p)
    with np.errstate(divide="ignore"):  # a gambler can lose everything
        parts = [np.log1p(bet * gain) for bet in BETS]
    logs = np.array([part.sum() - 1e-15 * (len(x) + np.abs(part).sum()) for part in parts])
    logs = logs + np.log(MONEY)
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum())) if math.isfinite(top) else -math.inf
