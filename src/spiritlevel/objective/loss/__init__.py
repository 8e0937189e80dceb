"""Losses of any kind as a sum and a count over a batch: never a mean of batch means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import kinds
from spiritlevel.objective.loss.base import IGNORED, Likelihood, Loss, Total
from spiritlevel.objective.loss.heads import Heads
from spiritlevel.objective.loss.own import of_function, of_model
from spiritlevel.objective.loss.pair import of_pair
from spiritlevel.objective.loss.reading import read
from spiritlevel.objective.loss.seen import Seen, look

__all__ = ["Heads", "Likelihood", "Loss", "Total", "adapt", "moved"]


def adapt(
    loss: Callable[..., Any] | None,
    model: nn.Module,
    batches: list[Batch],
    few: Batch,
    heads: Heads | None = None,
    *,
    reads: bool = True,
) -> Loss:
    """Understand the loss from its signature, from the batches and from what it makes of a few.

    `reads` off takes the value of a batch as its mean, as whoever steps along its gradient does.
    """
    if loss is not None and not callable(loss):
        raise SpiritlevelError(f"loss is a {type(loss).__name__}; give a function")
    if loss is not None and _takes_model(loss):
        return of_function(loss, heads)
    batch = batches[0]
    if isinstance(batch, Mapping):
        if loss is None:
            return of_model(model, batches, heads)
        raise SpiritlevelError(
            "batches are mappings, so the loss must be a function of the model: "
            "loss(model, batch) -> (sum, count), its first parameter called `model`"
        )
    if isinstance(batch, (tuple, list)) and len(batch) in (2, 3):
        if loss is None:
            raise SpiritlevelError(
                "loss is missing for batches (x, y): give one, for instance "
                "loss=torch.nn.functional.cross_entropy"
            )
        _check_weights(batch)
        seen = _seen(loss, model, batches, few, heads)
        return of_pair(loss, read(loss, seen, model, batches) if reads else seen)
    raise SpiritlevelError(
        f"a batch of the kind {_kind(batch)} is not understood; give (x, y), (x, y, weight), "
        "a mapping that the model takes by name, or a function loss(model, batch) -> (sum, count)"
    )


def moved(loss: Loss, dtype: torch.dtype, device: torch.device) -> Loss:
    """The same loss with its own tensors (class weights) in another precision and place."""
    return loss if loss.rebuild is None else loss.rebuild(dtype, device)


def _seen(
    loss: Any, model: nn.Module, batches: list[Batch], few: Batch, heads: Heads | None
) -> Seen:
    """What the model returns, and what the loss makes of it where its code does not tell."""
    seen = look(model, few, heads)
    if seen.packing is not None and len(seen.packing.shapes) == 1 and seen.packing.shapes[0]:
        for batch in batches:
            kinds.refuse_labels(loss, batch[1], seen.packing.shapes[0])
    known = kinds.is_cross_entropy(loss) or kinds.is_nll(loss)
    plain = replace(seen, log_softmax_axis=None)
    if seen.log_softmax_axis is not None and not known and not _is_linear(loss, model, few, plain):
        seen = plain
    if not kinds.is_from_torch(loss) and seen.packing is not None:
        labelled = [b for b in batches if kinds.are_labels(b[1])]
        left_out = [b for b in labelled if bool((b[1] == IGNORED).any())]
        mixed = next((b for b in left_out if bool((b[1] != IGNORED).any())), None)
        raw = replace(plain, ignores=False)  # as the function itself has it
        ignores = mixed is not None and _ignores(of_pair(loss, raw), model, mixed)
        seen = replace(seen, ignores=ignores or not left_out)
    return seen


def _is_linear(loss: Any, model: nn.Module, few: Batch, seen: Seen) -> bool:
    """Whether a loss is linear in the outputs: then it curves in what is before them only."""
    found = of_pair(loss, seen)
    slope, z = _slope(found, model, few)
    if not slope.requires_grad:
        return True
    draws = torch.Generator().manual_seed(0)
    u = torch.randn(z.shape, generator=draws).to(z)
    (bent,) = torch.autograd.grad(slope, z, u, materialize_grads=True)
    return not bool(bent.any())


def _ignores(loss: Loss, model: nn.Module, batch: Batch) -> bool:
    """Whether the outputs of labels of -100 do not matter to a loss, wherever they are."""
    slope, _ = _slope(loss, model, batch, perturbed=True)
    left_out = batch[1] == IGNORED
    if slope.shape[: left_out.ndim] == left_out.shape:
        return not bool(slope[left_out].any())
    if slope.ndim > left_out.ndim and slope.movedim(1, -1).shape[:-1] == left_out.shape:
        return not bool(slope.movedim(1, -1)[left_out].any())
    return True


def _slope(
    loss: Loss, model: nn.Module, batch: Batch, *, perturbed: bool = False
) -> tuple[Tensor, Tensor]:
    """The derivative of the summed loss in the outputs, and the outputs."""
    assert loss.on_outputs is not None
    with torch.no_grad():
        out = loss.outputs(model, batch)
    if perturbed:  # a fitted example has no slope either
        out = out + torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    with torch.enable_grad():
        z = out.detach().requires_grad_()
        total = loss.on_outputs(z, batch)[0]
        (slope,) = torch.autograd.grad(total, z, create_graph=True, materialize_grads=True)
    return slope, z


def _takes_model(loss: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # builtins without a signature are functions of outputs
        return False
    return bool(parameters) and parameters[0] in ("model", "module", "net")


def _check_weights(batch: Batch) -> None:
    if len(batch) == 3 and not (isinstance(batch[2], Tensor) and batch[2].is_floating_point()):
        got = batch[2].dtype if isinstance(batch[2], Tensor) else type(batch[2]).__name__
        raise SpiritlevelError(
            f"the third member of a batch is its weight, a floating-point tensor; got {got}. Drop "
            "it, or give a function loss(model, batch) -> (sum, count)"
        )


def _kind(batch: Batch) -> str:
    if isinstance(batch, (tuple, list)):
        return f"{type(batch).__name__} of {len(batch)}"
    return type(batch).__name__
