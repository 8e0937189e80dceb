"""Cross-entropies whose derivatives hold where p is nearly 0 or 1.

The slope p - 1 of a fitted example is a difference of numbers that round to the same one; written
as -sum of the other probabilities it has all its digits, and so has the curvature.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FAR = 50.0  # beyond it log(1 + e^x) is x in every precision


def label_cross_entropy(logits: Tensor, labels: Tensor, class_axis: int = 1) -> Tensor:
    """-log softmax(z)_y = log(1 + exp(log sum_{k != y} e^{z_k} - z_y)) for every unit."""
    z = logits.movedim(class_axis, -1)
    own = torch.arange(z.shape[-1], device=z.device) == labels.unsqueeze(-1)
    right = z.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    others = z.masked_fill(own, -torch.inf).logsumexp(-1)
    return F.softplus(others - right, threshold=FAR)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """-y log p and -(1 - y) log(1 - p), element by element."""
    return (
        targets * F.softplus(-logits, threshold=FAR),
        (1 - targets) * F.softplus(logits, threshold=FAR),
    )
