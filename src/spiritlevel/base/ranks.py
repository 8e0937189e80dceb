"""Kendall's rank correlations of two rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Taus(NamedTuple):
    """tau-a counts tied pairs as half right; tau-b leaves them out of its denominator."""

    a: float
    b: float


def kendall(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> Taus:
    """Both taus, in O(n log n); 0 where one of the two does not vary.

    tau-a = sum over pairs of sign(dx) sign(dy) / pairs, and tau-b = the same over the geometric
    mean of the numbers of pairs that differ in x and in y (Kendall, 1938 and 1945).
    """
    from scipy.stats import kendalltau

    if len(x) < 2:
        return Taus(0.0, 0.0)
    way = "asymptotic" if len(x) > 2 else "exact"  # of a p-value that is not used
    tau = float(np.asarray(kendalltau(x, y, method=way))[0])
    if not np.isfinite(tau):
        return Taus(0.0, 0.0)
    return Taus(tau * (untied(x) * untied(y)) ** 0.5, tau)


def untied(values: Sequence[float] | np.ndarray) -> float:
    """The share of pairs that differ."""
    _, counts = np.unique(np.asarray(values), return_counts=True)
    n = int(counts.sum())
    return 1 - float((counts * (counts - 1)).sum()) / (n * (n - 1)) if n > 1 else 0.0
