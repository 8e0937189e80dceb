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
    z, own = logits.movedim(class_axis, -1), labels.unsqueeze(-1)
    others = z.scatter(-1, own, -torch.inf).logsumexp(-1, keepdim=True)
    return F.softplus(others - z.gather(-1, own), threshold=FAR).squeeze(-1)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """-y log p and -(1 - y) log(1 - p), element by element."""
    return (
        targets * F.softplus(-logits, threshold=FAR),
        (1 - targets) * F.softplus(logits, threshold=FAR),
    )
