"""What single examples add to the loss: their gradients, and their curvature along a direction."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jvp

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import kept_rng
from spiritlevel.base.tensors import flatten, map_tensors
from spiritlevel.curvature.ladder import TOLERANCE, climb, difference_of_gradients
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import kinds
from spiritlevel.objective.objective import Params
from spiritlevel.objective.singles import gradients, loss_of, of_examples, room

KEPT = 4  # times as many numbers as are laid out at once are kept for later


@dataclass(frozen=True)
class Noise:
    """R, the gradients of single examples less their mean, one row for each: Sigma = R'R / n.

    Kept where it is small, else made anew, some rows at a time.
    """

    objective: Objective
    mean: Tensor
    kept: Tensor | None = None

    def rows(self) -> Iterator[Tensor]:
        if self.kept is not None:
            yield self.kept
            return
        for piece in gradients(self.objective):
            yield piece - self.mean

    @property
    def variance(self) -> float:
        """tr Sigma."""
        squares = sum(float(rows.double().square().sum()) for rows in self.rows())
        if not math.isfinite(squares):
            raise SpiritlevelError(
                "the squares of the gradients are too large for float64; rescale the data"
            )
        return squares / self.objective.examples

    def through(self, of: Callable[[Tensor], Tensor], signs: Tensor) -> Tensor:
        """R A R' s / n for a matrix A that is known by its products."""
        combined, start = 0.0, 0
        for rows in self.rows():
            combined = combined + rows.T @ signs[start : start + len(rows)]
            start += len(rows)
        image = of(torch.as_tensor(combined))
        return torch.cat([rows @ image for rows in self.rows()]) / self.objective.examples


def noise(instruments: Instruments) -> Noise:
    """Made once for all measures of one objective."""

    def make() -> Noise:
        objective = instruments.objective
        plain = Noise(objective, instruments.gradient)
        if objective.examples * objective.size > KEPT * room(objective):
            return plain
        return Noise(objective, instruments.gradient, torch.cat(list(plain.rows())))

    return instruments.once("example_noise", make)


def units(objective: Objective) -> float:
    """n: how many examples or tokens the mean loss is over, whatever their weights."""
    weighted = any(isinstance(b, (tuple, list)) and len(b) == 3 for b in objective.batches)
    own = objective.loss.joins_examples  # whose count is the user's
    if own or not (weighted or objective.loss.class_weighted):
        return objective.count
    with torch.no_grad(), kept_rng():
        return float(sum(_counted(objective, objective.here(b)) for b in objective.batches))


def _counted(objective: Objective, batch: Batch) -> float:
    """Of one batch, those of some weight."""
    x, y, *weight = batch
    ones = [(w != 0).to(w) for w in weight]
    loss = kinds.placed(objective.given_loss, objective.dtype, objective.device)
    if not (kinds.scores_labels(loss) and kinds.are_labels(y)):
        return float(objective.total(objective.params, (x, y, *ones))[1])
    found = kinds.label_weights(loss, y) != 0
    for w in ones:
        found = found & (w.reshape(w.shape + (1,) * (y.ndim - w.ndim)) != 0)
    return float(found.sum())


def curvatures(instruments: Instruments, v: Tensor) -> Tensor:
    """v'H_i v for every example, whose mean is v'H v: compared with a product that is checked."""
    objective, operator = instruments.objective, instruments.hessian
    checked = functools.cache(lambda: _checked(objective))

    def forward(params: Params, example: Batch) -> Tensor:
        slope = grad(lambda p: loss_of(objective, p, example))
        return flatten(jvp(slope, (params,), (objective.named(v),))[1]) @ v

    def backward(params: Params, example: Batch) -> Tensor:
        slope = grad(lambda p: loss_of(objective, p, example))
        return flatten(grad(lambda p: flatten(slope(p)) @ v)(params)) @ v

    def alone(single: Batch) -> Tensor:
        return checked()(single, v) @ v

    wanted, scale = float(v @ (operator @ v)), objective.examples / objective.count
    found = scale * torch.cat(list(of_examples(objective, alone, forward, backward))).double()
    if abs(float(found.mean()) - wanted) > TOLERANCE[objective.dtype] * float(found.abs().mean()):
        found = scale * torch.cat(list(of_examples(objective, alone))).double()
    return found


def _checked(objective: Objective) -> Callable[[Batch, Tensor], Tensor]:
    """Products with the Hessian of a batch, by the way that agrees with finite differences."""
    way = climb(objective)
    if way.product is difference_of_gradients and way.checked_in == torch.float64:
        objective = objective.to(torch.float64)  # differences need the digits

    def product(batch: Batch, v: Tensor) -> Tensor:
        placed = map_tensors(objective.place, batch)
        return way.product(objective, placed, [v.to(objective.dtype)])[0].to(v)

    return product
