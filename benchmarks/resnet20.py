"""The CIFAR ResNet-20 of the benchmarks with its trained weights, and CIFAR-10."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from cifar import DenseNet, ResNet, cifar10, data_folder

__all__ = ["DenseNet", "ResNet", "cifar10", "data_folder", "trained"]


def trained() -> ResNet:
    """The weights of akamaster/pytorch_resnet_cifar10, 91.73 % on the test set."""
    path = data_folder() / "resnet20_cifar10" / "resnet20-12fca82f.th"
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = ResNet()
    model.load_state_dict({name.removeprefix("module."): t for name, t in state.items()})
    return model.eval()
