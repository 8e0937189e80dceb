"""The embedded default: a small rectified net on the 8x8 digits, trained in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.tensors import generator
from spiritlevel.objective.objective import Objective

TRAINING_EXAMPLES = 1437  # four fifths of the 1,797
SIZES = (64, 32, 16, 10)
HALVES = (64, 32, 2)  # of the net that tells 0 to 4 from 5 to 9
EPOCHS, BATCH, RATE = 40, 64, 1e-2


def digits(seed: int = 0) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images in [0, 1] with labels, shuffled once by `seed`."""
    path = resources.files("spiritlevel.objective") / "data" / "digits.npz"
    with path.open("rb") as file, np.load(file) as arrays:
        x = torch.from_numpy(arrays["x"].astype(np.float32) / 16)
        y = torch.from_numpy(arrays["y"].astype(np.int64))
    order = torch.randperm(len(x), generator=generator(seed))
    train, test = order[:TRAINING_EXAMPLES], order[TRAINING_EXAMPLES:]
    return (x[train], y[train]), (x[test], y[test])


@dataclass(frozen=True)
class Training:
    """A trained net, its weights before training, and the loss of every step on its batch."""

    net: nn.Sequential
    init: dict[str, Tensor]
    losses: list[float]


def trained_net(seed: int = 0, batch: int = BATCH) -> nn.Sequential:
    """64-32-16-10 with ReLU, fitted by Adam with a falling rate; the same net for the same seed."""
    return training(seed, batch).net


def fresh_net(draws: torch.Generator, sizes: tuple[int, ...] = SIZES) -> nn.Sequential:
    """The net before training."""
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layer = nn.Linear(inside, outside, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            weights = torch.randn(outside, inside, generator=draws) * (2 / inside) ** 0.5
            layer.weight.copy_(weights)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def training(seed: int = 0, batch: int = BATCH) -> Training:
    """The training of the default net, with what measures may ask about it."""
    draws = generator(seed)
    return _fitted(fresh_net(draws), digits(seed)[0], batch, draws)


def halves(seed: int = 0) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The digits with two labels, 0 to 4 and 5 to 9."""
    (x, y), (test_x, test_y) = digits(seed)
    return (x, (y > 4).long()), (test_x, (test_y > 4).long())


def halves_training(seed: int = 0) -> Training:
    """The training of a net of one hidden layer that tells the halves apart."""
    draws = generator(seed)
    return _fitted(fresh_net(draws, HALVES), halves(seed)[0], BATCH, draws)


@torch.enable_grad()
def _fitted(
    net: nn.Sequential, data: tuple[Tensor, Tensor], batch: int, draws: torch.Generator
) -> Training:
    init = {name: p.detach().clone() for name, p in net.named_parameters()}
    losses: list[float] = []
    x, y = data
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x), generator=draws).split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[chosen]), y[chosen])
            loss.backward()
            losses.append(float(loss.detach()))
            optimizer.step()
        schedule.step()
    return Training(net, init, losses)


def default_objective(
    *,
    seed: int = 0,
    batch: int = BATCH,
    dtype: torch.dtype | None = None,
    device: str | None = None,
) -> Objective:
    """The net, trained with batches of some size, on its training digits, mean cross-entropy."""
    tensor_doors.seeded(seed)
    doors.number("batch", batch, 1, whole=True)
    doors.one_of("dtype", dtype, (None, torch.float32, torch.float64))
    if device is not None:
        tensor_doors.device(device)
    train, _ = digits(seed)
    return Objective(trained_net(seed, batch), train, F.cross_entropy, dtype=dtype, device=device)
