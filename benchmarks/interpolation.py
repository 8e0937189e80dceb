"""Two networks on MNIST from two seeds: the barrier between them, as given and aligned.

    SPIRITLEVEL_DATA=... python benchmarks/interpolation.py

784-256-256-10 with ReLU, ten epochs of SGD (momentum 0.9, rate 0.05, batches of 128) on 20,000
images; losses on 2,000 of them. Then one of the two is rescaled at random, which changes none of
its predictions, and asked again.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from resnet20 import data_folder
from torch import Tensor, nn

import spiritlevel as sl

EPOCHS, BATCH, RATE = 10, 128, 0.05


def mnist(n: int) -> tuple[Tensor, Tensor]:
    with np.load(data_folder() / "mnist.npz") as file:
        x, y = file["x_train"][:n], file["y_train"][:n]
    return torch.from_numpy(x).reshape(n, -1).float() / 255, torch.from_numpy(y.astype(np.int64))


def trained(x: Tensor, y: Tensor, seed: int, decay: float) -> nn.Module:
    torch.manual_seed(seed)
    hidden = nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
    net = nn.Sequential(*hidden, nn.Linear(256, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        schedule.step()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decay", type=float, default=0.0, help="of the weights")
    options = parser.parse_args()
    x, y = mnist(20_000)
    few = x[:2000], y[:2000]
    a, b = (
        sl.Objective(trained(x, y, seed, options.decay), few, F.cross_entropy) for seed in (0, 1)
    )
    group = sl.symmetries(b)
    print(sl.landscape.interpolate(a, b, align=True))
    print(sl.landscape.interpolate(a, group.apply(b, group.random(0, 1.0)), align=True))


if __name__ == "__main__":
    main()
