"""Inputs beside the data that a model can run on: drawn at random, column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from spiritlevel.base.tensors import gaussian, generator, map_tensors
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch, examples
from spiritlevel.objective.premises import taken

EXAMPLES = 64
KEPT = ("mask", "label", "type", "position")  # named inputs that are no numbers to be drawn
Redraw = Callable[[Tensor, torch.Generator], Tensor]


class Drawn(NamedTuple):
    """A batch, and what its inputs are."""

    batch: Batch
    inputs: str


@torch.no_grad()
def drawn(objective: Objective, seed: int = 0) -> Drawn:
    """A batch like the data with other inputs: the first that the model takes.

    Normal numbers beside categories as the data have them; or else all as the data have it.
    """
    ways = {"random inputs": _fresh, "shuffled columns of the data": _shuffled}
    for name, redraw in ways.items():
        batch = _redrawn(objective, redraw, seed)
        if _runs(objective, batch):
            return Drawn(batch, name)
    return Drawn(objective.few(EXAMPLES), "no other inputs")


def _runs(objective: Objective, batch: Batch) -> bool:
    try:
        objective.returned(objective.params, batch)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # inputs that no data has may fail in any way
        return False
    return True


def _redrawn(objective: Objective, redraw: Redraw, seed: int) -> Batch:
    """A batch of which the inputs are drawn anew."""
    draws = generator(seed)
    batch = objective.few(EXAMPLES)
    if objective.divisible(batch):
        batch = taken(batch, torch.arange(EXAMPLES) % examples(batch))

    def anew(tensor: Tensor) -> Tensor:
        return redraw(tensor, draws)

    if isinstance(batch, Mapping):
        return {
            k: v if any(w in k for w in KEPT) else map_tensors(anew, v) for k, v in batch.items()
        }
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(map_tensors(anew, batch[0]), *batch[1:])
    if isinstance(batch, (tuple, list)):
        return type(batch)([map_tensors(anew, batch[0]), *batch[1:]])
    return map_tensors(anew, batch)


def _fresh(tensor: Tensor, draws: torch.Generator) -> Tensor:
    """Normal numbers; where there are whole ones, which may be categories, those of the column."""
    if not tensor.is_floating_point():
        return _shuffled(tensor, draws)
    spread = float(tensor.std()) if tensor.numel() > 1 else 1.0
    found = gaussian(tuple(tensor.shape), draws, tensor) * spread + tensor.mean()
    whole = _whole(tensor)
    return torch.where(whole, _shuffled(tensor, draws), found) if bool(whole.any()) else found


def _whole(tensor: Tensor) -> Tensor:
    """Which columns hold whole numbers alone, more than one of them."""
    if tensor.ndim < 2 or not tensor.numel():
        return torch.zeros((), dtype=torch.bool, device=tensor.device)
    rows = tensor.flatten(0, -2)
    return (rows == rows.round()).all(0) & (rows != rows[0]).any(0)


def _shuffled(tensor: Tensor, draws: torch.Generator) -> Tensor:
    """Every column (a place on the last axis) drawn from what it holds; of one row, from all."""
    if tensor.dtype == torch.bool or not tensor.numel():
        return tensor
    columns = tensor.flatten(0, -2) if tensor.ndim > 1 else tensor[:, None]
    if len(columns) == 1:
        columns = columns.reshape(-1, 1)
    places = torch.randint(len(columns), tuple(columns.shape), generator=draws, device="cpu")
    return columns.gather(0, places.to(columns.device)).reshape(tensor.shape)
