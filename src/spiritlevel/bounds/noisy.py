"""The bound of expected sharpness for a network: how much noise its weights stand."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.bounds.asking import chance
from spiritlevel.bounds.fitted import decisions, left_out, refuse_fitted
from spiritlevel.bounds.pacbayes import on_grid
from spiritlevel.bounds.sampling import mean_above
from spiritlevel.bounds.sharpness import expected_sharpness
from spiritlevel.objective import Objective, classes
from spiritlevel.objective.classes import Labels
from spiritlevel.results.bound import Bound, Term

FEW = 8  # draws at each noise that is tried
TRIED = 12  # noises, each half of the one before
PART = 0.2  # of delta, for the drawings


@set_apart()
@torch.no_grad()
def noisy(
    objective: Objective,
    *,
    init: Tensor | None = None,
    delta: float = 0.05,
    draws: int = 200,
    seed: int = 0,
) -> Bound:
    """E error(w + n) <= error + sharpness + 4 sqrt((|w - w0|^2 / (2 sigma^2) + ...) / m).

    Sigma is chosen on the grid of Dziugaite & Roy, whose entries share delta, by a few draws; the
    mean error at it is bounded by others, for which a fifth of delta is set aside. w0 are the
    weights before training, or 0. Neyshabur et al. (2017).
    """
    chance("delta", delta)
    number("draws", draws, 1, whole=True)
    seeded(seed)
    refuse_fitted(objective)
    known, source = decisions(objective), generator(seed)
    error = classes.error(objective, known)
    start = torch.zeros_like(objective.vector) if init is None else init
    norm = float((objective.vector - start).double().norm())

    def bound(index: int, sigma: float, mean: float) -> Bound:
        return expected_sharpness(
            error=error,
            sharpness=mean - error,
            norm=norm,
            sigma=sigma,
            m=known.units,
            delta=(1 - PART) * delta,
            index=index,
        )

    tried = [on_grid(math.sqrt(0.1) / 2**k) for k in range(TRIED)]
    few = [bound(j, s, sum(_errors(objective, known, s, FEW, source)) / FEW) for j, s in tried]
    index, sigma = min(zip(few, tried, strict=True), key=lambda pair: float(pair[0]))[1]
    found = _errors(objective, known, sigma, draws, source)
    above = mean_above(found, PART * delta)
    words = f"the mean error with noise is at most {above:.4g}, by {draws} draws"
    said = (f"{words} with {PART:g} of delta", *left_out(objective))
    made = bound(index, sigma, above)
    more = (Term("noisy error", sum(found) / draws), Term("draws", draws))
    return replace(
        made, delta=delta, terms=(*made.terms, *more), assumptions=(*made.assumptions, *said)
    )


def _errors(
    objective: Objective, known: Labels, sigma: float, draws: int, source: torch.Generator
) -> list[float]:
    """The error on the examples of networks with noise N(0, sigma^2) on every weight."""
    theta = objective.vector
    return [
        classes.error(
            objective, known, objective.named(theta + sigma * gaussian(len(theta), source, theta))
        )
        for _ in range(draws)
    ]
