"""Orbits by brute force: dense matrices, and a direct search for the least norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

Array = np.ndarray


def norm_of(matrix: Tensor, norm: str) -> float:
    if norm == "trace":
        return float(matrix.trace())
    if norm == "frobenius":
        return float(matrix.norm())
    return float(torch.linalg.eigvalsh(matrix).abs().max())


def moved(matrix: Tensor, exponents: Tensor, t: Any) -> Tensor:
    """D A D with D = exp(-B t)."""
    d = torch.exp(-exponents @ torch.as_tensor(t, dtype=torch.float64))
    return d[:, None] * matrix * d[None, :]


def _slope(matrix: Array, norm: str) -> tuple[float, Array]:
    """The norm of a symmetric matrix, and the diagonal of N in dnorm = <N A + A N, dlog D>."""
    if norm == "trace":
        return float(np.trace(matrix)), np.diag(matrix)
    if norm == "frobenius":
        value = float(np.linalg.norm(matrix))
        return value, (matrix**2).sum(1) / max(value, 1e-300)
    values, vectors = np.linalg.eigh(matrix)
    top = int(np.abs(values).argmax())
    # a smooth norm of high order points down where several eigenvalues are the largest
    shares = (np.abs(values) / max(abs(values[top]), 1e-300)) ** 60
    smooth = abs(values[top]) * shares.sum() ** (1 / 60)
    return float(smooth), smooth * (vectors**2) @ (shares / shares.sum())


def least_found(
    matrix: Tensor, exponents: Tensor, norm: str, starts: list[Tensor], reach: float = 12.0
) -> float:
    """The least norm over the orbit that quasi-Newton steps find from several starts."""
    a, b = matrix.numpy(), exponents.numpy()

    def downhill(t: Array) -> tuple[float, Array]:
        d = np.exp(-b @ t)
        value, pull = _slope(d[:, None] * a * d[None, :], norm)
        if norm == "trace":  # may be negative: no logarithm
            return value, -2 * b.T @ pull
        return float(np.log(max(value, 1e-300))), -2 * b.T @ pull / max(value, 1e-300)

    best = np.inf
    for start in starts:
        bounds = [(-reach, reach)] * len(start)
        found = minimize(
            downhill,
            start.numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 200},
        ).x
        best = min(best, norm_of(moved(matrix, exponents, found), norm))
    return best


Act = Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]]


def exponents_of(act: Act, ones: dict[str, Tensor], dim: int) -> Tensor:
    """B, one column for each generator, from what the group does to a vector of ones."""
    columns = []
    for i in range(dim):
        unit = torch.zeros(dim, dtype=torch.float64)
        unit[i] = 1.0
        found = act(ones, unit)
        columns.append(torch.cat([found[name].reshape(-1).log() for name in ones]))
    size = sum(t.numel() for t in ones.values())
    return torch.stack(columns, 1) if columns else torch.zeros(size, 0, dtype=torch.float64)


def divided(
    matrix: Tensor, masses: Tensor, exponents: Tensor, parameters: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """A matrix and B without what would run away: measured at unit size, and held there.

    Some curvature can be sent to zero while no other grows. The parameters of such cells (those of
    one tensor that all rescalings scale alike) are measured in units of their root mean square.
    """
    lonely, b = torch.zeros(len(matrix), dtype=torch.bool), exponents
    while bool((more := _runaway(b, masses > 0)).any()):
        lonely |= more
        b = torch.where(lonely[:, None], 0.0, exponents)
    sizes, start = torch.ones(len(matrix), dtype=torch.float64), 0
    for tensor in parameters:
        span = slice(start, start + tensor.numel())
        _, cell = exponents[span].unique(dim=0, return_inverse=True)
        squares = torch.zeros(int(cell.max()) + 1, 2, dtype=torch.float64)
        terms = torch.stack([tensor.reshape(-1) ** 2, torch.ones(tensor.numel())], 1)
        squares.index_add_(0, cell, terms.double())
        rms = (squares[:, 0] / squares[:, 1]).sqrt()[cell]
        sizes[span] = torch.where(lonely[span], rms, 1.0)
        start = span.stop
    return sizes[:, None] * matrix * sizes[None, :], b


def _runaway(exponents: Tensor, alive: Tensor) -> Tensor:
    """The largest support of B t >= 0 over the parameters that curve: a linear program."""
    rows = exponents[alive].numpy()
    count, dim = rows.shape
    found = linprog(
        np.concatenate([np.zeros(dim), -np.ones(count)]),
        A_ub=np.hstack([-rows, np.eye(count)]),
        b_ub=np.zeros(count),
        bounds=[(None, None)] * dim + [(0, 1)] * count,
    )
    support = torch.zeros(len(exponents), dtype=torch.bool)
    support[alive] = torch.from_numpy(found.x[dim:] > 0.5)
    return support
