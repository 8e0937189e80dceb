"""Parts of the data that stand for the whole: the examples that tell most of a curvature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spiritlevel.base.tensors import gaussian, generator, map_tensors
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss.bends import bend
from spiritlevel.objective.objective import Objective

POOL = 32  # examples that are looked at, from
PLACES = 8  # places in the data at most


@torch.no_grad()
def telling(objective: Objective, n: int) -> Objective:
    """n examples for checks: of largest loss, where the loss bends most, and from all over.

    A third of each. Well-fitted examples have a curvature that drowns in rounding, and so have
    those that are wrong without a doubt. Where batches do not fit together they are of the one
    that bends most; where examples cannot be told apart it is a whole batch.
    """
    if not objective.separable:
        return objective.on([max(objective.batches, key=lambda b: _mean(objective, b))])
    pools = [p for p in _pools(objective) if _counts(objective, p)] or [objective.batches[0]]
    if all(map(frozen.divisible, pools)) and frozen.alike(pools):
        pools = [frozen.join(pools)]
    seen = [_losses_and_bends(objective, pool) for pool in pools]
    best = max(range(len(pools)), key=lambda i: float(seen[i][1].max()))
    if not frozen.divisible(pools[best]):
        return objective.on([pools[best]])
    hard, bent = (found.argsort(descending=True).tolist() for found in seen[best])
    chosen = dict.fromkeys(_even(len(hard), n // 3))
    for order, count in ((bent, n // 3), (hard, n)):
        new = [i for i in order if i not in chosen]
        chosen |= dict.fromkeys(new[: min(count, n - len(chosen))])
    return objective.on([_picked(pools[best], sorted(chosen))])


@torch.no_grad()
def hardest(objective: Objective, share: float) -> Objective | None:
    """The examples whose outputs the loss pulls at most; their losses, divided by the old count.

    What moves the loss of all the data moves theirs. None where examples cannot be told apart.
    """
    batches, on_outputs = objective.batches, objective.loss.on_outputs
    alone = objective.separable and not objective.whole and all(map(frozen.tabular, batches))
    if not alone or on_outputs is None:
        return None
    try:
        pulls = [_pulls(objective, batch) for batch in batches]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # outputs or losses that cannot be differentiated, in whatever way
        return None
    if any(pull.shape != (frozen.examples(b),) for pull, b in zip(pulls, batches, strict=True)):
        return None
    count = math.ceil(share * objective.examples)
    chosen = torch.zeros(objective.examples, dtype=torch.bool)
    chosen[torch.cat(pulls).nan_to_num().topk(count).indices.cpu()] = True
    each = chosen.split([len(pull) for pull in pulls])
    picked = [
        _picked(batch, rows.nonzero()[:, 0].tolist())
        for batch, rows in zip(batches, each, strict=True)
        if rows.any()
    ]
    most = max(map(frozen.examples, batches))
    return objective.on(frozen.regroup(picked, most), keep_count=True)


def _pulls(objective: Objective, batch: Batch) -> Tensor:
    """|d loss / d outputs| of every example, if the outputs have a row for each; 0 of steps."""
    with torch.enable_grad():
        leaf = objective.outputs(objective.params, batch).detach().clone().requires_grad_()
        out = leaf.clone()  # which a loss may write into
        total = objective.loss.on_outputs(out, objective.here(batch))[0]  # type: ignore[misc]
        if not total.requires_grad:
            return torch.zeros(len(leaf), device=leaf.device)
        slope = torch.autograd.grad(total, leaf, materialize_grads=True)[0]
    return slope.reshape(len(slope), -1).norm(dim=1)


def _pools(objective: Objective) -> list[Batch]:
    """Examples at even distances from batches at even distances."""
    batches = objective.batches
    places = _even(len(batches), PLACES)
    each = max(POOL // len(places), 1)
    return [_spread(batches[i], each) for i in places]


def _spread(batch: Batch, n: int) -> Batch:
    return _picked(batch, _even(frozen.examples(batch), n)) if frozen.divisible(batch) else batch


def _even(size: int, n: int) -> list[int]:
    """n of the places 0 ... size - 1 at even distances, the first and the last among them."""
    n = min(size, n)
    return [round(i * (size - 1) / max(n - 1, 1)) for i in range(n)]


def _picked(batch: Batch, rows: list[int]) -> Batch:
    return map_tensors(lambda t: t[torch.tensor(rows, device=t.device)], batch)


def _mean(objective: Objective, batch: Batch) -> float:
    total, count = objective.total(objective.params, batch)
    return float(total) / max(float(count), 1e-300)


def _counts(objective: Objective, batch: Batch) -> bool:
    """Whether anything in the batch counts; its labels may all be ignored."""
    return float(objective.total(objective.params, batch)[1]) > 0


def _losses_and_bends(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of every example; from one pass through the model where outputs can be cut."""
    singles = frozen.singles(batch) if frozen.divisible(batch) else [batch]
    on_outputs = objective.loss.on_outputs
    outputs = None if on_outputs is None else objective.outputs(objective.params, batch)
    if on_outputs is None or outputs is None or outputs.shape[:1] != (len(singles),):
        losses = torch.stack([objective.total(objective.params, one)[0] for one in singles])
        # a loss that nobody can see into may bend most in the middle: neither fitted nor far off
        return losses, losses.clamp(max=float(losses.median()))
    pairs = zip(outputs.split(1), singles, strict=True)
    losses = torch.stack([on_outputs(out, objective.here(one))[0] for out, one in pairs])
    tangent = gaussian(tuple(outputs.shape), generator(0), outputs)
    bent = bend(objective.loss, outputs, tangent, objective.here(batch))
    return losses, bent.reshape(len(singles), -1).norm(dim=1)
