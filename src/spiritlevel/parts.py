"""Parts of the data that stand for the whole: the hardest examples, the most curved ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from spiritlevel import batches as frozen
from spiritlevel.batches import Batch
from spiritlevel.loss.bends import bend
from spiritlevel.objective import Objective
from spiritlevel.tensors import generator, map_tensors, rademacher


@torch.no_grad()
def hardest(objective: Objective, n: int, pool: int = 32) -> Objective:
    """The n examples of largest loss among the first ones, for checks.

    Well-fitted examples have a curvature that drowns in rounding. Where the examples cannot be
    told apart it is the first batch.
    """
    batch = objective.batches[0]
    if objective.separable and frozen.divisible(batch):
        batch = next(b for b in _pools(objective, pool) if _counts(objective, b))
        hard = _losses(objective, batch).argsort(descending=True)[:n].sort().values
        batch = map_tensors(lambda t: t[hard.to(t.device)], batch)
    return objective.on([batch])


def _pools(objective: Objective, size: int) -> Iterator[Batch]:
    """The data in pieces of `size` examples."""
    for batch in objective.batches:
        for start in range(0, frozen.examples(batch), size):
            yield frozen.rows(batch, slice(start, start + size))


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


def curved_part(objective: Objective, share: float) -> Objective | None:
    """The share of the examples in which the loss curves most, summed over but divided by all.

    A trained net has most of its curvature in few examples: those where u' grad_f^2 l u is large
    for random u in output space. None where outputs and loss cannot be told apart.
    """
    if not objective.separable or objective.loss.on_outputs is None:
        return None
    batches = objective.batches
    found = [_output_curvature(objective, batch, i) for i, batch in enumerate(batches)]
    if any(len(s) != frozen.examples(batch) for s, batch in zip(found, batches, strict=True)):
        return None
    scores = torch.cat(found)
    keep = torch.zeros(len(scores), dtype=torch.bool)
    keep[scores.argsort(descending=True)[: max(int(share * len(scores)), 1)].cpu()] = True
    sizes = [frozen.examples(batch) for batch in batches]
    chosen = [
        map_tensors(lambda t, m=mask: t[m.to(t.device)], batch)
        for batch, mask in zip(batches, keep.split(sizes), strict=True)
        if mask.any()
    ]
    return objective.on(frozen.regroup(chosen, max(sizes)), keep_count=True)


def _output_curvature(objective: Objective, batch: Batch, number: int, probes: int = 4) -> Tensor:
    """u' grad_f^2 l_i u for every example i, summed over a few random signs u."""
    draws = generator(number)
    with torch.no_grad():
        out = objective.outputs(objective.params, batch)
    out, batch = out.reshape(1) if out.ndim == 0 else out, objective.here(batch)
    scores = torch.zeros(len(out), device=out.device, dtype=out.dtype)
    for _ in range(probes):
        u = rademacher(out.numel(), draws, out).view_as(out)
        scores += (u * bend(objective.loss, out, u, batch)).reshape(len(out), -1).sum(1)
    return scores
