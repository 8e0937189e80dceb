"""The bound of expected sharpness for a network: how much noise its weights stand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.bounds.asking import chance
from spiritlevel.bounds.fitted import decisions, left_out, refuse_fitted
from spiritlevel.bounds.sampling import mean_above
from spiritlevel.bounds.sharpness import expected_sharpness
from spiritlevel.objective import Objective, classes
from spiritlevel.objective.classes import Labels
from spiritlevel.results.bound import Bound, Term

FEW = 8  # draws at each noise that is tried
LARGEST, PRECISION = 10.0, 1.0  # sigma^2 = LARGEST exp(-j / PRECISION), j = 1, 2, ...
TRIED = 20  # entries of the grid, to a deviation of 1e-4
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
    points: int = 1,
) -> Bound:
    """E error(w + n) <= error + sharpness + 4 sqrt((|w - w0|^2 / (2 sigma^2) + ...) / m).

    Sigma is chosen on a grid, whose entries share delta, by a few draws; the mean error at it is
    bounded by others, for which a fifth of delta is set aside, for all `points` of a network that
    are looked at. w0 are the weights before training, or 0. Neyshabur et al. (2017).
    """
    chance("delta", delta)
    number("draws", draws, 1, whole=True)
    seeded(seed)
    refuse_fitted(objective)
    known, source = decisions(objective), generator(seed)
    start = torch.zeros_like(objective.vector) if init is None else init
    numbers = {
        "error": classes.error(objective, known),
        "norm": float((objective.vector - start).double().norm()),
        "m": known.units,
        "delta": (1 - PART) * delta,
    }
    tried = [(j, math.sqrt(LARGEST) * math.exp(-j / 2 / PRECISION)) for j in range(1, TRIED + 1)]
    means = [sum(_errors(objective, known, sigma, FEW, source)) / FEW for _, sigma in tried]
    few = [_bound(numbers, *entry, mean) for entry, mean in zip(tried, means, strict=True)]
    index, sigma = min(zip(few, tried, strict=True), key=lambda pair: float(pair[0]))[1]
    found = _errors(objective, known, sigma, draws, source)
    made = _bound(numbers, index, sigma, mean_above(found, PART * delta / points))
    said = f"the mean error with noise is known from {draws} draws, with {PART:g} of delta"
    return replace(
        made,
        delta=delta,
        terms=(*made.terms, Term("noisy error", sum(found) / draws), Term("draws", draws)),
        assumptions=(*made.assumptions, said, *left_out(objective)),
    )


def _bound(numbers: dict[str, Any], index: int, sigma: float, mean: float) -> Bound:
    """The bound of a mean error with this noise."""
    sharpness = mean - numbers["error"]
    return expected_sharpness(**numbers, sharpness=sharpness, sigma=sigma, index=index)


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
