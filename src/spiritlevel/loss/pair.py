"""loss(outputs, y): PyTorch's own losses and functions of their kind."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.batches import Batch, examples
from spiritlevel.errors import SpiritlevelError
from spiritlevel.loss.base import (
    IGNORED,
    Likelihood,
    Loss,
    Total,
    call,
    drawn_labels,
    first_tensor,
    scalar,
)

Pair = Callable[[Tensor, Any], Tensor]


def of_pair(loss: Callable[..., Any]) -> Loss:
    """loss(outputs, y) averaged over the examples (or tokens) that count."""
    likelihood = _likelihood(loss)
    # made once: products are compiled, and compilers do not see through inspect or copy
    sums, units = _reduced(loss, "sum"), _reduced(loss, "none")

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        return first_tensor(call(model, batch[0]))

    def on_outputs(out: Tensor, batch: Batch) -> Total:
        if len(batch) == 3:
            return _weighted(loss, units, out, batch[1], batch[2])
        return _summed(loss, sums, out, batch[1], examples(batch))

    def averaged(out: Tensor) -> int:
        return 1 if _option(loss, "reduction") == "sum" else out[0].numel()

    def weights(out: Tensor, batch: Batch) -> Tensor:
        if likelihood != "softmax":
            unit = batch[2] if len(batch) == 3 else out.new_ones(out.shape[:1])
            return _spread(unit, out)
        unit = torch.ones_like(out.select(1, 0)) * _counted(loss, batch[1])
        if len(batch) == 3:
            unit = unit * _spread(batch[2], unit)
        return unit.unsqueeze(1)

    def draw(out: Tensor, batch: Batch, draws: torch.Generator) -> Batch:
        y = _drawn(likelihood, out, averaged(out), draws)
        if likelihood == "softmax" and not batch[1].is_floating_point():
            ignored = _option(loss, "ignore_index", IGNORED)
            y = torch.where(batch[1] == ignored, ignored, y)
        return (batch[0], y, *batch[2:])

    return Loss(
        total=lambda model, batch: on_outputs(outputs(model, batch), batch),
        outputs=outputs,
        on_outputs=on_outputs,
        weights=weights,
        draw=draw,
        averaged=averaged,
        likelihood=likelihood,
        altered=_altered(loss),
        rebuild=lambda dtype, device: of_pair(_placed(loss, dtype, device)),
    )


def _summed(loss: Any, sums: Pair | None, out: Tensor, y: Any, n: int) -> Total:
    """The sum over the units of a batch, and by how many PyTorch's own mean would divide."""
    reduction = _option(loss, "reduction")
    if sums and _scores_labels(loss) and _are_labels(y) and reduction != "none":
        # summed at once: a mean over labels that are all ignored would be 0 / 0
        return sums(out, y), _label_weights(loss, y).sum()
    value = scalar(loss(out, y), "the value of loss(outputs, y)")
    count: Tensor | float = n
    if _are_labels(y):
        count = _counted(loss, y).sum()
    elif _likelihood(loss) == "softmax" and out.ndim > 1:  # probabilities as targets
        count = out.numel() // out.shape[1]
    return (value, count) if reduction == "sum" else (value * count, count)


def _weighted(loss: Any, each: Pair | None, out: Tensor, y: Tensor, weight: Tensor) -> Total:
    """sum_i w_i l_i and sum_i w_i; a weight per example serves all its tokens."""
    if each is None:
        raise SpiritlevelError(
            "batches (x, y, weight) need a loss that takes reduction='none'; "
            "give such a loss, or a function loss(model, batch) -> (sum, count)"
        )
    units = each(out, y)
    if _likelihood(loss) != "softmax" and not _are_labels(y) and units.ndim > weight.ndim:
        units = units.flatten(weight.ndim).mean(-1)
    weight = _spread(weight, units).expand_as(units)
    divisor = weight * _label_weights(loss, y) if _are_labels(y) else weight
    return (units * weight).sum(), divisor.sum()


def _option(loss: Any, name: str, default: Any = None) -> Any:
    """An option of a loss given as a module, a partial or a plain function."""
    if isinstance(loss, functools.partial):
        return loss.keywords.get(name, _option(loss.func, name, default))
    return getattr(loss, name, default)


def _plain(loss: Any) -> Any:
    return loss.func if isinstance(loss, functools.partial) else loss


def _likelihood(loss: Any) -> Likelihood | None:
    plain = _plain(loss)
    if plain is F.cross_entropy or isinstance(plain, nn.CrossEntropyLoss):
        return "softmax"
    if plain is F.binary_cross_entropy_with_logits or isinstance(plain, nn.BCEWithLogitsLoss):
        return "bernoulli"
    if plain is F.mse_loss or isinstance(plain, nn.MSELoss):
        return "gaussian"
    return None


def _altered(loss: Any) -> str:
    """The option by which the loss is no logarithm of a likelihood any more."""
    if isinstance(_option(loss, "weight"), Tensor):
        return "class weights"
    if isinstance(_option(loss, "pos_weight"), Tensor):
        return "pos_weight"
    return "label_smoothing" if _option(loss, "label_smoothing", 0.0) else ""


def _scores_labels(loss: Any) -> bool:
    plain = _plain(loss)
    kinds = (nn.CrossEntropyLoss, nn.NLLLoss)
    return plain in (F.cross_entropy, F.nll_loss) or isinstance(plain, kinds)


def _are_labels(y: Any) -> bool:
    return isinstance(y, Tensor) and not y.is_floating_point()


def _counted(loss: Any, y: Tensor) -> Tensor:
    """Which labels count."""
    if not _are_labels(y):
        return torch.ones((), device=y.device)
    return y != _option(loss, "ignore_index", IGNORED)


def _label_weights(loss: Any, y: Tensor) -> Tensor:
    """What every label adds to the divisor of PyTorch's mean: its class weight, 0 if ignored."""
    counted, class_weights = _counted(loss, y), _option(loss, "weight")
    if not (_scores_labels(loss) and isinstance(class_weights, Tensor)):
        return counted
    return class_weights[y.masked_fill(~counted, 0)] * counted


def _reduced(loss: Any, reduction: str) -> Pair | None:
    """The same loss with another reduction, if it knows one."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        other = copy.copy(loss)
        other.reduction = reduction  # type: ignore[assignment]
        return other
    try:
        known = "reduction" in inspect.signature(_plain(loss)).parameters
    except ValueError:  # a builtin without a signature
        return None
    return functools.partial(loss, reduction=reduction) if known else None


def _placed(loss: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The loss with its own tensors moved; a copy if it has any."""
    if isinstance(loss, nn.Module) and any(True for _ in loss.buffers()):
        return copy.deepcopy(loss).to(dtype=dtype, device=device)
    if isinstance(loss, functools.partial):
        keywords = {
            name: value.to(dtype=dtype, device=device) if isinstance(value, Tensor) else value
            for name, value in loss.keywords.items()
        }
        return functools.partial(loss.func, *loss.args, **keywords)
    return loss


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
