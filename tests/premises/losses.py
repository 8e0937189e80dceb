"""Losses as users give them, and their means over all the data as they are defined."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from premises.case import IGNORED, Case, precision
from premises.nets import SECOND, STRUCTURES

SKIPPED = 0  # a class that some losses leave out
CLASS_WEIGHTS = torch.tensor([0.25, 1.0, 3.0], dtype=torch.float64)


@dataclass(frozen=True)
class Kind:
    """A loss of one tensor of outputs: as users give it, and its mean over all the data.

    `truth(outputs, y, weight)` is in the words of its definition. `given` may be a function of the
    model (`of_model`), which picks its outputs itself. `linear` ones curve in logits alone.
    """

    given: Callable[..., Any]
    truth: Callable[[Tensor, Tensor, Tensor], Tensor]
    target: str = "labels"
    weighted: bool = False
    of_model: bool = False
    linear: bool = False


def _mean(units: Tensor, weight: Tensor) -> Tensor:
    """Over outputs, then over the examples by their weight."""
    return (units.flatten(1).mean(1) * weight).sum() / weight.sum()


def _entropy(out: Tensor, y: Tensor, weight: Tensor, by_class: Tensor | None = None) -> Tensor:
    """sum_i w_i c_i (-log p_iy) / sum_i w_i c_i over the labels that count."""
    counts = y != IGNORED
    labels = y.masked_fill(~counts, 0)
    share = weight * counts * (1.0 if by_class is None else by_class.to(out)[labels])
    units = -out.log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    return (torch.where(counts, units, 0.0) * share).sum() / share.sum()


def _by_class(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return _entropy(out, y, weight, CLASS_WEIGHTS)


def _smoothed(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    counts = (y != IGNORED).to(out)
    rest = -(out.log_softmax(1).mean(1) * counts).sum() / counts.sum()
    return 0.8 * _entropy(out, y, weight) + 0.2 * rest


def _soft(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return -(out.log_softmax(1) * y).sum(1).mean()


def _binary(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return _mean(torch.logaddexp(out, torch.zeros_like(out)) - y * out, weight)


def _cauchy(out: Tensor, y: Tensor) -> Tensor:
    return (1 + (out - y).square()).log().mean()


def _hinge(out: Tensor, y: Tensor) -> Tensor:
    return (1 - y * out).clamp(min=0).mean()


def _picked(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The mean of -log p_y where log p is given."""
    counts = y != IGNORED
    return -out[counts].gather(1, y[counts].unsqueeze(1)).mean()


def _kl(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return (y * (y.log() - out)).sum(1).mean()


def _with_class_weights(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, weight=CLASS_WEIGHTS.to(out))


def _skipping(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return _entropy(out, torch.where(y == SKIPPED, IGNORED, y), weight)


def _skips(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, ignore_index=SKIPPED)


def _nll(out: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(out, y)


def _lambda(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y)


def main_head(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs that matter of a model at work, whatever it returns."""
    case = model.case  # type: ignore[union-attr]
    return STRUCTURES[case.structure][1](model(x))  # type: ignore[index, arg-type]


def decay(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    x, y = batch[0], batch[1]
    squares = sum(p.square().sum() for p in model.parameters())
    total = F.cross_entropy(main_head(model, x), y, reduction="sum")
    return total + 0.01 * len(y) * squares, len(y)


def activity(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch[0], batch[1]
    hidden = model.net.hidden(x)  # type: ignore[union-attr, operator]
    return F.cross_entropy(main_head(model, x), y) + 0.1 * hidden.square().mean()


def unpenalized(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    return F.cross_entropy(main_head(model, batch[0]), batch[1], reduction="sum"), len(batch[1])


def _rows(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda out, y, weight: _mean(function(out, y, reduction="none"), weight)


def _plain(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda out, y, weight: function(out, y)


_summed_squares = functools.partial(F.mse_loss, reduction="sum")


def _outputs_summed(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return ((out - y).square().sum(1) * weight).sum() / weight.sum()


KINDS: dict[str, Kind] = {
    "cross-entropy": Kind(F.cross_entropy, _entropy),
    "class weights": Kind(nn.CrossEntropyLoss(CLASS_WEIGHTS.float()), _by_class),
    "smoothing": Kind(functools.partial(F.cross_entropy, label_smoothing=0.2), _smoothed),
    "soft targets": Kind(F.cross_entropy, _soft, "soft"),
    "weighted rows": Kind(F.cross_entropy, _entropy, weighted=True),
    "weighted rows and classes": Kind(
        nn.CrossEntropyLoss(CLASS_WEIGHTS.float()), _by_class, weighted=True
    ),
    "mse": Kind(F.mse_loss, _rows(F.mse_loss), "real"),
    "mse sum": Kind(_summed_squares, _outputs_summed, "real"),
    "weighted mse": Kind(nn.MSELoss(), _rows(F.mse_loss), "real", weighted=True),
    "weighted mse sum": Kind(_summed_squares, _outputs_summed, "real", weighted=True),
    "binary": Kind(F.binary_cross_entropy_with_logits, _binary, "binary"),
    "weighted binary": Kind(nn.BCEWithLogitsLoss(), _binary, "binary", weighted=True),
    "huber": Kind(F.huber_loss, _rows(F.huber_loss), "real"),
    "l1": Kind(F.l1_loss, _rows(F.l1_loss), "real", linear=True),
    "hinge": Kind(_hinge, _plain(_hinge), "signs", linear=True),
    "cauchy": Kind(_cauchy, _plain(_cauchy), "real"),
    "lambda": Kind(_lambda, _entropy),
    "lambda with class weights": Kind(_with_class_weights, _by_class),
    "decay": Kind(decay, _entropy, of_model=True),
    "activity": Kind(activity, _entropy, of_model=True),
    "of model": Kind(unpenalized, _entropy, of_model=True),
    "skipped class": Kind(functools.partial(F.cross_entropy, ignore_index=SKIPPED), _skipping),
    "lambda that skips": Kind(_skips, _skipping),
    "nll": Kind(F.nll_loss, _picked, linear=True),
    "nll lambda": Kind(_nll, _picked, linear=True),
    "kl": Kind(nn.KLDivLoss(reduction="batchmean"), _kl, "soft", linear=True),
}
OF_LOGARITHMS = ("nll", "nll lambda", "kl", "cross-entropy", "mse")
OF_LOGITS = tuple(k for k in KINDS if k not in ("nll", "nll lambda", "kl"))
OF_MASKED = ("cross-entropy", "class weights", "lambda", "weighted rows", "of model")
SKIPS = ("cross-entropy", "class weights", "lambda", "lambda with class weights", "nll")
BY_REDUCTION = tuple(k for k, kind in KINDS.items() if kind.weighted)


def given_loss(case: Case) -> Callable[..., Any]:
    """The loss as the user of this model writes it."""
    kind = KINDS[case.loss]
    given: Any = kind.given
    if isinstance(given, nn.Module):
        given = copy.deepcopy(given).to(precision(case))
    own = getattr(given, "__module__", "") == __name__
    if kind.of_model or case.structure in ("tensor", "heads"):
        return given
    if case.structure == "one" and not own:  # of one tensor, which is found by itself
        return given
    _, main, sees_both = STRUCTURES[case.structure]
    second = SECOND.get(case.structure)

    def loss(out: Any, y: Tensor) -> Tensor:
        value = given(main(out), y)
        if case.loss == "mse sum":
            value = value / len(y)
        return value + second(out).square().mean() if sees_both and second else value

    return loss


def own_words(case: Case) -> bool:
    """Whether the loss is a function of the user's, which nobody can write better."""
    return getattr(given_loss(case), "__module__", "") == __name__
