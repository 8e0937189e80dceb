"""The CIFAR ResNet-20 (He et al., 2015, option-A shortcuts) and its trained weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.extra = stride, width - inside

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.extra:  # option A: subsample, and pad the new channels with zeros
            half = self.extra // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(out + x)


class ResNet20(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, 1)
        self.layer2 = self._stage(width, 2 * width, 2)
        self.layer3 = self._stage(2 * width, 4 * width, 2)
        self.linear = nn.Linear(4 * width, 10)

    @staticmethod
    def _stage(inside: int, width: int, stride: int) -> nn.Sequential:
        first = Block(inside, width, stride)
        return nn.Sequential(first, Block(width, width, 1), Block(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def data_folder() -> Path:
    folder = Path(os.environ.get("SPIRITLEVEL_DATA", "data"))
    if not folder.is_dir():
        raise SystemExit(f"no folder {folder}: point SPIRITLEVEL_DATA at the benchmark data")
    return folder


def trained() -> ResNet20:
    """The weights of akamaster/pytorch_resnet_cifar10, 91.73 % on the test set."""
    path = data_folder() / "resnet20_cifar10" / "resnet20-12fca82f.th"
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = ResNet20()
    model.load_state_dict({name.removeprefix("module."): t for name, t in state.items()})
    return model.eval()


def cifar10(n: int) -> tuple[Tensor, Tensor]:
    """The first n test images, normalized as in training, and their labels."""
    with np.load(data_folder() / "cifar10_test.npz") as file:
        x, y = file["x"][:n], file["y"][:n]
    images = torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(c).view(1, 3, 1, 1) for c in (MEAN, STD))
    return ((images - mean) / std).contiguous(), torch.from_numpy(y.astype(np.int64))
