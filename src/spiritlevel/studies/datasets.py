"""Data of studies by name: the embedded digits, or files in the folder SPIRITLEVEL_DATA."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import generator
from spiritlevel.objective.default import digits
from spiritlevel.training.feeding import mixed

FILES = {"fashion": "fashion_mnist.npz", "mnist": "mnist.npz"}
NAMES = ("digits", *FILES)
FOLDER = "SPIRITLEVEL_DATA"
CLASSES = 10


@dataclass(frozen=True)
class Images:
    """Square grey images in [0, 1] with labels 0 to 9, to train on and to test on."""

    x: Tensor  # (n, 1, side, side)
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@functools.cache
def images(name: str) -> Images:
    """The data of this name."""
    if name == "digits":
        (x, y), (test_x, test_y) = digits()
        return Images(x.view(-1, 1, 8, 8), y, test_x.view(-1, 1, 8, 8), test_y)
    if name not in FILES:
        raise SpiritlevelError(f"data is {name!r}; there are: {', '.join(NAMES)}")
    folder = os.environ.get(FOLDER)
    path = Path(folder or "") / FILES[name]
    if not folder or not path.is_file():
        raise SpiritlevelError(
            f"data={name!r} needs the file {FILES[name]} (arrays x_train, y_train, x_test, y_test) "
            f"in the folder that the environment variable {FOLDER} names"
        )
    with np.load(path) as arrays:
        names = ("x_train", "y_train", "x_test", "y_test")
        x, y, test_x, test_y = (torch.from_numpy(arrays[name]) for name in names)
    return Images(_grey(x), y.long(), _grey(test_x), test_y.long())


def _grey(pixels: Tensor) -> Tensor:
    return pixels.float()[:, None] / 255


def noisy(labels: Tensor, share: float, seed: int) -> Tensor:
    """Labels of which a share is drawn anew, each class as likely: Zhang et al. (2017)."""
    draws = generator(mixed(seed, "labels"))
    drawn = torch.randint(CLASSES, labels.shape, generator=draws)
    chosen = torch.randperm(len(labels), generator=draws)[: round(share * len(labels))]
    found = labels.clone()
    found[chosen] = drawn[chosen]
    return found
