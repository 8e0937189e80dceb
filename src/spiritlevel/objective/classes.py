"""Decisions of a classifier: its labels, its margins, its errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import relieved
from spiritlevel.base.scope import kept_rng
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.objective import Objective, Params

SURE = 1e-3  # of a label that is one, how far its share may be from 1


@dataclass(frozen=True)
class Labels:
    """The labels of every batch, (units,), and where they count."""

    batches: tuple[Tensor, ...]
    counted: tuple[Tensor, ...]

    @property
    def units(self) -> int:
        """How many decisions there are: examples, or tokens."""
        return int(sum(int(kept.sum()) for kept in self.counted))


def labels(objective: Objective) -> Labels:
    """Read from the slope of the loss at outputs of zero, whatever form the targets have.

    There it is a (1/C - onehot) for cross-entropies of labels, a (1/2 - y) for binary ones.
    """
    with torch.no_grad(), kept_rng():
        found = [_labels(objective, batch) for batch in objective.batches]
    if not any(bool(kept.any()) for _, kept in found):
        raise SpiritlevelError("no example has a label that counts: margins need some")
    return Labels(tuple(y for y, _ in found), tuple(kept for _, kept in found))


def logits(objective: Objective, known: Labels, params: Params | None = None) -> Iterator[Tensor]:
    """The logits that count of every batch, (units, classes), at the point or at `params`.

    A binary classifier's one logit f becomes the two (0, f).
    """
    point = objective.params if params is None else params
    for batch, kept in zip(objective.batches, known.counted, strict=True):
        with torch.no_grad(), kept_rng():
            out = relieved(lambda b=batch: objective.outputs(point, b))
        yield rows(objective, out)[kept]


def margins(objective: Objective, known: Labels, params: Params | None = None) -> Tensor:
    """f(x)_y - max over c != y of f(x)_c for every unit that counts."""
    found = []
    chosen = [y[kept] for y, kept in zip(known.batches, known.counted, strict=True)]
    for f, y in zip(logits(objective, known, params), chosen, strict=True):
        own, other = against(f, y)
        found.append(own - other)
    return torch.cat(found)


def against(f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """f_y and the largest other logit of every row."""
    own = f.gather(1, y[:, None])[:, 0]
    return own, f.scatter(1, y[:, None], -torch.inf).max(1).values


def error(objective: Objective, known: Labels, params: Params | None = None) -> float:
    """The share of units that are not decided for their label."""
    found = margins(objective, known, params)
    return float((~(found > 0)).double().mean())


def _labels(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    loss = objective.loss
    if loss.likelihood not in ("softmax", "bernoulli") or loss.on_outputs is None:
        raise SpiritlevelError(
            "margins are those of a classifier; this loss is none of classes (use cross_entropy, "
            "nll_loss or binary_cross_entropy_with_logits)"
        )
    on_outputs = loss.on_outputs
    batch = objective.here(batch)
    out = torch.zeros_like(objective.outputs(objective.params, batch))
    assert loss.strength is not None
    with torch.enable_grad():
        slope = grad(lambda f: on_outputs(f, batch)[0])(out)
    strength = loss.strength(out, batch).expand_as(out)
    share = torch.where(strength > 0, slope / strength.clamp(min=1e-30), torch.nan)
    share = rows(objective, share)
    if loss.likelihood == "bernoulli":
        share = share[:, 1:]
        onehot = torch.cat([0.5 + share, 0.5 - share], 1)
    else:
        onehot = 1 / share.shape[1] - share
    if onehot.shape[1] < 2:
        raise SpiritlevelError("one class leaves no decision: margins need at least two classes")
    kept = onehot.isfinite().all(1)
    if not _labelled(onehot[kept]):
        raise SpiritlevelError("margins need labels; these targets are shares of several classes")
    return onehot.nan_to_num().argmax(1), kept


def _labelled(shares: Tensor) -> bool:
    """Whether every row has one share that is larger and the same for all: labels, or smooth ones.

    Smoothing gives each label 1 - s + s/C and all other classes s/C.
    """
    if not len(shares):
        return True
    ordered = shares.sort(1).values
    top, second, least = ordered[:, -1], ordered[:, -2], ordered[:, 0]
    alike = (second - least).max() <= SURE and (top - top[0]).abs().max() <= SURE
    return bool(alike) and bool((top - second).min() > SURE)


def rows(objective: Objective, out: Tensor) -> Tensor:
    """Outputs as (units, classes)."""
    if objective.loss.likelihood == "bernoulli":
        flat = out.reshape(-1, 1)
        return torch.cat([torch.zeros_like(flat), flat], 1)
    axis = objective.loss.class_axis
    return out.movedim(axis, -1).reshape(-1, out.shape[axis])
