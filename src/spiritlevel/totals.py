"""The sum and the count of the losses of a batch, and what must hold of them."""

from __future__ import annotations

import math
from collections.abc import Callable

from spiritlevel import batches as frozen
from spiritlevel.batches import Batch
from spiritlevel.errors import SpiritlevelError

SumAndCount = tuple[float, float]


def refuse_no_mean(total: float, count: float) -> None:
    """Meet a mean that does not exist at the door."""
    if count <= 0:
        raise SpiritlevelError("data is empty: no label counts (all are ignored or weigh 0)")
    if not math.isfinite(total):
        raise SpiritlevelError(
            f"the loss is {total}: an input, a target or a prediction is not finite; look for "
            "NaN in the data, log(0) or overflow, or try dtype=torch.float64"
        )


def refuse_chance(once: float, again: float) -> None:
    """Two evaluations of one batch must agree."""
    if math.isfinite(once) and not math.isclose(once, again, rel_tol=1e-7):
        raise SpiritlevelError(
            f"the loss differs between two evaluations ({once} and {again}): "
            'dropout or other randomness in train mode; use mode="eval", or fix the masks '
            "with seed=0"
        )


def adds_up(
    total_of: Callable[[Batch], SumAndCount], batch: Batch, total: float, count: float
) -> bool:
    """Whether the sum and the count of a batch are those of its two unequal parts, added."""
    third = -(-frozen.examples(batch) // 3)
    parts = (frozen.rows(batch, slice(0, third)), frozen.rows(batch, slice(third, None)))
    try:
        sums, counts = zip(*(total_of(part) for part in parts), strict=True)
    except ValueError:  # batch statistics of one example do not exist
        return False
    return not math.isfinite(total) or (
        math.isclose(total, sum(sums), rel_tol=1e-4, abs_tol=1e-9)
        and math.isclose(count, sum(counts), rel_tol=1e-6)
    )
