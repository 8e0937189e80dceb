"""loss(outputs, y): PyTorch's own losses and functions of their kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective.batches import Batch, examples
from spiritlevel.objective.loss import kinds
from spiritlevel.objective.loss.base import (
    IGNORED,
    Likelihood,
    Loss,
    Total,
    call,
    drawn_labels,
    scalar,
)
from spiritlevel.objective.loss.heads import predictions
from spiritlevel.objective.loss.seen import LogSoftmaxWatch, Reading, Seen
from spiritlevel.objective.loss.stable import binary_cross_entropy, label_cross_entropy

Units = Callable[[Any, Any], Tensor]  # (outputs, y) -> the loss of every unit


def of_pair(loss: Callable[..., Any], seen: Seen) -> Loss:
    """loss(outputs, y) averaged over the examples (or tokens) that count."""
    if seen.log_softmax_axis == 1 and kinds.is_nll(loss):
        # of log_softmax outputs it is the cross-entropy of what is before, which can curve
        return of_pair(kinds.cross_entropy_like(loss), seen)
    found = _plain(loss, seen)
    if seen.log_softmax_axis is not None and not kinds.is_cross_entropy(loss):
        return _fused(found, seen.log_softmax_axis)
    return found


def _plain(loss: Callable[..., Any], seen: Seen) -> Loss:
    likelihood = kinds.likelihood(loss)
    # made once: products are compiled, and compilers do not see through inspect or copy
    units = _units(loss)
    parts, pair = _Parts(loss, likelihood, units), _Pair(loss, seen, units)
    packed = seen.packing is not None
    known = likelihood is not None and seen.packing is not None and len(seen.packing.shapes) == 1
    return Loss(
        total=pair.total,
        returned=lambda model, batch: predictions(pair.returned(model, batch)),
        together=pair.together,
        outputs=pair.outputs,
        on_outputs=pair.on_outputs if packed else None,
        strength=parts.strength if known and units is not None else None,
        weights=parts.weights if packed else None,
        draw=parts.draw if known else None,
        averaged=parts.averaged,
        likelihood=likelihood if known else None,
        altered=kinds.altered(loss),
        class_weighted=kinds.class_weighted(loss),
        sums=seen.reading is Reading.SUM,
        rebuild=lambda dtype, device: of_pair(kinds.placed(loss, dtype, device), seen),
    )


@dataclass(frozen=True)
class _Pair:
    """A loss of outputs and targets, from the model to its sum."""

    loss: Callable[..., Any]
    seen: Seen
    units: Units | None

    def returned(self, model: nn.Module, batch: Batch) -> Any:
        return self.seen.chosen(call(model, batch[0]))

    def on_returned(self, given: Any, batch: Batch) -> Total:
        loss, units = self.loss, self.units
        given = self.seen.given(given, kinds.is_from_torch(loss))
        kinds.refuse_broadcast(loss, given, batch[1])
        kinds.refuse_targets(loss, given, batch[1])
        if len(batch) == 3:
            return _weighted(loss, units, given, batch[1], batch[2])
        return _summed(loss, units, given, batch[1], examples(batch), self.seen)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.seen.log_softmax_axis is None:
            return self.seen.packed(self.returned(model, batch))
        with LogSoftmaxWatch() as watch:
            found = self.seen.packed(self.returned(model, batch))
        return watch.before(found)

    def on_outputs(self, out: Tensor, batch: Batch) -> Total:
        return self.on_returned(self.seen.unpacked(out), batch)

    def total(self, model: nn.Module, batch: Batch) -> Total:
        if self.seen.packing is None:
            return self.on_returned(self.returned(model, batch), batch)
        return self.on_outputs(self.outputs(model, batch), batch)

    def together(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], Total]:
        found = self.returned(model, batch)
        return predictions(found), self.on_returned(found, batch)


def _fused(loss: Loss, axis: int) -> Loss:
    """A loss that is linear in log-probabilities, as a function of the logits before them.

    Its Hessian there is a (diag p - p p') with a = -sum_c dl / dlog p_c.
    """
    raw = loss.on_outputs
    assert raw is not None

    def on_outputs(out: Tensor, batch: Batch) -> Total:
        return raw(out.log_softmax(axis), batch)

    def strength(out: Tensor, batch: Batch) -> Tensor:
        slope = grad(lambda logs: raw(logs, batch)[0])(out.detach().log_softmax(axis))
        return -slope.sum(axis, keepdim=True)

    return replace(
        loss,
        total=lambda model, batch: on_outputs(loss.outputs(model, batch), batch),
        on_outputs=on_outputs,
        strength=strength,
        likelihood="softmax",
        class_axis=axis,
        altered="targets that are no labels",
    )


class _Parts:
    """What the distribution behind a loss says of its outputs."""

    def __init__(self, loss: Any, likelihood: Likelihood | None, units: Units | None) -> None:
        self.loss, self.units = loss, units
        self.likelihood: Likelihood | None = likelihood

    def averaged(self, out: Tensor) -> int:
        return 1 if kinds.sums_outputs(self.loss) else out[0].numel()

    def weights(self, out: Tensor, batch: Batch) -> Tensor:
        if self.likelihood != "softmax":
            unit = batch[2] if len(batch) == 3 else out.new_ones(out.shape[:1])
            return _spread(unit, out)
        unit = torch.ones_like(out.select(1, 0)) * kinds.counted(self.loss, batch[1])
        if len(batch) == 3:
            unit = unit * _spread(batch[2], unit)
        return unit.unsqueeze(1)

    def strength(self, out: Tensor, batch: Batch) -> Tensor:
        """From the loss where all outputs are 0: there it is a log C, or a log 2."""
        if self.likelihood == "gaussian":
            return 2 * self._shares(out, batch)
        assert self.units is not None
        at_zero = self.units(torch.zeros_like(out), batch[1])
        if self.likelihood == "bernoulli":
            return at_zero / math.log(2) * self._shares(out, batch)
        classes = out.shape[1]
        a = at_zero / math.log(classes) if classes > 1 else torch.ones_like(at_zero)
        if len(batch) == 3:
            a = a * _spread(batch[2], a)
        return a.unsqueeze(1)

    def _shares(self, out: Tensor, batch: Batch) -> Tensor:
        """What one output adds to the sum: the weight of its example over what is averaged."""
        if len(batch) < 3:
            return torch.ones_like(out) / self.averaged(out)
        weight = batch[2]
        if kinds.sums_outputs(self.loss):
            return _spread(weight, out).expand_as(out)
        averaged = max(math.prod(out.shape[weight.ndim :]), 1)
        return _spread(weight, out).expand_as(out) / averaged

    def draw(self, out: Tensor, batch: Batch, draws: torch.Generator) -> Batch:
        y = _drawn(self.likelihood, out, self.averaged(out), draws)
        if self.likelihood == "softmax" and not batch[1].is_floating_point():
            ignored = kinds.option(self.loss, "ignore_index", IGNORED)
            y = torch.where(batch[1] == ignored, ignored, y)
        return (batch[0], y, *batch[2:])


def _units(loss: Any) -> Units | None:
    """The loss of every unit, with all digits where it is known how; None if it cannot be had."""
    if kinds.is_cross_entropy(loss) and not kinds.option(loss, "label_smoothing", 0.0):
        return _label_units(loss)
    if kinds.likelihood(loss) == "bernoulli":
        return _binary_units(loss)
    return kinds.reduced(loss, "none")


def _label_units(loss: Any) -> Units:
    soft = kinds.reduced(loss, "none")
    assert soft is not None

    def units(out: Tensor, y: Any) -> Tensor:
        if not kinds.are_labels(y) or out.ndim < 2 or out.shape[1] < 2:
            return soft(out, y)
        counts = kinds.counted(loss, y)
        found = label_cross_entropy(out, y.masked_fill(~counts, 0))
        return found * kinds.label_weights(loss, y)

    return units


def _binary_units(loss: Any) -> Units:
    weight, positive = kinds.option(loss, "weight"), kinds.option(loss, "pos_weight")

    def units(out: Tensor, y: Tensor) -> Tensor:
        ones, zeros = binary_cross_entropy(out, y)
        found = ones * (1.0 if positive is None else positive) + zeros
        return found if weight is None else found * weight

    return units


def _summed(loss: Any, units: Units | None, given: Any, y: Any, n: int, seen: Seen) -> Total:
    """The sum over the units of a batch, and by how many PyTorch's own mean would divide."""
    reduction = kinds.option(loss, "reduction")
    if units and reduction != "none":
        if kinds.scores_labels(loss) and kinds.are_labels(y):
            # summed at once: a mean over labels that are all ignored would be 0 / 0
            return units(given, y).sum(), kinds.label_weights(loss, y).sum()
        if kinds.likelihood(loss) == "bernoulli":
            averaged = 1 if kinds.sums_outputs(loss) else max(given.numel() // n, 1)
            return units(given, y).sum() / averaged, n
    count: Tensor | float = n
    labels = kinds.are_labels(y) and not kinds.is_from_torch(loss)
    if labels and seen.ignores:
        counts = y != IGNORED
        count = counts.sum()
        y = torch.where(counts.any(), y, 0)  # a mean over ignored labels alone would be 0 / 0
    value = scalar(loss(given, y), "the value of loss(outputs, y)")
    if seen.reading is Reading.EXAMPLES:
        count = n
    elif labels:
        count = count if seen.ignores else y.numel()
    elif kinds.likelihood(loss) == "softmax" and given.ndim > 1:  # probabilities as targets
        count = given.numel() // given.shape[1]
    is_sum = reduction == "sum" or seen.reading is Reading.SUM
    return (value, count) if is_sum else (value * count, count)


def _weighted(loss: Any, each: Units | None, given: Any, y: Any, weight: Tensor) -> Total:
    """sum_i w_i l_i and sum_i w_i; a weight per example serves all its tokens."""
    if each is None:
        raise SpiritlevelError(
            "batches (x, y, weight) need a loss that takes reduction='none'; "
            "give such a loss, or a function loss(model, batch) -> (sum, count)"
        )
    units = each(given, y)
    if kinds.likelihood(loss) != "softmax" and not kinds.are_labels(y) and units.ndim > weight.ndim:
        units = units.flatten(weight.ndim)
        units = units.sum(-1) if kinds.sums_outputs(loss) else units.mean(-1)
    weight = _spread(weight, units).expand_as(units)
    divisor = weight * kinds.label_weights(loss, y) if kinds.are_labels(y) else weight
    return (units * weight).sum(), divisor.sum()


def _spread(weight: Tensor, like: Tensor) -> Tensor:
    """A weight per example with trailing ones, so that it broadcasts over `like`."""
    return weight.reshape(weight.shape + (1,) * (like.ndim - weight.ndim))


def _drawn(
    likelihood: Likelihood | None, out: Tensor, averaged: int, draws: torch.Generator
) -> Tensor:
    """Targets from the distribution that the outputs describe, drawn on the CPU."""
    if likelihood == "softmax":
        return drawn_labels(out, 1, draws)
    if likelihood == "bernoulli":
        return torch.bernoulli(out.double().cpu().sigmoid(), generator=draws).to(out)
    # squared error averaged over d outputs is -log N(f, d/2), up to a constant
    noise = torch.randn(out.shape, generator=draws, dtype=torch.float64, device="cpu").to(out)
    return out + noise * (averaged / 2) ** 0.5
