"""Extreme eigenpairs by thick-restart Lanczos, until nothing can have been missed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import a, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.interrupts import keeps_what_is_done
from spiritlevel.base.operator import Operator
from spiritlevel.base.progress import bar
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.spectral.krylov import Krylov, Ritz
from spiritlevel.spectral.missed import bounds, known
from spiritlevel.spectral.request import RelativeTo, Request, Which

LEADING = 6
FEW = 6  # products that are hardly ever enough
LOOKS = 20  # a look after every product would cost more than a product that is too many


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
    relative_to: RelativeTo = "eigenvalue",
    budget: int = 300,
    memory: int | None = None,
    start: Tensor | None = None,
    sure: bool = True,
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
        sure=sure,
        seed=seed,
        leading=0,
    ).values


def eigenpairs(
    operator: Operator,
    k: int = 1,
    *,
    which: Which = "largest",
    tol: float = 1e-3,
    relative_to: RelativeTo = "eigenvalue",
    budget: int = 300,
    memory: int | None = None,
    start: Tensor | None = None,
    sure: bool = True,
    below: float | None = None,
    seed: int | torch.Generator = 0,
    leading: int = LEADING,
) -> Eigenpairs:
    """The k extreme eigenpairs at one end (or k at each, for "both").

    Stops when every ||Av - lambda v|| <= tol |lambda| (or tol ||A||, with relative_to="norm") and
    no extreme eigenvalue farther off than that can have been missed, but for one random start in
    a thousand. Without `sure`, or where it is not `below` a size that is small enough, it stops at
    the residuals: there are such eigenvalues, and perhaps others that are farther out. `memory`
    bounds the vectors that are held, `budget` the products; `start` holds vectors to begin near,
    half of whose length is made random; `leading` is how many Ritz vectors are kept beside.
    """
    number("leading", leading, 0, whole=True)
    request = Request(k, which, tol, relative_to, sure, below)
    request.check(operator, budget, memory)
    begin, draws = time.perf_counter(), generator(seed)
    operator.expect(min(budget, FEW))
    columns, noise = _start(operator, k, start, draws)
    krylov = Krylov(operator, columns, memory or request.usual_memory, draws, noise)
    status = _iterate(krylov, request, budget)
    ritz = krylov.ritz()
    found = _estimates(krylov, ritz, request, status, time.perf_counter() - begin)
    kept = request.select(ritz.values), ritz.values.abs().argsort(descending=True)[:leading]
    chosen, beside = (ritz.coordinates[:, places] for places in kept)
    images = krylov.image(chosen), krylov.image(beside)
    return Eigenpairs(found, krylov.lift(chosen), images[0], krylov.lift(beside), images[1])


def _start(
    operator: Operator, k: int, given: Tensor | None, draws: torch.Generator
) -> tuple[Tensor, float]:
    """k random vectors of about unit length, on top of the given ones; the noise of an entry."""
    noise = operator.size**-0.5
    like = torch.zeros((), dtype=operator.dtype, device=operator.device)
    columns = noise * gaussian((operator.size, k), draws, like)
    if given is None:
        return columns, noise
    a("start", given, Tensor, f"a tensor of shape ({operator.size}, at most k={k})")
    block = given[:, None] if given.ndim == 1 else given
    lengths = torch.linalg.vector_norm(block, dim=0, dtype=torch.float64)
    fits = block.ndim == 2 and block.shape[0] == operator.size and block.shape[1] <= k
    if not (fits and lengths.isfinite().all() and lengths.all()):
        raise SpiritlevelError(
            f"start needs finite vectors that are not zero, shape ({operator.size},) or "
            f"({operator.size}, at most k={k}); got shape {tuple(given.shape)}"
        )
    columns[:, : block.shape[1]] += (block / lengths).to(columns)
    return columns, noise


def _iterate(krylov: Krylov, request: Request, budget: int) -> Status:
    """Expand until the wanted eigenvalues are known to their tolerance."""
    look = 0
    with bar(budget, f"{request.which} eigenvalues") as progress:
        try:
            while krylov.products < budget:
                krylov.expand()
                progress.update()
                if krylov.complete:
                    return Status.CONVERGED
                seen = krylov.length > request.count
                if not (seen and (krylov.full or krylov.products >= look)):
                    continue
                ritz = krylov.ritz()
                if krylov.products >= look:
                    look = krylov.products + 1 + krylov.products // LOOKS
                    tolerances = request.tolerances(ritz.values, krylov.rounding)
                    ends, sure = request.ends(ritz.values), request.sure_of(ritz.values)
                    if all(known(krylov, group, ritz, tolerances, sure) for group in ends):
                        return Status.CONVERGED
                    worst = float(ritz.residuals[request.select(ritz.values)].max())
                    progress.set_postfix_str(f"residual {worst:.1e}")
                if krylov.full and krylov.products < budget:
                    kept = request.keep(ritz.values, krylov.capacity)
                    krylov.restart(ritz.coordinates[:, kept])
        except KeyboardInterrupt:
            if not keeps_what_is_done() or krylov.length <= request.count:
                raise
            return Status.INTERRUPTED
    return Status.BUDGET


def _estimates(
    krylov: Krylov, ritz: Ritz, request: Request, status: Status, seconds: float
) -> tuple[Estimate, ...]:
    """Ritz values with their errors; those that are not known have the status of the whole.

    Where nobody looked for what was missed there may be eigenvalues beyond them.
    """
    tolerances = request.tolerances(ritz.values, krylov.rounding)
    ends, sure = request.ends(ritz.values), request.sure_of(ritz.values) or krylov.complete
    errors = bounds(krylov, ends, ritz, tolerances) if sure else ritz.residuals
    done = (errors <= tolerances) | krylov.complete
    above = {i for group in ends for end in group if end.sign > 0 for i in end.members}
    sides = {i: Status.LOWER_BOUND if i in above else Status.UPPER_BOUND for i in range(len(done))}
    return tuple(
        Estimate(
            value=float(ritz.values[i]),
            residual=float(ritz.residuals[i]),
            bound=float(errors[i]) if sure else None,
            matvecs=krylov.products * krylov.operator.cost,
            seconds=seconds,
            status=status if not done[i] else Status.CONVERGED if sure else sides[i],
            remedy="" if done[i] else "raise budget, or memory, or tol",
        )
        for i in request.select(ritz.values)
    )
