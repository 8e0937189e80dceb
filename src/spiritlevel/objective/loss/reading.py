"""What a function of one's own makes of a batch: a mean over labels, over examples, or a sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base.scope import fixed_rng
from spiritlevel.objective import batches as frozen
from spiritlevel.objective import premises
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import kinds
from spiritlevel.objective.loss.base import IGNORED
from spiritlevel.objective.loss.pair import of_pair
from spiritlevel.objective.loss.seen import Reading, Seen

CUTS = 2  # ways to cut the examples, each into single ones and larger pieces
LOOKED = 64  # batches
EACH = 8  # examples with the fewest, and with the most, labels that count


@torch.no_grad()
def read(loss: Callable[..., Any], seen: Seen, model: nn.Module, batches: list[Batch]) -> Seen:
    """The first reading by which a batch is made of its pieces; the usual one if none is that."""
    declared = kinds.is_from_torch(loss) or kinds.option(loss, "reduction") == "sum"
    if declared or seen.packing is None or len(batches[0]) != 2:
        return seen
    some = _telling(batches)
    for reading in Reading:
        found = replace(seen, reading=reading)
        if _holds(loss, found, model, some):
            return found
    return seen


def _holds(loss: Callable[..., Any], seen: Seen, model: nn.Module, some: Batch) -> bool:
    found = of_pair(loss, seen)
    assert found.on_outputs is not None
    try:
        with fixed_rng(0):
            out = found.outputs(model, some)
            cuts = (premises.adds_up_in_pieces(found.on_outputs, out, some, k) for k in range(CUTS))
            return all(cuts)
    except Exception:  # a loss of pairs may raise anything where there is one example
        return False


def _telling(batches: list[Batch]) -> Batch:
    """Some examples with few and with many labels that count: there the readings differ."""
    some = [_ends(batch) for batch in batches[:LOOKED]]
    if all(map(frozen.tabular, some)) and frozen.alike(some):
        return _ends(frozen.join(some))
    varied = (b for b in some if frozen.divisible(b) and len(_counts(b).unique()) > 1)
    return next(varied, premises.sample(batches))


def _ends(batch: Batch) -> Batch:
    """The examples with the fewest, and with the most, labels that count."""
    if not frozen.divisible(batch):
        return batch
    order = _counts(batch).argsort(stable=True)
    return premises.taken(batch, torch.cat([order[:EACH], order[EACH:][-EACH:]]))


def _counts(batch: Batch) -> Tensor:
    """How many labels of each example count; 1 where targets are no labels."""
    n = frozen.examples(batch)
    if not kinds.are_labels(batch[1]):
        return torch.ones(n)
    return (batch[1] != IGNORED).reshape(n, -1).sum(1)
