"""The way up of sharpness-aware minimization: how far, and in which units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.training.copies import together

WHOLE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # in which squares are summed
SAFE = (1e-15, 1e18)  # norms whose squares float32 holds with all its bits
SMALL = 1e-30


@dataclass(frozen=True)
class Part:
    """Parameters with gradients, their units T (None: 1) and how far they may go."""

    weights: list[Tensor]
    slopes: list[Tensor]
    units: list[Tensor] | None
    rho: float


def part(group: Mapping[str, Any], factors: Mapping[Tensor, Tensor]) -> Part:
    """What of a group has a gradient."""
    weights = [p for p in group["params"] if p.grad is not None]
    slopes = [p.grad for p in weights]
    for slope in slopes:
        if slope.layout is not torch.strided or hasattr(slope, "full_tensor"):
            raise SpiritlevelError(
                "params has a gradient that is sparse or spread over processes; give modules with "
                "sparse=False, and DistributedDataParallel instead of sharded parameters"
            )
    units = _units(weights, group["adaptive"], group["eta"], factors)
    up = -1.0 if group.get("maximize") else 1.0
    return Part(weights, slopes, units, up * group["rho"])


def _units(
    weights: list[Tensor], adaptive: Any, eta: float, factors: Mapping[Tensor, Tensor]
) -> list[Tensor] | None:
    """T: |w| + eta, the norm of its filter + eta, or the orbit's 1/D, which may be broadcast."""
    if not adaptive or not weights:
        return None
    if adaptive == "orbit":
        return [factors.get(w, torch.ones((), device=w.device)).to(w.dtype) for w in weights]
    if adaptive == "filter":
        found = [_filters(w) for w in weights]
    else:
        found = list(torch._foreach_abs(weights))
    if eta:
        torch._foreach_add_(found, eta)
    return found


def _filters(weight: Tensor) -> Tensor:
    """The norm of each filter, to be broadcast; where there is none, |w|."""
    if weight.ndim < 2:
        return weight.abs()
    norms = torch.linalg.vector_norm(weight.flatten(1), dim=1)
    return norms.reshape(-1, *[1] * (weight.ndim - 1))


def size(parts: Sequence[Part], norm: float) -> float:
    """||T g|| over all parts, not finite where a gradient is not; `norm` is 2 or infinity."""
    found = _size(parts, norm, None)
    if norm == 2 and math.isfinite(found) and SAFE[0] < found < SAFE[1]:
        return found
    return _size(parts, norm, torch.float64)  # squares of float32 overflow, or vanish


def _size(parts: Sequence[Part], norm: float, dtype: torch.dtype | None) -> float:
    norms: list[Tensor] = []
    for each in (one for one in parts if one.slopes):
        scaled = each.slopes
        if each.units is not None and norm == 2:  # any T keeps the signs that the other norm needs
            scaled = list(torch._foreach_mul(each.slopes, each.units))
        exact = dtype or WHOLE.get(scaled[0].dtype)
        norms += torch._foreach_norm(scaled, norm, dtype=exact)
    if not norms:
        return 0.0
    return float(torch.linalg.vector_norm(together(norms, torch.float64), norm))


def climb(parts: Sequence[Part], norm: float, length: float) -> None:
    """w + rho T^2 g / ||T g||, or w + rho T sign(g): the worst of a linear loss in its ball."""
    for each in (one for one in parts if one.slopes):
        slopes, alpha = each.slopes, each.rho
        if norm != 2:
            slopes = list(torch._foreach_sign(slopes))
        elif length < SMALL:  # its inverse overflows
            slopes = list(torch._foreach_div(slopes, length))
        else:
            alpha /= length
        if each.units is None:
            torch._foreach_add_(each.weights, slopes, alpha=alpha)
            continue
        scaled = list(torch._foreach_mul(slopes, each.units))
        if norm == 2:
            torch._foreach_mul_(scaled, each.units)
        torch._foreach_add_(each.weights, scaled, alpha=alpha)
