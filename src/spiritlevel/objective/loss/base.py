"""What an Objective needs of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective.batches import Batch

Likelihood = Literal["softmax", "bernoulli", "gaussian"]
Total = tuple[Tensor, Tensor | float]
IGNORED = -100  # the label that PyTorch and Hugging Face leave out of the mean


@dataclass(frozen=True)
class Loss:
    """A loss as (sum, count) over a batch.

    `total(model, batch)` is (sum, count), `returned(model, batch)` every tensor of predictions that
    the model returns, by name; `together(model, batch)` is both, from one pass. Where the loss is a
    function of outputs and targets, `outputs(model, batch)` is the one tensor that it is a function
    of (several outputs side by side, logits before a final log_softmax) and
    `on_outputs(outputs, batch)` its (sum, count).

    `likelihood` is the distribution that the outputs describe. `strength(outputs, batch)` is then
    the factor a of the loss's Hessian in the outputs: a (diag p - p p') for "softmax", a p (1 - p)
    for "bernoulli", a for "gaussian". `weights(outputs, batch)` are the weights of the units
    (examples or tokens; 0 if ignored), `averaged(outputs)` over how many outputs of a unit the loss
    averages, and `draw(outputs, batch, generator)` the batch with targets drawn from the
    likelihood. `altered` names what makes the loss another thing than its logarithm, class weights
    (`class_weighted`) for one; `rebuild`
    moves the tensors that the loss itself holds.
    """

    total: Callable[[nn.Module, Batch], Total]
    returned: Callable[[nn.Module, Batch], dict[str, Tensor]]
    together: Callable[[nn.Module, Batch], tuple[dict[str, Tensor], Total]]
    outputs: Callable[[nn.Module, Batch], Tensor]
    on_outputs: Callable[[Tensor, Batch], Total] | None = None
    strength: Callable[[Tensor, Batch], Tensor] | None = None
    weights: Callable[[Tensor, Batch], Tensor] | None = None
    draw: Callable[[Tensor, Batch, torch.Generator], Batch] | None = None
    averaged: Callable[[Tensor], int] = lambda out: 1
    likelihood: Likelihood | None = None
    class_axis: int = 1
    altered: str = ""
    class_weighted: bool = False
    sums: bool = False  # what it returns is a sum: divided by the count
    joins_examples: bool = False  # a function of the whole batch: never cut unless asked
    rebuild: Callable[[torch.dtype, torch.device], Loss] | None = None


def call(model: nn.Module, x: Any) -> Any:
    """The model on one input, several, or named ones."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, (tuple, list)) else model(x)


def scalar(value: Any, where: str) -> Tensor:
    """The value as a tensor without dimensions, or an error that says what it is instead."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        if value is None:
            raise SpiritlevelError(f"{where} is nothing (None): is a return missing?")
        if isinstance(value, (int, float)):
            raise SpiritlevelError(
                f"{where} is a plain {type(value).__name__}, which has no gradient: leave out "
                ".item() and give the tensor"
            )
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SpiritlevelError(
            f"{where} is not a scalar but {got}; average it (reduction='mean') or return "
            "(sum, count) from loss(model, batch)"
        )
    return value.reshape(())


def drawn_labels(logits: Tensor, class_axis: int, draws: torch.Generator) -> Tensor:
    """One label for every row of logits, drawn on the CPU."""
    p = logits.movedim(class_axis, -1).double().cpu().softmax(-1)
    flat = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=draws)
    return flat.reshape(p.shape[:-1]).to(logits.device)
