"""Losses of any kind as a sum and a count over a batch: never a mean of batch means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.batches import Batch
from spiritlevel.errors import SpiritlevelError
from spiritlevel.loss.base import Likelihood, Loss, Total
from spiritlevel.loss.own import of_function, of_model
from spiritlevel.loss.pair import of_pair

__all__ = ["Likelihood", "Loss", "Total", "adapt", "moved"]


def adapt(loss: Callable[..., Any] | None, model: nn.Module, batches: list[Batch]) -> Loss:
    """Understand the loss from its signature and from the batches."""
    if loss is not None and not callable(loss):
        raise SpiritlevelError(f"loss is a {type(loss).__name__}; give a function")
    if loss is not None and _takes_model(loss):
        return of_function(loss)
    batch = batches[0]
    if isinstance(batch, Mapping):
        if loss is None:
            return of_model(model, batches)
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
        return of_pair(loss)
    raise SpiritlevelError(
        f"a batch of the kind {_kind(batch)} is not understood; give (x, y), (x, y, weight), "
        "a mapping that the model takes by name, or a function loss(model, batch) -> (sum, count)"
    )


def moved(loss: Loss, dtype: torch.dtype, device: torch.device) -> Loss:
    """The same loss with its own tensors (class weights) in another precision and place."""
    return loss if loss.rebuild is None else loss.rebuild(dtype, device)


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
