"""Extreme eigenpairs by thick-restart Lanczos, stopped by the residual."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Estimate, Status
from spiritlevel.operators import Operator
from spiritlevel.progress import bar
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.tensors import gaussian, generator

Which = Literal["largest", "smallest", "magnitude", "both"]
COARSE_TOL = 0.03
LEADING = 6
FRESH_SHARE = 0.05  # of a warm start that is random, so that no eigenvector can hide


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues in falling order (of magnitude, for "magnitude") and vectors as columns.

    `leading` holds the Ritz vectors of largest magnitude, converged or not: what to take out of
    the matrix before its rest is probed at random.
    """

    values: tuple[Estimate, ...]
    vectors: Tensor
    leading: Tensor

    def __getitem__(self, index: int) -> Estimate:
        return self.values[index]


def eigenvalues(
    operator: Operator,
    k: int = 1,
    *,
    which: Which = "largest",
    tol: float = 1e-3,
    relative_to: Literal["eigenvalue", "norm"] = "eigenvalue",
    budget: int = 300,
    memory: int | None = None,
    start: Tensor | None = None,
    seed: int | torch.Generator = 0,
) -> tuple[Estimate, ...]:
    """The k extreme eigenvalues; see `eigenpairs`."""
    return eigenpairs(
        operator,
        k,
        which=which,
        tol=tol,
        relative_to=relative_to,
        budget=budget,
        memory=memory,
        start=start,
        seed=seed,
    ).values


def eigenpairs(
    operator: Operator,
    k: int = 1,
    *,
    which: Which = "largest",
    tol: float = 1e-3,
    relative_to: Literal["eigenvalue", "norm"] = "eigenvalue",
    budget: int = 300,
    memory: int | None = None,
    start: Tensor | None = None,
    seed: int | torch.Generator = 0,
) -> Eigenpairs:
    """The k extreme eigenpairs at one end (or k at each, for "both").

    Stops when every ||Av - lambda v|| <= tol |lambda| (or tol ||A||, with relative_to="norm");
    `memory` bounds the vectors that are held, `budget` the products. An operator with a coarse
    relative is warmed up on that first.
    """
    wanted = k if which != "both" else 2 * k
    if k < 1 or wanted > operator.size:
        raise SpiritlevelError(
            f"k={k} ({which}) asks for {wanted} eigenvalues of a matrix of size {operator.size}"
        )
    memory = max(4 * wanted, wanted + 24) if memory is None else memory
    if memory < wanted + k + 1:
        raise SpiritlevelError(f"memory={memory} vectors is too little for {wanted} eigenpairs")
    begin, draws, spent = time.perf_counter(), generator(seed), 0.0
    if start is None:
        start, spent = _start(operator, k, which, draws)
    krylov = Krylov(operator, start, memory, draws)
    scale = _scale(relative_to)
    status = _iterate(krylov, k, which, tol, budget, scale)
    values, coordinates, residuals = krylov.ritz()
    order = _select(values, k, which)
    cost = (krylov.products * operator.cost) + spent
    limit = tol * scale(values)
    # Products that are rounded cannot give a smaller residual than their own error.
    floor = (operator.rounding or torch.finfo(operator.dtype).eps) * values.abs()
    found = []
    for i in order:
        done = krylov.complete or bool(residuals[i] <= limit[i])
        found.append(
            Estimate(
                value=float(values[i]),
                residual=float(torch.maximum(residuals, floor)[i]),
                matvecs=cost,
                seconds=time.perf_counter() - begin,
                status=Status.CONVERGED if done else status,
                remedy="" if done else "raise budget, or memory, or tol",
            )
        )
    large = values.abs().argsort(descending=True)[:LEADING]
    return Eigenpairs(
        tuple(found), krylov.lift(coordinates[:, order]), krylov.lift(coordinates[:, large])
    )


def _scale(relative_to: str):  # type: ignore[no-untyped-def]
    def scale(values: Tensor) -> Tensor:
        norm = values.abs().max()
        return values.abs() if relative_to == "eigenvalue" else norm.expand_as(values)

    return scale


def _iterate(krylov: Krylov, k: int, which: Which, tol: float, budget: int, scale) -> Status:  # type: ignore[no-untyped-def]
    wanted = k if which != "both" else 2 * k
    with bar(budget, f"{which} eigenvalues") as progress:
        try:
            while krylov.products < budget:
                krylov.expand()
                progress.update()
                if krylov.complete:
                    return Status.CONVERGED
                if krylov.length <= wanted:
                    continue
                values, coordinates, residuals = krylov.ritz()
                order = _select(values, k, which)
                worst = (residuals / (scale(values) + 1e-300))[order].max()
                progress.set_postfix_str(f"residual {float(worst):.1e}")
                if worst <= tol:
                    return Status.CONVERGED
                if krylov.full:
                    krylov.restart(coordinates[:, _keep(values, order, krylov.capacity)])
        except KeyboardInterrupt:
            if krylov.length <= wanted:
                raise
            return Status.INTERRUPTED
    return Status.BUDGET


def _select(values: Tensor, k: int, which: Which) -> list[int]:
    """Where the wanted Ritz values lie, in falling order."""
    m = len(values)
    if which == "magnitude":
        return values.abs().argsort(descending=True)[:k].tolist()
    top = [m - 1 - i for i in range(min(k, m))]
    low = [i for i in reversed(range(min(k, m)))]
    return top if which == "largest" else low if which == "smallest" else top + low


def _keep(values: Tensor, order: list[int], capacity: int) -> list[int]:
    """The wanted vectors and their neighbours: half of what fits, from both sides if wanted."""
    rank = torch.full((len(values),), len(values), dtype=torch.long)
    for place in order:
        rank = torch.minimum(rank, (torch.arange(len(values)) - place).abs())
    return sorted(rank.argsort(stable=True)[: max(capacity // 2, len(order))].tolist())


def _start(
    operator: Operator, k: int, which: Which, draws: torch.Generator
) -> tuple[Tensor, float]:
    """k random vectors, or the coarse operator's leading vectors with a random share.

    The share keeps the iteration from stopping at an eigenvector that is not the extreme one.
    """
    like = torch.zeros((), dtype=operator.dtype, device=operator.device)
    fresh = gaussian((operator.size, k), draws, like)
    fresh /= fresh.norm(dim=0)
    if operator.coarse is None:
        return fresh, 0.0
    rough = eigenpairs(operator.coarse, k, which=which, tol=COARSE_TOL, seed=draws, budget=60)
    # for "both" the vectors of the two ends share a column
    warm = rough.vectors.unflatten(1, (-1, k)).sum(1)
    return warm / warm.norm(dim=0) + FRESH_SHARE * fresh, rough.values[0].matvecs
