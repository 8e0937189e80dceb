"""Extreme eigenpairs by thick-restart Lanczos, stopped by the residual."""

from __future__ import annotations

import time
from collections.abc import Callable
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
PATIENCE = 4
LEADING = 6
RUNNERS_UP = 0.05
FRESH_SHARE = 0.05  # of a warm start that is random, so that no eigenvector can hide


Scale = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues in falling order (of magnitude, for "magnitude") and vectors as columns.

    `images` are A times the vectors, without further products. `leading` holds the Ritz vectors of
    largest magnitude, converged or not, and `leading_images` A times them: what to take out of the
    matrix before its rest is probed at random.
    """

    values: tuple[Estimate, ...]
    vectors: Tensor
    images: Tensor
    leading: Tensor
    leading_images: Tensor

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
    memory = max(4 * wanted, wanted + 24) if memory is None else memory
    _check_request(operator, k, which, budget, memory)
    begin, draws, spent = time.perf_counter(), generator(seed), 0.0
    # A loose criterion or a given start may be content with a pair that is not the extreme one:
    # it must then hold for several products in a row.
    strict = start is None and relative_to == "eigenvalue" and which in ("largest", "smallest")
    if start is None:
        start, spent = _start(operator, k, which, draws)
    else:
        start = _freshened(start.to(dtype=operator.dtype, device=operator.device), draws)
    krylov, scale = Krylov(operator, start, memory, draws), _scale(relative_to)
    status = _iterate(krylov, k, which, tol, budget, scale, patience=1 if strict else PATIENCE)
    values, coordinates, residuals = krylov.ritz()
    done = (residuals <= tol * scale(values)) | krylov.complete
    # Rounding in the products is seen as asymmetry, which the residual holds, but not all of it.
    errors = torch.maximum(residuals, 10 * torch.finfo(operator.dtype).eps * values.abs())
    order = _select(values, k, which)
    cost = krylov.products * operator.cost + spent, time.perf_counter() - begin
    found = _estimates(values[order], errors[order], done[order], status, *cost)
    large = values.abs().argsort(descending=True)[:LEADING]
    chosen, leading = coordinates[:, order], coordinates[:, large]
    return Eigenpairs(
        found,
        krylov.lift(chosen),
        krylov.image(chosen),
        krylov.lift(leading),
        krylov.image(leading),
    )


def _estimates(
    values: Tensor, errors: Tensor, done: Tensor, status: Status, matvecs: float, seconds: float
) -> tuple[Estimate, ...]:
    """Ritz values with their errors; those that are not done have the status of the whole."""
    return tuple(
        Estimate(
            value=value,
            residual=error,
            matvecs=matvecs,
            seconds=seconds,
            status=Status.CONVERGED if finished else status,
            remedy="" if finished else "raise budget, or memory, or tol",
        )
        for value, error, finished in zip(
            values.tolist(), errors.tolist(), done.tolist(), strict=True
        )
    )


def _check_request(operator: Operator, k: int, which: Which, budget: int, memory: int) -> None:
    wanted = k if which != "both" else 2 * k
    if budget < 1:
        raise SpiritlevelError(f"budget={budget}: give at least one product")
    if k < 1 or wanted > operator.size:
        raise SpiritlevelError(
            f"k={k} ({which}) asks for {wanted} eigenvalues of a matrix of size {operator.size}"
        )
    if memory < (3 * k + 3 if which == "magnitude" else wanted + k + 1):
        raise SpiritlevelError(f"memory={memory} vectors is too little for {wanted} eigenpairs")


def _scale(relative_to: str) -> Scale:
    """What residuals are compared with: each eigenvalue, or the norm."""

    def scale(values: Tensor) -> Tensor:
        norm = values.abs().max()
        return values.abs() if relative_to == "eigenvalue" else norm.expand_as(values)

    return scale


def _iterate(
    krylov: Krylov, k: int, which: Which, tol: float, budget: int, scale: Scale, patience: int
) -> Status:
    wanted = k if which != "both" else 2 * k
    steady = 0
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
                steady = steady + 1 if worst <= tol else 0
                if steady >= patience:
                    return Status.CONVERGED
                if krylov.full:
                    krylov.restart(coordinates[:, _keep(values, order, which, krylov.capacity)])
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
    low = list(reversed(range(min(k, m))))
    return top if which == "largest" else low if which == "smallest" else top + low


def _keep(values: Tensor, order: list[int], which: Which, capacity: int) -> list[int]:
    """The wanted vectors and the next ones in line: half of what fits."""
    count = max(capacity // 2, len(order))
    if which == "magnitude":
        return sorted(values.abs().argsort(descending=True)[:count].tolist())
    places = torch.arange(len(values))
    rank = torch.stack([(places - place).abs() for place in order]).amin(0)
    return sorted(rank.argsort(stable=True)[:count].tolist())


def _start(
    operator: Operator, k: int, which: Which, draws: torch.Generator
) -> tuple[Tensor, float]:
    """k random vectors, or the coarse operator's leading vectors, and what they cost."""
    like = torch.zeros((), dtype=operator.dtype, device=operator.device)
    if operator.coarse is None:
        return gaussian((operator.size, k), draws, like), 0.0
    rough = eigenpairs(operator.coarse, k, which=which, tol=COARSE_TOL, seed=draws, budget=60)
    # For "both" the vectors of the two ends share a column. Runners-up are mixed in, since the
    # order may be another one on all the data.
    warm = rough.vectors.unflatten(1, (-1, k)).sum(1)
    runners_up = rough.leading[:, : k + 2].sum(1, keepdim=True)
    mixed = warm + RUNNERS_UP * runners_up / runners_up.norm()
    return _freshened(mixed, draws), rough.values[0].matvecs


def _freshened(start: Tensor, draws: torch.Generator) -> Tensor:
    """The start with a random share, so that no eigenvector can hide from it."""
    columns = start[:, None] if start.ndim == 1 else start
    fresh = gaussian(tuple(columns.shape), draws, columns)
    return columns / columns.norm(dim=0) + FRESH_SHARE * fresh / fresh.norm(dim=0)
