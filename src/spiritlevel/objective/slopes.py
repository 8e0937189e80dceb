"""The loss and its gradient together: one pass over the data for both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spiritlevel.objective.batches import Batch

if TYPE_CHECKING:
    from spiritlevel.objective.objective import Objective


@torch.inference_mode(False)
def summed(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    """The summed loss of one batch and its gradient, a flat vector."""
    point = {k: v.clone().requires_grad_() for k, v in objective.params.items()}
    total = objective.total(point, batch)[0]
    if not total.requires_grad:  # a loss that no chosen parameter reaches
        return total, torch.zeros(objective.size, dtype=objective.dtype, device=objective.device)
    pieces = torch.autograd.grad(total, list(point.values()), materialize_grads=True)
    return total.detach(), torch.cat([piece.reshape(-1) for piece in pieces])


def mean(objective: Objective) -> tuple[float, Tensor]:
    """L(theta) and grad L(theta)."""
    totals: list[Tensor] = []  # numbers at the end: a GPU does not wait for each

    def slope(batch: Batch) -> Tensor:
        total, gradient = summed(objective, batch)
        totals.append(total)
        return gradient

    gradient = objective.mean(slope)
    return sum(float(total) for total in totals) / objective.count, gradient
