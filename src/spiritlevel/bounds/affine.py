"""Models that are linear in their parameters: where a loss is convex, and how steep it can be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator, map_tensors
from spiritlevel.measures.stacks import chain_of
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.objective import Params
from spiritlevel.objective.singles import alone_in_a_batch, of_examples

ADDITIVE = {torch.float32: 1e-4, torch.float64: 1e-11}  # relative: what rounding may leave
ONE = 1e-5  # how far the weight of an example may be from 1


@dataclass(frozen=True)
class Constants:
    """|grad f| <= lipschitz and |hess f| <= smoothness of every example's loss, at all parameters.

    They hold for the examples that were seen, and for others with inputs no longer than theirs.
    """

    lipschitz: float
    smoothness: float


@set_apart()
def constants(objective: Objective) -> Constants:
    """Of a cross-entropy of outputs J theta + c: sqrt(2) |J| and |J|^2 / 2; |J|, |J|^2 / 4 of one.

    |softmax - label| <= sqrt(2) and diag(p) - p p' <= 1/2; of one logit they are 1 and 1/4.
    Refuses what is not convex in the parameters, or not for sure.
    """
    several = _classes(objective)
    if len(chain_of(objective, "a convex loss")) > 1:
        raise SpiritlevelError("the loss is not convex in the parameters: there are hidden layers")
    _refuse_bent(objective)
    top = _largest(objective, several)
    steep, bent = (math.sqrt(2), 1 / 2) if several > 1 else (1.0, 1 / 4)
    return Constants(steep * top, bent * top**2)


def _classes(objective: Objective) -> int:
    """How many outputs the cross-entropy of an example has."""
    loss, batch = objective.loss, objective.few(2)
    with torch.no_grad():
        out = objective.outputs(objective.params, batch)
        plain = loss.likelihood in ("softmax", "bernoulli") and not loss.altered
        if plain and loss.strength is not None:
            plain = bool(((loss.strength(out, objective.here(batch)) - 1).abs() < ONE).all())
    several = out.numel() // frozen.examples(batch)
    if not plain or (loss.likelihood == "bernoulli" and several > 1) or out.ndim > 2:
        raise SpiritlevelError(
            "how steep the loss can be is known for plain cross-entropies of one label for each "
            "example (cross_entropy, binary_cross_entropy_with_logits)"
        )
    return several if loss.likelihood == "softmax" else 1


@torch.no_grad()
def _refuse_bent(objective: Objective) -> None:
    """f(a + b) + f(0) = f(a) + f(b) for random parameters a, b, if f is linear in them."""
    draws, theta = generator(0), objective.vector
    a, b = gaussian(len(theta), draws, theta), gaussian(len(theta), draws, theta)
    batch = objective.few(64)

    def at(vector: Tensor) -> Tensor:
        return objective.outputs(objective.named(vector), batch)

    both = at(a + b)
    gap = float((both + at(torch.zeros_like(a)) - at(a) - at(b)).abs().max())
    if not gap <= ADDITIVE[objective.dtype] * float(both.abs().max()):
        raise SpiritlevelError(
            "the loss is not convex in the parameters: the outputs are not linear in them"
        )


def _largest(objective: Objective, outputs: int) -> float:
    """The largest ||J||_2 of an example, J the slope of its outputs."""

    def one(params: Params, example: Batch) -> Tensor:
        slopes = jacrev(lambda p: objective.outputs(p, alone_in_a_batch(example)).reshape(-1))(
            params
        )
        return torch.cat([s.reshape(s.shape[0], -1) for s in slopes.values()], 1)

    def alone(batch: Batch) -> Tensor:
        return one(objective.params, map_tensors(lambda t: t[0], batch))

    numbers = outputs * objective.size
    rows = of_examples(objective, alone, one, numbers=numbers)
    return max(float(torch.linalg.matrix_norm(j.double(), 2).max()) for j in rows)
