"""Pairs of small networks, and the least norms of their Hessians over the orbit by brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.func import functional_call, hessian

import spiritlevel as sl

Array = np.ndarray[Any, Any]
NORMS = {"hessian_spectral": math.inf, "hessian_frobenius": 2.0, "hessian_trace": 1.0}
POWERS = (8, 32, 128, 512, 2048)
STARTS = 2


@dataclass(frozen=True)
class Least:
    """Between two ends that are both proved: the lower one by a smooth norm's minimum."""

    low: float
    high: float


def networks(kind: str, seed: int) -> nn.Sequential:
    """A net with rectified units, at its random start."""
    torch.manual_seed(seed)
    width = 2 + seed % 3
    layers: dict[str, Callable[[], list[nn.Module]]] = {
        "relu": lambda: [nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)],
        "no bias": lambda: [nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)],
        "deep": lambda: [
            nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, width, bias=False), nn.ReLU(),
            nn.Linear(width, 2),
        ],
        "tanh": lambda: [
            nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2)
        ],
        "convolution": lambda: [
            nn.Conv1d(1, width, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * width, 2)
        ],
    }  # fmt: skip
    return nn.Sequential(*layers[kind]()).double()


KINDS = ("relu", "no bias", "deep", "tanh", "convolution")


def objective(kind: str, seed: int, steps: int, classes: bool) -> sl.Objective:
    """Trained not at all, a little, or to rest."""
    net = networks(kind, seed)
    draws = torch.Generator().manual_seed(seed + 1000)
    x = torch.randn(24, 4, generator=draws, dtype=torch.float64)
    noise = torch.randn(24, 2, generator=draws, dtype=torch.float64)
    y = noise.argmax(1) if classes else x[:, :2].abs() + noise
    x = x[:, None] if isinstance(net[0], nn.Conv1d) else x
    loss = F.cross_entropy if classes else F.mse_loss
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * (1 - step / steps)
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    return sl.Objective(net, (x, y), loss)


def pair(index: int) -> dict[str, sl.Objective]:
    """Two networks: twins in other coordinates, or two that were trained apart."""
    draws = np.random.default_rng(index)
    kind, other = draws.choice(KINDS, 2)
    classes = bool(draws.integers(2))
    one = objective(str(kind), index, int(draws.choice([0, 20, 600])), classes)
    if index % 4 == 0:
        two, kind = one, other
    else:
        two = objective(str(other), index + 500, int(draws.choice([0, 20, 600])), classes)
    return {"one": moved(one, draws, 0.3), "two": moved(two, draws, 1.0)}


def moved(objective: sl.Objective, draws: np.random.Generator, strength: float) -> sl.Objective:
    """The same function elsewhere on its orbit, by rescalings that are written down by hand."""
    scales = exponents(objective.module)
    t = draws.normal(size=scales.shape[1]) * strength
    return objective.at(objective.vector * torch.from_numpy(np.exp(scales @ t)))


def exponents(net: Any) -> Array:
    """B by hand: a rectified channel's weights in go up, those out go down."""
    names = {id(p): name for name, p in net.named_parameters()}
    sizes = {name: p.shape for name, p in net.named_parameters()}
    layers = list(net)
    columns = []
    for i, layer in enumerate(layers):
        if not isinstance(layer, nn.ReLU):
            continue
        before = layers[i - 1]
        after = next(m for m in layers[i + 1 :] if isinstance(m, (nn.Linear, nn.Conv1d)))
        for unit in range(before.weight.shape[0]):
            rows = {name: torch.zeros(shape) for name, shape in sizes.items()}
            for p in before.parameters():
                rows[names[id(p)]][unit] = 1.0
            out = rows[names[id(after.weight)]]
            out.reshape(len(out), before.weight.shape[0], -1)[:, unit] = -1.0
            columns.append(torch.cat([row.reshape(-1) for row in rows.values()]).double())
    return torch.stack(columns, 1).numpy()


def dense_hessian(objective: sl.Objective) -> Array:
    """By torch.func, in float64, of the plain mean loss."""
    net, shapes = objective.module, objective.shapes
    x, y = objective.batches[0]
    loss = F.cross_entropy if y.ndim == 1 else F.mse_loss

    def value(vector: Tensor) -> Tensor:
        pieces = vector.split([s.numel() for s in shapes.values()])
        params = {n: p.reshape(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}
        return loss(functional_call(net, params, (x,)), y)

    return hessian(value)(objective.vector).numpy()


def least(matrix: Array, scales: Array, name: str) -> Least:
    """min over t of log || exp(-Bt) H exp(-Bt) ||, convex: several starts, rising powers."""
    if name == "hessian_trace":
        return _least_trace(np.diag(matrix), scales)
    powers = POWERS if name == "hessian_spectral" else (2,)
    best, bound, log_norm = math.inf, 0.0, 0.0
    for seed in range(STARTS):
        t = np.random.default_rng(seed).normal(size=scales.shape[1]) * 0.3 * seed
        for power in powers:
            t, log_norm = _descend(matrix, scales, t, power)
        d = np.exp(-scales @ t)
        values = np.abs(np.linalg.eigvalsh(d[:, None] * matrix * d))
        best = min(best, values.max() if len(powers) > 1 else float(np.sqrt((values**2).sum())))
        # a Schatten norm is at most n^(1/p) times the largest eigenvalue
        slack = len(matrix) ** (-1 / powers[-1]) if len(powers) > 1 else 1.0
        bound = max(bound, math.exp(log_norm) * slack)
    return Least(min(bound, best) * (1 - 1e-6), best * (1 + 1e-6))


def _descend(matrix: Array, scales: Array, t: Array, power: int) -> tuple[Array, float]:
    found = minimize(
        lambda t: _log_norm(matrix, scales, t, power),
        t,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-9},
    )
    return found.x, float(found.fun)


def _log_norm(matrix: Array, scales: Array, t: Array, power: int) -> tuple[float, Array]:
    """The Schatten norm's logarithm and its slope: -2 B'(diag(|A|^p)) / tr |A|^p."""
    d = np.exp(-scales @ t)
    values, vectors = np.linalg.eigh(d[:, None] * matrix * d)
    top = np.abs(values).max()
    shares = (np.abs(values) / top) ** power
    total = shares.sum()
    slope = -2 * scales.T @ ((vectors**2) @ shares) / total
    return float(np.log(top) + np.log(total) / power), slope


def _least_trace(diagonal: Array, scales: Array) -> Least:
    """A sum of exponentials, convex where the diagonal is not negative."""
    assert (diagonal > -1e-12 * diagonal.max()).all()

    def value(t: Array) -> tuple[float, Array]:
        weights = np.maximum(diagonal, 0) * np.exp(-2 * scales @ t)
        return float(np.log(weights.sum())), -2 * scales.T @ weights / weights.sum()

    found = minimize(value, np.zeros(scales.shape[1]), jac=True, options={"gtol": 1e-9})
    return Least(math.exp(found.fun) * (1 - 1e-6), math.exp(found.fun) * (1 + 1e-6))
