"""Losses that see the whole model: a user's function, or the model's own (Hugging Face)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import fixed_rng
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.objective.batches import Batch, examples
from spiritlevel.objective.loss.base import IGNORED, Loss, Total, call, drawn_labels, scalar
from spiritlevel.objective.loss.heads import Heads, chosen, predictions, side_by_side
from spiritlevel.objective.loss.stable import label_cross_entropy

NO_PREDICTIONS = ("loss", "past_key_values")  # of what Hugging Face's models return
AROUND = 2  # points near the given one at which two losses are compared


def of_function(loss: Callable[..., Any], heads: Heads | None) -> Loss:
    """loss(model, batch) -> (sum, count), or a mean over the examples of the batch.

    It may be a function of more than the outputs (penalties), so nothing is said of those.
    """

    def total(model: nn.Module, batch: Batch) -> Total:
        result = loss(model, batch)
        if isinstance(result, tuple) and len(result) == 2:
            return scalar(result[0], "the sum that loss(model, batch) returns"), result[1]
        count = examples(batch)
        return scalar(result, "what loss(model, batch) returns") * count, count

    def together(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], Total]:
        caught, found = _overheard(total, model, batch)
        several = [predictions(chosen(out, heads)) for out in caught]
        if len(several) == 1:
            return several[0], found
        numbered = [(f"call {i} {n}", t) for i, one in enumerate(several) for n, t in one.items()]
        return {name.strip(): t for name, t in numbered}, found

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        try:  # without the loss, where the model takes the batch by itself
            out = call(model, batch[0] if isinstance(batch, (tuple, list)) else batch)
        except (TypeError, RuntimeError, ValueError, AttributeError):
            return side_by_side(together(model, batch)[0])
        return side_by_side(predictions(chosen(out, heads)))

    return Loss(
        total,
        lambda model, batch: together(model, batch)[0],
        together,
        outputs,
        joins_examples=True,
    )


def _overheard(
    total: Callable[[nn.Module, Batch], Total], model: nn.Module, batch: Batch
) -> tuple[list[Any], Total]:
    """What every call of the model returns that the loss makes, and the loss."""
    caught: list[Any] = []
    handle = model.register_forward_hook(lambda module, args, out: caught.append(out))
    try:
        found = total(model, batch)
    finally:
        handle.remove()
    if not caught:  # a loss that calls parts of the model only
        caught = [call(model, batch[0] if isinstance(batch, (tuple, list)) else batch)]
    return caught, found


def of_model(model: nn.Module, batches: list[Batch], heads: Heads | None) -> Loss:
    """model(**batch).loss, weighted by the labels that count.

    Where that is the cross-entropy of the logits it is computed from them, so that float64 stays
    float64 (Hugging Face casts to float32) and outputs and loss can be told apart. Whether a
    position answers for its own label or for the next one is seen from the values at this point
    and at points around it: an untrained head gives the same value for both.
    """
    batch = next((b for b in batches if _has_labels(b)), batches[0])
    with torch.no_grad(), fixed_rng(0):
        values = [_own_value(at(**batch), batch) for at in _around(model)]
    if _has_labels(batch):
        for shifted in (True, False):
            rebuilt = _from_logits(model, shifted, heads)
            if _agree(rebuilt, model, batch, values):
                return rebuilt
    plain = _from_logits(model, False, heads)

    def together(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], Total]:
        out = model(**batch)
        return _named(out, heads), _weighted(out, batch)

    def total(model: nn.Module, batch: Batch) -> Total:
        return _weighted(model(**batch), batch)

    return Loss(total, plain.returned, together, plain.outputs, joins_examples=True)


def _around(model: nn.Module) -> Iterator[Any]:
    """The model at its point and at random points around it, as functions of keywords."""
    yield model
    draws = generator(0)
    for _ in range(AROUND):
        near = {
            name: p + 0.1 * (p.std(correction=0) + 0.1) * gaussian(tuple(p.shape), draws, p)
            for name, p in model.named_parameters()
        }
        yield lambda near=near, **batch: functional_call(model, near, (), batch)


def _agree(rebuilt: Loss, model: nn.Module, batch: Batch, values: list[Tensor]) -> bool:
    try:
        with torch.no_grad(), fixed_rng(0):
            found = [rebuilt.total(at, batch) for at in _around(model)]  # type: ignore[arg-type]
    except (RuntimeError, TypeError, ValueError, IndexError):  # labels of another shape
        return False
    means = [total.double() / float(count) for total, count in found]
    return all(
        torch.allclose(mean, value.double(), rtol=1e-4)
        for mean, value in zip(means, values, strict=True)
    )


def _has_labels(batch: Batch) -> bool:
    labels = batch.get("labels")
    is_integer = isinstance(labels, Tensor) and not labels.is_floating_point()
    return is_integer and bool((labels != IGNORED).any())


def _own_value(returned: Any, batch: Batch) -> Tensor:
    value = returned[0] if _leads(returned) else _item(returned, "loss")
    if value is None:
        keys = f" with the keys {list(returned)}" if isinstance(returned, Mapping) else ""
        raise SpiritlevelError(
            f"the model returned {type(returned).__name__}{keys} and no loss for a batch with the "
            f"keys {list(batch)}: add 'labels', give batches (inputs, labels) and a loss of torch "
            "with heads=, or loss(model, batch) -> (sum, count)"
        )
    return scalar(value, "model(**batch).loss")


def _item(returned: Any, name: str) -> Any:
    """Of an object by its name, of a mapping by its key."""
    if isinstance(returned, Mapping) and name in returned:
        return returned[name]
    return getattr(returned, name, None)


def _leads(returned: Any) -> bool:
    """Whether it is a tuple with the loss before the outputs (return_dict=False)."""
    if not isinstance(returned, tuple) or hasattr(returned, "loss"):
        return False
    first = next(iter(returned), None)
    return len(returned) > 1 and isinstance(first, Tensor) and first.ndim == 0


def _weighted(returned: Any, batch: Batch) -> Total:
    """The model's mean, weighted by labels if they are tokens, else by examples."""
    labels, count = batch.get("labels"), float(examples(batch))
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        count = float((labels != IGNORED).sum())
    return _own_value(returned, batch) * count, count


def _named(returned: Any, heads: Heads | None) -> dict[str, Tensor]:
    """The predictions of a Hugging Face model: its outputs but the loss and the cache."""
    found = predictions(chosen(returned[1:] if _leads(returned) else returned, heads))
    return {n: t for n, t in found.items() if not n.startswith(NO_PREDICTIONS)}


def _from_logits(model: nn.Module, shifted: bool, heads: Heads | None) -> Loss:
    """Cross-entropy of model(**batch).logits against batch["labels"], summed."""
    config = getattr(model, "config", None)
    drop = () if getattr(config, "is_encoder_decoder", False) else ("labels",)
    found = _Logits(shifted, heads, drop)
    return Loss(
        total=lambda model, batch: found.on_outputs(found.outputs(model, batch), batch),
        returned=lambda model, batch: _named(found.run(model, batch), heads),
        together=found.together,
        outputs=found.outputs,
        on_outputs=found.on_outputs,
        strength=found.weights,
        weights=found.weights,
        draw=found.draw,
        likelihood="softmax",
        class_axis=-1,
    )


@dataclass(frozen=True)
class _Logits:
    """Labels of tokens or examples; `shifted` ones belong to the position before them."""

    shifted: bool
    heads: Heads | None
    drop: tuple[str, ...]  # what of a batch the model does not get

    def run(self, model: nn.Module, batch: Batch) -> Any:
        return model(**{k: v for k, v in batch.items() if k not in self.drop})

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._logits(self.run(model, batch))

    @staticmethod
    def _logits(out: Any) -> Tensor:
        logits = _item(out, "logits")
        return logits if isinstance(logits, Tensor) else next(iter(_named(out, None).values()))

    def together(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], Total]:
        out = self.run(model, batch)
        return _named(out, self.heads), self.on_outputs(self._logits(out), batch)

    def on_outputs(self, out: Tensor, batch: Batch) -> Total:
        labels = batch["labels"]
        if self.shifted:
            out, labels = out[:, :-1], labels[:, 1:]
        out, labels = out.reshape(-1, out.shape[-1]), labels.reshape(-1)
        counts = labels != IGNORED
        value = label_cross_entropy(out, labels.masked_fill(~counts, 0)) * counts
        return value.sum(), counts.sum()

    def weights(self, out: Tensor, batch: Batch) -> Tensor:
        counted = (batch["labels"] != IGNORED).to(out)
        if self.shifted:  # position t answers for label t + 1, the last for none
            counted = F.pad(counted[:, 1:], (0, 1))
        return counted.unsqueeze(-1)

    def draw(self, out: Tensor, batch: Batch, draws: torch.Generator) -> Batch:
        labels, y = batch["labels"], drawn_labels(out, -1, draws)
        if self.shifted:
            y = torch.cat([labels[:, :1], y[:, :-1]], dim=1)
        return {**batch, "labels": torch.where(labels == IGNORED, IGNORED, y)}
