"""Functions of every example by itself, all of them stacked, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import grad, vmap

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import relieved
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import flatten, map_tensors
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch

if TYPE_CHECKING:
    from spiritlevel.objective.objective import Objective, Params

ROOM = {"cpu": 2**24, "cuda": 2**28}  # numbers that are laid out at once

Single = Callable[["Params", Batch], Tensor]  # of the parameters and one example without its axis


def gradients(objective: Objective) -> Iterator[Tensor]:
    """One row per example, whose mean is the gradient; some rows at a time."""

    def mapped(params: Params, example: Batch) -> Tensor:
        return flatten(grad(lambda p: loss_of(objective, p, example))(params))

    for rows in of_examples(objective, objective.gradient_sum, mapped):
        yield rows * (objective.examples / objective.count)


def of_examples(
    objective: Objective,
    alone: Callable[[Batch], Tensor],
    *ways: Single,
    numbers: int | None = None,
) -> Iterator[Tensor]:
    """By vmap of some way, else `alone`; `numbers` are laid out for one example, a row if None."""
    if not objective.separable:
        raise SpiritlevelError(
            "per-example gradients do not exist here: the loss of a batch is no sum over its "
            'examples (BatchNorm in train mode, or a loss of pairs); use mode="eval"'
        )
    with bar(objective.examples, "examples") as progress:
        for piece in _pieces(objective, numbers or objective.size):
            yield relieved(lambda piece=piece: _stacked(objective, alone, ways, piece))
            progress.update(frozen.examples(piece))


def loss_of(objective: Objective, params: Params, example: Batch) -> Tensor:
    """The loss of one example without its axis."""
    return objective.total(params, alone_in_a_batch(example))[0]


def alone_in_a_batch(example: Batch) -> Batch:
    return map_tensors(lambda t: t.unsqueeze(0), example)


def room(objective: Objective) -> int:
    return ROOM.get(objective.device.type, ROOM["cpu"])


def _pieces(objective: Objective, numbers: int) -> Iterator[Batch]:
    """Of the data, so small that what is laid out fits."""
    at_once = max(room(objective) // numbers, 1)
    for batch in objective.batches:
        if not frozen.divisible(batch):
            yield batch
            continue
        for start in range(0, frozen.examples(batch), at_once):
            yield frozen.rows(batch, slice(start, start + at_once))


@set_apart()
def _stacked(
    objective: Objective,
    alone: Callable[[Batch], Tensor],
    ways: Sequence[Single],
    piece: Batch,
) -> Tensor:
    with objective.smooth():
        for way in ways:
            found = _mapped(way, objective.params, objective.here(piece))
            if found is not None:
                return found
        return torch.stack([alone(single) for single in frozen.singles(piece)])


def _mapped(of: Single, params: Params, piece: Batch) -> Tensor | None:
    """By vmap; None where there is no batching rule, or control flow."""
    try:
        return vmap(of, in_dims=(None, 0))(params, piece)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError):
        return None
