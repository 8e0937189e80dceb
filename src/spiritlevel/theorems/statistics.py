"""Intervals for claims that are about means, not about single networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

LEVEL = 0.95


def paired_interval(differences: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """The mean of paired differences, and the ends of its t interval at 95 %."""
    found = np.asarray(differences, dtype=float)
    n = len(found)
    if n < 2:
        return float(found.mean()) if n else np.nan, -np.inf, np.inf
    half = student.ppf((1 + LEVEL) / 2, n - 1) * found.std(ddof=1) / n**0.5
    return float(found.mean()), float(found.mean() - half), float(found.mean() + half)
