"""Spectral norms of convolutions: of the kernel as a matrix, or of the periodic convolution."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.measures.weights import Weight
from spiritlevel.objective import Objective
from spiritlevel.objective.following import watch

Grid = tuple[int, ...]


def spectral_norm(weight: Weight) -> float:
    """||W||_2 of the matrix (out, all the rest), from its singular values."""
    return float(torch.linalg.matrix_norm(weight.matrix, 2))


def grids(objective: Objective) -> dict[str, Grid]:
    """The size of the image that each convolution sees first; that it makes, if transposed."""
    found: dict[str, Grid] = {}

    def saw(name: str, layer: Any, given: Tensor, made: Tensor) -> None:
        seen = made if isinstance(layer, _ConvTransposeNd) else given
        found.setdefault(name, tuple(seen.shape[-len(layer.kernel_size) :]))

    watch(objective, _ConvNd, saw)
    return found


def periodic_norm(objective: Objective, weight: Weight, seen: dict[str, Grid]) -> float:
    """||K||_2 of a convolution that wraps around at the edges; ||W||_2 of any other weight."""
    layer = objective.module.get_submodule(weight.layer)
    if not isinstance(layer, _ConvNd):
        return spectral_norm(weight)
    if weight.layer not in seen:
        raise SpiritlevelError(
            f"no data run through {weight.layer}, so its periodic convolution has no size; use "
            'convolution="kernel"'
        )
    return periodic_kernel_norm(
        weight.values,
        seen[weight.layer],
        stride=layer.stride,
        dilation=layer.dilation,
        groups=layer.groups,
    )


def periodic_kernel_norm(
    kernel: Tensor, grid: Grid, *, stride: Grid, dilation: Grid, groups: int = 1
) -> float:
    """The largest singular value of a periodic convolution, frequency by frequency.

    On plane waves it is one small matrix K(w) = sum over taps of k_t exp(-2 pi i w t / n) (Sedghi
    et al., 2019). A stride s folds s frequencies into one: [K(w), K(w + n/s), ...] / sqrt(s). The
    grid is the least multiple of the stride that holds the image.
    """
    steps = [-(-n // s) for n, s in zip(grid, stride, strict=True)]
    axes = zip(kernel.shape[2:], steps, stride, dilation, strict=True)
    first, *rest = [_waves(kernel, *axis) for axis in axes]
    waves = kernel.to(torch.complex128)
    for wave in rest:  # each axis of taps becomes (strides, steps) at the end
        waves = torch.einsum("abct...,tsm->abc...sm", waves, wave)
    largest = 0.0
    for one in first.unbind(2):  # a row of frequencies at a time: all together may be too large
        transfer = torch.einsum("abt...,ts->ab...s", waves, one)
        largest = max(largest, _largest(transfer, groups, len(rest)))
    return largest / math.sqrt(math.prod(stride))


def _waves(like: Tensor, taps: int, steps: int, stride: int, dilation: int) -> Tensor:
    """exp(-2 pi i w t / n) as (taps, strides, steps) with w = step + steps * k, k < stride."""
    n = steps * stride
    places = dilation * torch.arange(taps, dtype=torch.float64, device=like.device)
    frequencies = torch.arange(n, dtype=torch.float64, device=like.device)
    phase = -2 * math.pi * (places[:, None] * frequencies % n) / n
    return torch.polar(torch.ones_like(phase), phase).reshape(taps, stride, steps)


def _largest(transfer: Tensor, groups: int, rest: int) -> float:
    """Over all frequencies of (out, in, [strides, steps] of the rest..., strides of the first)."""
    steps = [3 + 2 * axis for axis in range(rest)]
    transfer = transfer.movedim(steps, list(range(rest)))
    blocks = transfer.reshape(*transfer.shape[:rest], groups, transfer.shape[rest] // groups, -1)
    return float(torch.linalg.matrix_norm(blocks, 2).max())
