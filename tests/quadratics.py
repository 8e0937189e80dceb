"""Losses that are quadratic or linear in the parameters, where every maximum is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn

CURVATURES = torch.tensor([0.2, 1.0, 3.0, 0.7, 0.05], dtype=torch.float64)


class Point(nn.Module):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(start.clone())


def quadratic(
    start: Tensor, minimum: Tensor, base: float = 0.0, curvatures: Tensor = CURVATURES
) -> sl.Objective:
    """L(w) = base + 1/2 sum lambda_i (w_i - m_i)^2."""

    def loss(model: Any, batch: Any) -> Tensor:
        return base + 0.5 * (curvatures * (model.w - minimum) ** 2).sum() + 0 * batch[0].sum()

    return sl.Objective(Point(start), (randn(4, 1), labels(4)), loss)


def at_rest(base: float = 0.0) -> sl.Objective:
    w = randn(5, seed=3)
    return quadratic(w, w, base)


def linear(slope: Tensor, base: float = 0.0) -> sl.Objective:
    """L(w) = base + slope'w at a random w."""

    def loss(model: Any, batch: Any) -> Tensor:
        return base + slope @ model.w + 0 * batch[0].sum()

    return sl.Objective(Point(randn(len(slope), seed=3)), (randn(4, 1), labels(4)), loss)
