"""The logarithm of a mean of exponentials, which few of them may carry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.spectral.probes import standard_error

CARRIED, ENOUGH = 1 / 2, 10  # terms: if fewer carry the mean, its error is not known


@dataclass(frozen=True)
class LogMean:
    """log((1/k) sum exp(t_i)), the jackknife's standard error, and how many terms carry it.

    The mean of too few terms is too small rather than too large: by Markov's inequality it exceeds
    what it estimates by a factor e^c in one case of e^c at most.
    """

    value: float
    stderr: float
    effective: float
    terms: int

    @property
    def known(self) -> bool:
        return self.effective >= min(CARRIED * self.terms, ENOUGH)


def log_mean(terms: Tensor) -> LogMean:
    """Of the exponentials of at least two numbers."""
    k = len(terms)
    total = terms.logsumexp(0)
    weights = (terms - total).exp()
    others = torch.stack([torch.cat([terms[:i], terms[i + 1 :]]).logsumexp(0) for i in range(k)])
    return LogMean(
        value=float(total) - math.log(k),
        # n - 1 times as wide as the spread of the values with one term left out
        stderr=(k - 1) * standard_error(others),
        effective=float(1 / weights.square().sum()),
        terms=k,
    )
