"""Pieces for images."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from networks.base import Maker, Piece, Shape
from networks.channels import module
from networks.linear import batch_norm

# Images ---------------------------------------------------------------------------------------


def convolution(shape: Shape, a: int, inner: Any) -> nn.Module:
    c = shape[1]
    if a == 0 or min(shape[2:]) < 2:
        return nn.Conv2d(c, 3, 1, bias=False)
    if a == 1:
        return nn.Conv2d(c, 3, 3, padding=1)
    return nn.Conv2d(c, 4, 2, stride=a - 1, padding=a - 2, padding_mode="zeros")


def groups(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Depthwise, two groups, depthwise with two outputs each."""
    c = shape[1]
    if a in (1, 3):
        wide = nn.Conv2d(c, 4, 1)
        make = nn.Conv2d if a == 1 else nn.ConvTranspose2d
        return nn.Sequential(wide, nn.ReLU(), make(4, 4, 1, groups=2))
    return nn.Conv2d(c, c * (1 + a // 2), 3, padding=1, groups=c, bias=a == 0)


def transposed(shape: Shape, a: int, inner: Any) -> nn.Module:
    if a == 3:
        return nn.ConvTranspose2d(shape[1], shape[1], 2, groups=shape[1])
    return nn.ConvTranspose2d(shape[1], 3, 2, stride=1 + a % 2, bias=a < 2)


def pool(shape: Shape, a: int, inner: Any) -> nn.Module:
    if min(shape[2:]) < 2:
        return nn.AdaptiveAvgPool2d(1)
    return [
        nn.MaxPool2d(2),
        nn.AvgPool2d(2, padding=1),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.AdaptiveMaxPool2d(2),
    ][a]


def resized(shape: Shape, a: int, inner: Any) -> nn.Module:
    c = shape[1]
    if a == 0:
        return nn.Upsample(scale_factor=2, mode="nearest")
    if a == 1:
        return nn.Upsample(size=(3, 3), mode="bilinear")
    if a == 2:
        return nn.Sequential(nn.Conv2d(c, 4, 1), nn.PixelShuffle(2))
    return Piece(lambda self, x: F.pad(x, (1, 0, 1, 0), mode="circular"))


def other_dimensions(shape: Shape, a: int, inner: Any) -> nn.Module:
    """Convolutions along one axis or three, and windows as vectors."""
    c, h, w = shape[1:]
    if a == 0:
        return Piece(lambda self, x: self.f(x.flatten(2)).unsqueeze(-1), f=nn.Conv1d(c, 3, 1))
    if a == 1:
        return Piece(lambda self, x: self.f(x.unsqueeze(2)).sum(2), f=nn.Conv3d(c, 2, 1, padding=1))
    size = min(h, w, 2)
    return Piece(
        lambda self, x: (
            F.unfold(x, size, stride=1 + a % 2).unsqueeze(-1)
            if a == 2
            else x.unfold(2, size, size)
            .unfold(3, size, size)
            .permute(0, 1, 4, 5, 2, 3)
            .flatten(1, 3)
        )
    )


def squeeze(shape: Shape, a: int, inner: Any) -> nn.Module:
    c = shape[1]
    return Piece(
        lambda self, x: x * self.g(F.relu(self.f(x.mean((2, 3), keepdim=True)))).sigmoid(),
        f=nn.Conv2d(c, 2, 1),
        g=nn.Conv2d(2, c, 1),
    )


IMAGE: dict[str, Maker] = {
    "convolution": convolution,
    "groups": groups,
    "transposed": transposed,
    "pool": pool,
    "resized": resized,
    "other dimensions": other_dimensions,
    "squeeze": squeeze,
    "batch norm": batch_norm(nn.BatchNorm2d),
    "group norm": module(lambda shape, a: nn.GroupNorm(1 if a % 2 else shape[1], shape[1])),
    "layer norm": module(lambda shape, a: nn.LayerNorm(list(shape[1 + a % 2 :]))),
    "instance norm": module(
        lambda shape, a: (
            nn.InstanceNorm2d(shape[1], affine=a != 0)
            if shape[2] * shape[3] > 1  # torch refuses a single element
            else nn.Identity()
        )
    ),
    "prelu by channel": module(lambda shape, a: nn.PReLU(shape[1])),
    "dropout by channel": module(lambda shape, a: nn.Dropout2d()),
}
