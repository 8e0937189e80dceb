"""What an Objective needs of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spiritlevel.batches import Batch
from spiritlevel.errors import SpiritlevelError

Likelihood = Literal["softmax", "bernoulli", "gaussian"]
Total = tuple[Tensor, Tensor | float]
IGNORED = -100  # the label that PyTorch and Hugging Face leave out of the mean


@dataclass(frozen=True)
class Loss:
    """A loss as (sum, count) over a batch.

    `total(model, batch)` is (sum, count) and `outputs(model, batch)` the tensor that the loss
    sees. Where the loss is a function of outputs and targets, `on_outputs(outputs, batch)` is
    its (sum, count), `weights(outputs, batch)` the weight of every unit (example or token; 0 if
    ignored), `likelihood` the distribution whose logarithm it is, `averaged(outputs)` over how
    many outputs of a unit it averages, and `draw(outputs, batch, generator)` the batch with
    targets drawn from that distribution. `altered` names an option that makes the loss another
    thing than that logarithm; `rebuild` moves the tensors that the loss itself holds.
    """

    total: Callable[[nn.Module, Batch], Total]
    outputs: Callable[[nn.Module, Batch], Tensor]
    on_outputs: Callable[[Tensor, Batch], Total] | None = None
    weights: Callable[[Tensor, Batch], Tensor] | None = None
    draw: Callable[[Tensor, Batch, torch.Generator], Batch] | None = None
    averaged: Callable[[Tensor], int] = lambda out: 1
    likelihood: Likelihood | None = None
    class_axis: int = 1
    altered: str = ""
    joins_examples: bool = False  # a function of the whole batch: never cut unless asked
    rebuild: Callable[[torch.dtype, torch.device], Loss] | None = None


def call(model: nn.Module, x: Any) -> Any:
    """The model on one input, several, or named ones."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, (tuple, list)) else model(x)


def first_tensor(output: Any) -> Tensor:
    """The tensor of predictions in whatever a model returns."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping):
        if isinstance(output.get("logits"), Tensor):
            return output["logits"]
        output = tuple(output.values())
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    raise SpiritlevelError(
        f"the model returns a {type(output).__name__} in which no tensor of predictions is found; "
        "give a function loss(model, batch) -> (sum, count)"
    )


def scalar(value: Any, where: str) -> Tensor:
    """The value as a tensor without dimensions, or an error that says what it is instead."""
    if not isinstance(value, Tensor) or value.numel() != 1:
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
