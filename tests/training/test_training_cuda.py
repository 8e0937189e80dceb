"""Training on a GPU: the same steps as on a CPU; skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import labels, randn
from spiritlevel.training import SAM, SGLD, EntropySGD, ReplicatedSGD, fit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SAM": lambda m: SAM(m.parameters(), lr=0.1, momentum=0.9, model=m),
    "ASAM": lambda m: SAM(m.parameters(), lr=0.1, rho=0.5, adaptive=True, model=m),
    "by filter": lambda m: SAM(m.parameters(), lr=0.1, rho=0.5, adaptive="filter"),
    "Entropy-SGD": lambda m: EntropySGD(m.parameters(), lr=0.5, inner=3, noise=0.01, model=m),
    "replicas": lambda m: ReplicatedSGD(
        m.parameters(), lr=0.1, replicas=2, devices=["cpu", next(m.parameters()).device]
    ),
    "Langevin": lambda m: SGLD(m.parameters(), lr=0.01, temperature=1e-3),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_a_cpu(name: str) -> None:
    """In float64, with the same random numbers."""
    data, ends = (randn(64, 1, 8, 8), labels(64, classes=3)), []
    for device in ("cpu", "cuda"):
        model = net().double().to(device)
        fit(model, data, F.cross_entropy, OPTIMIZERS[name](model), 2, batch_size=16, seed=3)
        ends.append(torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-10, atol=1e-13)


def test_a_scaler_that_skips_leaves_the_weights_where_they_were() -> None:
    """float16 with a scale that overflows at first."""
    model, skipped = net().cuda(), 0
    x, y = randn(64, 1, 8, 8).float().cuda(), labels(64, classes=3).cuda()
    optimizer, scaler = SAM(model.parameters(), lr=0.1), torch.amp.GradScaler(init_scale=2.0**40)

    def backward() -> float:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return float(loss.detach())

    losses = []
    for _ in range(60):
        before, scale = [p.detach().clone() for p in model.parameters()], scaler.get_scale()
        losses.append(backward())
        optimizer.ascend()
        backward()
        optimizer.descend(scaler)
        scaler.update()
        optimizer.zero_grad()
        if scaler.get_scale() < scale:
            skipped += 1
            assert all(map(torch.equal, before, model.parameters()))
    assert 0 < skipped < 60
    assert losses[-1] < 0.5 * losses[0]
