"""Losses that see the whole model: a user's function, or the model's own (Hugging Face)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.batches import Batch, examples
from spiritlevel.errors import SpiritlevelError
from spiritlevel.loss.base import IGNORED, Loss, Total, call, drawn_labels, first_tensor, scalar
from spiritlevel.scope import fixed_rng


def of_function(loss: Callable[..., Any]) -> Loss:
    """loss(model, batch) -> (sum, count), or a mean over the examples of the batch."""

    def total(model: nn.Module, batch: Batch) -> Total:
        result = loss(model, batch)
        if isinstance(result, tuple) and len(result) == 2:
            return scalar(result[0], "the sum that loss(model, batch) returns"), result[1]
        count = examples(batch)
        return scalar(result, "what loss(model, batch) returns") * count, count

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        return first_tensor(call(model, x))

    return Loss(total, outputs, joins_examples=True)


def of_model(model: nn.Module, batches: list[Batch]) -> Loss:
    """model(**batch).loss, weighted by the labels that count.

    Where that is the cross-entropy of the logits it is computed from them, so that float64 stays
    float64 (Hugging Face casts to float32) and outputs and loss can be told apart. Whether a
    position answers for its own label or for the next one is seen from the value.
    """
    batch = next((b for b in batches if _has_labels(b)), batches[0])
    with torch.no_grad(), fixed_rng(0):
        value = _own_value(model, batch)
    if _has_labels(batch):
        for shifted in (True, False):
            rebuilt = _from_logits(model, shifted)
            try:
                with torch.no_grad(), fixed_rng(0):
                    total, count = rebuilt.total(model, batch)
            except (RuntimeError, TypeError, ValueError, IndexError):  # labels of another shape
                continue
            if torch.allclose(total.double() / float(count), value.double(), rtol=1e-4):
                return rebuilt
    return Loss(_own_total, _from_logits(model, False).outputs, joins_examples=True)


def _has_labels(batch: Batch) -> bool:
    labels = batch.get("labels")
    is_integer = isinstance(labels, Tensor) and not labels.is_floating_point()
    return is_integer and bool((labels != IGNORED).any())


def _own_value(model: nn.Module, batch: Batch) -> Tensor:
    value = getattr(model(**batch), "loss", None)
    if value is None:
        raise SpiritlevelError(
            "the model returned no loss for a batch with the keys "
            f"{list(batch)}: add 'labels', or give loss(model, batch) -> (sum, count)"
        )
    return scalar(value, "model(**batch).loss")


def _own_total(model: nn.Module, batch: Batch) -> Total:
    """The model's mean, weighted by labels if they are tokens, else by examples."""
    labels, count = batch.get("labels"), float(examples(batch))
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        count = float((labels != IGNORED).sum())
    return _own_value(model, batch) * count, count


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
        labels, y = batch["labels"], drawn_labels(out, -1, draws)
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
