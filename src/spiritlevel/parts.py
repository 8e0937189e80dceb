"""Parts of the data that stand for the whole: the hardest examples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from spiritlevel import batches as frozen
from spiritlevel.batches import Batch
from spiritlevel.objective import Objective
from spiritlevel.tensors import map_tensors


@torch.no_grad()
def hardest(objective: Objective, n: int, pool: int = 32) -> Objective:
    """The n examples of largest loss among the first ones, for checks.

    Well-fitted examples have a curvature that drowns in rounding. Where the examples cannot be
    told apart it is the first batch.
    """
    batch = objective.batches[0]
    if not objective.separable and len(objective.batches) > 1:
        batch = max(objective.batches, key=lambda b: _mean(objective, b))
    elif objective.separable and frozen.divisible(batch):
        batch = next(b for b in _pools(objective, pool) if _counts(objective, b))
        hard = _losses(objective, batch).argsort(descending=True)[:n].sort().values
        batch = map_tensors(lambda t: t[hard.to(t.device)], batch)
    return objective.on([batch])


def _pools(objective: Objective, size: int) -> Iterator[Batch]:
    """The data in pieces of `size` examples."""
    for batch in objective.batches:
        for start in range(0, frozen.examples(batch), size):
            yield frozen.rows(batch, slice(start, start + size))


def _mean(objective: Objective, batch: Batch) -> float:
    total, count = objective.total(objective.params, batch)
    return float(total) / max(float(count), 1e-300)


def _counts(objective: Objective, batch: Batch) -> bool:
    """Whether anything in the batch counts; its labels may all be ignored."""
    return float(objective.total(objective.params, batch)[1]) > 0


def _losses(objective: Objective, batch: Batch) -> Tensor:
    """The loss of every example; from one pass through the model where outputs can be cut."""
    singles = frozen.singles(batch)
    on_outputs = objective.loss.on_outputs
    if on_outputs is None:
        return torch.stack([objective.total(objective.params, one)[0] for one in singles])
    outputs = objective.outputs(objective.params, batch)
    if outputs.ndim == 0 or len(outputs) != len(singles):
        return torch.stack([objective.total(objective.params, one)[0] for one in singles])
    pairs = zip(outputs.split(1), singles, strict=True)
    return torch.stack([on_outputs(out, objective.here(one))[0] for out, one in pairs])
