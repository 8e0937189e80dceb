"""The networks of the loss-landscape literature for 32 x 32 images, and CIFAR-10 to go with them.

    from cifar import DenseNet, ResNet, cifar10

Run as a script it says what can be rescaled in small ones: a skip ties channels together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILES = {"train": "cifar10_train15k.npz", "test": "cifar10_test.npz"}


class Block(nn.Module):
    """Two convolutions and, if asked for, the way around them."""

    def __init__(self, inside: int, width: int, stride: int, skip: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.extra, self.skip = stride, width - inside, skip

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.around(x)) if self.skip else F.relu(out)

    def around(self, x: Tensor) -> Tensor:
        """Option A: subsample, and pad the new channels with zeros; it has no parameters."""
        if not self.extra:
            return x
        before = self.extra // 2
        pads = 0, 0, 0, 0, before, self.extra - before
        return F.pad(x[:, :, :: self.stride, :: self.stride], pads)


class ResNet(nn.Module):
    """A residual network for CIFAR of depth 6n + 2; without skips the same layers in a row.

    He, Zhang, Ren, Sun, 2016, section 4.2.
    """

    def __init__(self, depth: int = 20, width: int = 16, skip: bool = True) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth={depth} is not 6n + 2; use 20, 32, 44, 56 or 110")
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, blocks, skip)
        self.layer2 = self._stage(width, 2 * width, blocks, skip)
        self.layer3 = self._stage(2 * width, 4 * width, blocks, skip)
        self.linear = nn.Linear(4 * width, CLASSES)
        scaled(self)

    @staticmethod
    def _stage(inside: int, width: int, blocks: int, skip: bool) -> nn.Sequential:
        first = Block(inside, width, 1 if inside == width else 2, skip)
        return nn.Sequential(first, *(Block(width, width, 1, skip) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


class Layer(nn.Module):
    """A bottleneck that adds `growth` channels to all that came before."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return torch.cat([x, new], 1)


class Transition(nn.Module):
    """Half of the channels, half of the side."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inside)
        self.conv = nn.Conv2d(inside, inside // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    """A densely connected network with bottlenecks and compression; as given, DenseNet-121.

    Huang, Liu, van der Maaten, Weinberger, 2017; its CIFAR form starts with one 3 x 3 convolution.
    DenseNet(12, (16, 16, 16)) is the DenseNet-BC of 100 layers.
    """

    def __init__(self, growth: int = 32, blocks: Sequence[int] = (6, 12, 24, 16)) -> None:
        super().__init__()
        channels = 2 * growth
        self.conv = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        pieces: list[nn.Module] = []
        for number, layers in enumerate(blocks):
            if number:
                pieces.append(Transition(channels))
                channels //= 2
            for _ in range(layers):
                pieces.append(Layer(channels, growth))
                channels += growth
        self.pieces = nn.Sequential(*pieces)
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, CLASSES)
        scaled(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(F.relu(self.bn(self.pieces(self.conv(x)))).mean((2, 3)))


def scaled(net: nn.Module) -> None:
    """He's scale for convolutions, without which deep rows of them hardly begin to learn."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


def data_folder() -> Path:
    folder = Path(os.environ.get("SPIRITLEVEL_DATA", "data"))
    if not folder.is_dir():
        raise SystemExit(f"no folder {folder}: point SPIRITLEVEL_DATA at the benchmark data")
    return folder


def cifar10(n: int, part: Literal["train", "test"] = "test") -> tuple[Tensor, Tensor]:
    """The first n images, normalized as is usual, and their labels."""
    with np.load(data_folder() / FILES[part]) as file:
        x, y = file["x"][:n], file["y"][:n]
    images = torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(c).view(1, 3, 1, 1) for c in (MEAN, STD))
    return ((images - mean) / std).contiguous(), torch.from_numpy(y.astype(np.int64))


def main() -> None:
    import spiritlevel as sl

    torch.manual_seed(0)
    data = torch.randn(4, 3, 32, 32), torch.arange(4)
    nets = {
        "ResNet-8": ResNet(8, width=4),
        "ResNet-8 without skips": ResNet(8, width=4, skip=False),
        "DenseNet": DenseNet(4, (2, 2)),
    }
    for name, net in nets.items():
        group = sl.symmetries(sl.Objective(net.eval(), data, F.cross_entropy))
        count = sum(p.numel() for p in net.parameters())
        print(f"{name}: {count:,} parameters, {group.dim} rescalings")


if __name__ == "__main__":
    main()
