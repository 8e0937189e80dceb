"""Losses of any kind as a sum and a count over a batch: never a mean of batch means."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.batches import Batch, examples
from spiritlevel.errors import SpiritlevelError
from spiritlevel.scope import fixed_rng

Likelihood = Literal["softmax", "bernoulli", "gaussian"]
Total = tuple[Tensor, Tensor | float]
IGNORED = -100  # the label that PyTorch and Hugging Face leave out of the mean


@dataclass(frozen=True)
class Loss:
    """What an Objective needs of a loss.

    `total(model, batch)` is (sum, count) and `outputs(model, batch)` the tensor that the loss
    sees. Where the loss is a function of outputs and targets, `on_outputs(outputs, batch)` is
    its (sum, count), `weights(outputs, batch)` the weight of every unit (example or token; 0 if
    ignored), `likelihood` the distribution whose logarithm it is and `draw(outputs, batch,
    generator)` the batch with targets drawn from that distribution.
    """

    total: Callable[[nn.Module, Batch], Total]
    outputs: Callable[[nn.Module, Batch], Tensor]
    on_outputs: Callable[[Tensor, Batch], Total] | None = None
    weights: Callable[[Tensor, Batch], Tensor] | None = None
    draw: Callable[[Tensor, Batch, torch.Generator], Batch] | None = None
    likelihood: Likelihood | None = None
    class_axis: int = 1
    class_weights: bool = False
    joins_examples: bool = False  # a function of the whole batch: never cut unless asked


def adapt(loss: Callable[..., Any] | None, model: nn.Module, batch: Batch) -> Loss:
    """Understand the loss from its signature and from one batch."""
    if loss is not None and not callable(loss):
        raise SpiritlevelError(f"loss is a {type(loss).__name__}; give a function")
    if isinstance(batch, Mapping):
        return _of_model(model, batch) if loss is None else _of_function(loss)
    if loss is not None and _takes_model(loss):
        return _of_function(loss)
    if isinstance(batch, (tuple, list)) and len(batch) in (2, 3):
        if loss is None:
            raise SpiritlevelError(
                "loss is missing for batches (x, y): give one, for instance "
                "loss=torch.nn.functional.cross_entropy"
            )
        return _of_pair(loss)
    raise SpiritlevelError(
        f"a batch of the kind {_kind(batch)} is not understood; give (x, y), (x, y, weight), "
        "a mapping that the model takes by name, or a function loss(model, batch) -> (sum, count)"
    )


def option(loss: Any, name: str, default: Any = None) -> Any:
    """An option of a loss given as a module, a partial or a plain function."""
    if isinstance(loss, functools.partial):
        return loss.keywords.get(name, option(loss.func, name, default))
    return getattr(loss, name, default)


def first_tensor(output: Any) -> Tensor:
    """The tensor of predictions in whatever a model returns."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    raise SpiritlevelError(
        f"the model returns a {type(output).__name__} in which no tensor of predictions is found; "
        "give a function loss(model, batch) -> (sum, count)"
    )


def _takes_model(loss: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # builtins without a signature are functions of outputs
        return False
    return bool(parameters) and parameters[0] in ("model", "module", "net")


def _kind(batch: Batch) -> str:
    if isinstance(batch, (tuple, list)):
        return f"{type(batch).__name__} of {len(batch)}"
    return type(batch).__name__


def _call(model: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, (tuple, list)) else model(x)


def _scalar(value: Any, where: str) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SpiritlevelError(
            f"{where} is not a scalar but {got}; average it (reduction='mean') or return "
            "(sum, count) from loss(model, batch)"
        )
    return value.reshape(())


# A user's function of the whole model -------------------------------------------------------


def _of_function(loss: Callable[..., Any]) -> Loss:
    """loss(model, batch) -> (sum, count), or a mean over the examples of the batch."""

    def total(model: nn.Module, batch: Batch) -> Total:
        result = loss(model, batch)
        if isinstance(result, tuple) and len(result) == 2:
            return _scalar(result[0], "the sum that loss(model, batch) returns"), result[1]
        count = examples(batch)
        return _scalar(result, "what loss(model, batch) returns") * count, count

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        return first_tensor(_call(model, x))

    return Loss(total, outputs, joins_examples=True)


# A function of outputs and targets -----------------------------------------------------------


def _of_pair(loss: Callable[..., Any]) -> Loss:
    """loss(outputs, y) averaged over the examples (or tokens) that count."""
    likelihood = _likelihood(loss)

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        return first_tensor(_call(model, batch[0]))

    def on_outputs(out: Tensor, batch: Batch) -> Total:
        if len(batch) == 3:
            return _weighted(loss, out, batch[1], batch[2])
        value = _scalar(loss(out, batch[1]), "the value of loss(outputs, y)")
        count = _count(loss, likelihood, out, batch[1])
        return (value, count) if option(loss, "reduction") == "sum" else (value * count, count)

    def weights(out: Tensor, batch: Batch) -> Tensor:
        y = batch[1]
        if likelihood == "softmax":
            unit = torch.ones_like(out.select(1, 0))
            if not y.is_floating_point():
                unit = unit * (y != option(loss, "ignore_index", IGNORED))
        else:
            unit = out.new_ones(out.shape[:1])
        if len(batch) == 3:
            unit = unit * _spread(batch[2], unit)
        return unit.unsqueeze(1) if likelihood == "softmax" else _spread(unit, out)

    def draw(out: Tensor, batch: Batch, draws: torch.Generator) -> Batch:
        y = _draw(likelihood, out, 1, draws)
        if likelihood == "softmax" and not batch[1].is_floating_point():
            ignored = option(loss, "ignore_index", IGNORED)
            y = torch.where(batch[1] == ignored, ignored, y)
        return (batch[0], y, *batch[2:])

    return Loss(
        total=lambda model, batch: on_outputs(outputs(model, batch), batch),
        outputs=outputs,
        on_outputs=on_outputs,
        weights=weights,
        draw=draw,
        likelihood=likelihood,
        class_weights=isinstance(option(loss, "weight"), Tensor),
    )


def _spread(weight: Tensor, like: Tensor) -> Tensor:
    """A weight per example with trailing ones, so that it broadcasts over `like`."""
    return weight.reshape(weight.shape + (1,) * (like.ndim - weight.ndim))


def _draw(
    likelihood: Likelihood | None, out: Tensor, class_axis: int, draws: torch.Generator
) -> Tensor:
    """Targets from the distribution that the outputs describe, drawn on the CPU."""
    if likelihood == "softmax":
        p = out.movedim(class_axis, -1).double().cpu().softmax(-1)
        flat = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=draws)
        return flat.reshape(p.shape[:-1]).to(out.device)
    if likelihood == "bernoulli":
        return torch.bernoulli(out.double().cpu().sigmoid(), generator=draws).to(out)
    # mean squared error over d outputs is -log N(f, d/2), up to a constant
    noise = torch.randn(out.shape, generator=draws, dtype=torch.float64).to(out)
    return out + noise * (out[0].numel() / 2) ** 0.5


def _likelihood(loss: Any) -> Likelihood | None:
    plain = loss.func if isinstance(loss, functools.partial) else loss
    if plain is F.cross_entropy or isinstance(plain, nn.CrossEntropyLoss):
        return "softmax"
    if plain is F.binary_cross_entropy_with_logits or isinstance(plain, nn.BCEWithLogitsLoss):
        return "bernoulli"
    if plain is F.mse_loss or isinstance(plain, nn.MSELoss):
        return "gaussian"
    return None


def _count(loss: Any, likelihood: Likelihood | None, out: Tensor, y: Any) -> Tensor | float:
    """By what PyTorch's own mean divides, in units of examples (tokens for labels)."""
    if not isinstance(y, Tensor) or y.is_floating_point():
        classes = out.shape[1] if likelihood == "softmax" and out.ndim > 1 else 0
        return out.numel() // classes if classes else out.shape[0]
    counted = y != option(loss, "ignore_index", IGNORED)
    class_weights = option(loss, "weight")
    if isinstance(class_weights, Tensor) and likelihood == "softmax":
        return class_weights[y.clamp(min=0)].mul(counted).sum()
    return counted.sum()


def _weighted(loss: Any, out: Tensor, y: Tensor, weight: Tensor) -> Total:
    """sum_i w_i l_i and sum_i w_i; a weight per example serves all its tokens."""
    units = _unreduced(loss)(out, y)
    if y.is_floating_point() and units.ndim > weight.ndim:
        units = units.flatten(weight.ndim).mean(-1)
    weight = _spread(weight, units).expand_as(units)
    counted = weight
    if not y.is_floating_point():
        counted = weight * (y != option(loss, "ignore_index", IGNORED))
    return (units * weight).sum(), counted.sum()


def _unreduced(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        single = copy.copy(loss)
        single.reduction = "none"
        return single
    plain = loss.func if isinstance(loss, functools.partial) else loss
    if "reduction" in inspect.signature(plain).parameters:
        return functools.partial(loss, reduction="none")
    raise SpiritlevelError(
        "batches (x, y, weight) need a loss that takes reduction='none'; "
        "give such a loss, or a function loss(model, batch) -> (sum, count)"
    )


# A model that computes its own loss (Hugging Face) -------------------------------------------


def _of_model(model: nn.Module, batch: Batch) -> Loss:
    """model(**batch).loss, weighted by the labels that count.

    Where that is the cross-entropy of the logits it is computed from them, so that float64 stays
    float64 (Hugging Face casts to float32) and outputs and loss can be told apart.
    """
    shifted = _predicts_next(model)

    def own(model: nn.Module, batch: Batch) -> Total:
        value = getattr(model(**batch), "loss", None)
        if value is None:
            raise SpiritlevelError(
                "the model returned no loss for a batch with the keys "
                f"{list(batch)}: add 'labels', or give loss(model, batch) -> (sum, count)"
            )
        count = _labels_that_count(batch, shifted)
        return _scalar(value, "model(**batch).loss") * count, count

    from_logits = _from_logits(model, shifted)
    with torch.no_grad(), fixed_rng(0):
        value = own(model, batch)[0].double()
    labels = batch.get("labels")
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        with torch.no_grad(), fixed_rng(0):
            rebuilt = from_logits.total(model, batch)[0].double()
        if torch.allclose(value, rebuilt, rtol=1e-4):
            return from_logits
    return Loss(own, from_logits.outputs, joins_examples=True)


def _from_logits(model: nn.Module, shifted: bool) -> Loss:
    """Cross-entropy of model(**batch).logits against batch["labels"], summed."""
    config = getattr(model, "config", None)
    drop = () if getattr(config, "is_encoder_decoder", False) else ("labels",)

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        return first_tensor(model(**{k: v for k, v in batch.items() if k not in drop}))

    def on_outputs(out: Tensor, batch: Batch) -> Total:
        labels = batch["labels"]
        if shifted:
            out, labels = out[:, :-1], labels[:, 1:]
        out, labels = out.reshape(-1, out.shape[-1]), labels.reshape(-1)
        value = F.cross_entropy(out, labels, ignore_index=IGNORED, reduction="sum")
        return value, (labels != IGNORED).sum()

    def weights(out: Tensor, batch: Batch) -> Tensor:
        counted = (batch["labels"] != IGNORED).to(out)
        if shifted:  # position t answers for label t + 1, the last for none
            counted = F.pad(counted[:, 1:], (0, 1))
        return counted.unsqueeze(-1)

    def draw(out: Tensor, batch: Batch, draws: torch.Generator) -> Batch:
        labels, y = batch["labels"], _draw("softmax", out, -1, draws)
        if shifted:
            y = torch.cat([labels[:, :1], y[:, :-1]], dim=1)
        return {**batch, "labels": torch.where(labels == IGNORED, IGNORED, y)}

    return Loss(
        total=lambda model, batch: on_outputs(outputs(model, batch), batch),
        outputs=outputs,
        on_outputs=on_outputs,
        weights=weights,
        draw=draw,
        likelihood="softmax",
        class_axis=-1,
    )


def _predicts_next(model: nn.Module) -> bool:
    kind = f"{getattr(model, 'loss_type', '')} {type(model).__name__}"
    return any(mark in kind for mark in ("CausalLM", "LMHead"))


def _labels_that_count(batch: Batch, shifted: bool) -> Tensor | float:
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        return examples(batch)
    return ((labels[:, 1:] if shifted else labels) != IGNORED).sum()
