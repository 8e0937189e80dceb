"""Gaussians over the parameters of a network, every parameter on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import a
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import tensor


@dataclass(frozen=True)
class Gaussian:
    """N(mean, diag spread^2) over the chosen parameters, flat; one spread may do for all."""

    mean: Tensor
    spread: Tensor  # standard deviations

    def __post_init__(self) -> None:
        tensor("mean", self.mean, None)
        a("spread", self.spread, Tensor, "standard deviations as a tensor")
        if self.spread.shape not in (self.mean.shape, ()):
            raise SpiritlevelError(
                f"spread has the shape {tuple(self.spread.shape)}; give a standard deviation for "
                f"each of the {len(self.mean)} parameters, or one for all"
            )
        if not bool((self.spread > 0).all()) or not bool(self.spread.isfinite().all()):
            raise SpiritlevelError("spread holds what is no standard deviation: give positive ones")

    def scaled(self, factors: Tensor) -> Gaussian:
        """Where every parameter is multiplied by its factor."""
        d = factors.to(self.mean)
        return Gaussian(self.mean * d, self.spread * d)


def divergences(posterior: Gaussian, prior: Gaussian) -> Tensor:
    """KL(posterior, prior) of each parameter in nats, in float64.

    log(p / s) + (s^2 - p^2 + (mu - mu_p)^2) / (2 p^2).
    """
    s, p = posterior.spread.double(), prior.spread.double()
    moved = posterior.mean.double() - prior.mean.double()
    log_ratio = (s / p).log()
    # exp(2 x) - 1 - 2 x keeps its digits where the spreads are equal
    return ((2 * log_ratio).expm1() - 2 * log_ratio + (moved / p).square()) / 2


def divergence(posterior: Gaussian, prior: Gaussian) -> float:
    """KL(posterior, prior) in nats."""
    return float(divergences(posterior, prior).sum())


def by_parameter(values: Tensor, spans: Mapping[str, slice]) -> dict[str, float]:
    """The sum of a flat vector over every parameter."""
    return {name: float(values[span].sum()) for name, span in spans.items()}


def standard(like: Tensor, scale: float) -> Gaussian:
    """N(0, scale^2 I)."""
    return Gaussian(torch.zeros_like(like), torch.full_like(like, scale))


def best_scale(posterior: Gaussian, centre: Tensor, largest: float = math.inf) -> float:
    """The standard deviation p of the N(centre, p^2 I) with the least divergence.

    p^2 is the mean of s^2 + (w - centre)^2, and `largest` at most.
    """
    moved = posterior.mean.double() - centre.double()
    square = posterior.spread.double().square() + moved.square()
    return math.sqrt(min(float(square.mean()), largest))


def refitted(prior: Gaussian, posterior: Gaussian, largest: float = math.inf) -> Gaussian:
    """The prior with the one scale that is best for the posterior."""
    scale = best_scale(posterior, prior.mean, largest)
    return Gaussian(prior.mean, torch.full_like(prior.mean, scale))
