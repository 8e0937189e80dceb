"""One point for every orbit: where the weight norm is least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh
from scipy.sparse import csr_matrix, diags, hstack, identity
from scipy.sparse.linalg import aslinearoperator, cg
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.balance import balance
from spiritlevel.orbit.cells import Array, cells
from spiritlevel.orbit.program import layers, vanishing
from spiritlevel.symmetry import Certificate, Group
from spiritlevel.symmetry.find import group_of

SWEEPS = 3  # of coordinate descent: enough for Newton's method to be near
NORMAL = 4000  # generators, for a dense Hessian of the norm
SINGULAR = 1e-12  # of a matrix with unit diagonal: below it a direction moves nothing
ROUNDS = 60  # after which a minimum that is not found may not be there
PATIENCE = 1000
FAR = 2.0  # log-scales that one step may change
NEAR = 1e-8  # log-scales: from here on rounding decides, not the slope
REACHED = 1e-14
EMPTY = np.zeros(0), np.zeros((0, 0))
INEXACT = 1e-10  # relative residual of a step by conjugate gradients


@dataclass(frozen=True)
class Representative:
    """The point of an orbit with the least weight norm, and the proof that it predicts the same.

    `one_sided` names the rescalings of weights that can vanish while no other weight grows: those
    of dead units, or before a norm. They have no least norm. What one rescaling alone moves so is
    given squares with the sum 1; where several share weights, the sums are fixed by the
    architecture.
    """

    objective: Objective
    log_scales: Tensor
    one_sided: tuple[str, ...]
    certificate: Certificate

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of it."""
        if not self.one_sided:
            return ()
        count = len(self.one_sided)
        return (f"{count} one-sided rescalings have no least norm: their weights have unit size",)


@set_apart()
def representative(objective: Objective, group: Group | None = None) -> Representative:
    """min over t of sum_i theta_i^2 exp(2 (B t)_i): the same point from everywhere on the orbit.

    Convex, and at its minimum the squares on the two sides of every rescaling are equal. What has
    no minimum is brought to unit size. No curvature is needed, and data for the proof only.
    """
    only_objectives(objective)
    group = group_of(objective, group)
    if not group.dim:
        same = Certificate("exact", 0.0, 0.0, 0.0, 0.0, objective.examples)
        return Representative(objective, group.identity(), (), same)
    grid = cells(group, objective.shapes)
    masses = grid.gather(objective.vector.double() ** 2)
    found, touched = least_norm(grid.exponents, masses, layers(group))
    log_scales = torch.from_numpy(found)
    twin = group.apply(objective, log_scales)
    names = tuple(group.generators[i].name for i in np.flatnonzero(touched))
    return Representative(twin, log_scales, names, group.verify(objective, twin).require())


def least_norm(exponents: csr_matrix, masses: Array, blocks: list[Array]) -> tuple[Array, Array]:
    """The log-scales of the representative, and which generators have no least norm."""
    alive = masses > 0
    rest = alive & ~_cascade(exponents, alive)
    t = balance(-exponents, masses * rest, blocks, sweeps=SWEEPS).t
    t, settled, sure = _newton(exponents[rest], masses[rest], None, t, ROUNDS)
    if not (settled and sure):
        together = vanishing(-exponents, rest)
        rest &= ~together
        start = np.zeros_like(t) if together.any() else t
        t, settled, _ = _newton(exponents[rest], masses[rest], None, start, PATIENCE)
    lost, unbound = alive & ~rest, np.zeros(len(t), dtype=bool)
    if lost.any() and settled:
        ways, sizes = _ways(exponents[rest]), _sizes(exponents[lost], exponents[rest])
        moved = masses[lost] * np.exp(2 * (exponents[lost] @ t))
        along = csr_matrix(exponents[lost] @ ways)
        unbound = abs(ways) @ _moves(along) > 0
        z, settled, _ = _newton(along, moved, sizes, np.zeros(len(_moves(along))), PATIENCE)
        t = t + ways @ z
    if not settled:
        raise SpiritlevelError(
            "objective has weights too many powers of ten apart for its least weight norm to be "
            "found: give its twin orbit.balanced(objective)"
        )
    return t, unbound


def _cascade(exponents: csr_matrix, alive: Array) -> Array:
    """Cells of generators with weights on one side only, when such cells are left out."""
    up, down = csr_matrix(exponents.maximum(0)), csr_matrix((-exponents).maximum(0))
    rest = alive.copy()
    while True:
        lonely = (up.T @ rest > 0) ^ (down.T @ rest > 0)
        if not lonely.any():
            return alive & ~rest
        rest &= ~(abs(exponents) @ lonely > 0)


def _moves(exponents: csr_matrix) -> Array:
    """Which generators move any of these cells."""
    return exponents.getnnz(axis=0) > 0


def _ways(rest: csr_matrix) -> csr_matrix:
    """A basis of the log-scales that leave all of these cells as they are: B t = 0."""
    busy = _moves(rest)
    free, used = busy.copy(), csr_matrix(abs(rest) > 0, dtype=float)
    while True:  # the last to move a cell has to stay: mostly all are seen to stay in this way
        last = free & (used.T @ (used @ free == 1) > 0)
        if not last.any():
            break
        free &= ~last
    every = csr_matrix(identity(len(busy)))
    values, vectors = eigh((rest[:, free].T @ rest[:, free]).toarray()) if free.any() else EMPTY
    kernel = vectors[:, values <= SINGULAR * values.max(initial=0.0)]
    kernel[abs(kernel) < SINGULAR] = 0.0
    return csr_matrix(hstack([every[:, ~busy], every[:, free] @ kernel]))


def _sizes(lost: csr_matrix, rest: csr_matrix) -> Array:
    """n_c for cells without a minimum, so that sum_c |B_cj| n_c = 1 for a generator j alone."""
    load = np.asarray(abs(lost).sum(axis=0)).reshape(-1)
    shares = [load * ~_moves(rest), load]  # by those that move nothing else, where there are such
    alone, every = ((abs(lost).sign() @ diags(n)).max(axis=1).toarray()[:, 0] for n in shares)
    return 1 / np.where(alone > 0, alone, every)


def _newton(
    exponents: csr_matrix, masses: Array, sizes: Array | None, start: Array, rounds: int
) -> tuple[Array, bool, bool]:
    """min over t of sum_c m_c exp(2 (B t)_c) / 2 - n_c (B t)_c; if it was reached, and for sure.

    Damped steps: one is short enough where the slope along it has not turned round.
    """
    t, chosen = start.copy(), _moves(exponents)
    table = csr_matrix(exponents[:, chosen])
    wanted = 0.0 if sizes is None else table.T @ sizes
    weights, before = masses * np.exp(2 * (exponents @ t)), np.inf
    for _ in range(rounds if chosen.any() else 0):
        slope = table.T @ weights - wanted
        step, sure = solved(table, weights, -slope)
        change, down = table @ step, float(slope @ step)
        far = float(np.abs(change).max())
        length = min(1.0, FAR / max(far, REACHED))
        while far > NEAR:
            moved = weights * np.exp(2 * length * change)
            if (table.T @ moved - wanted) @ step <= -down / 10 or length < REACHED:
                break
            length /= 2
        t[chosen] += length * step
        weights = masses * np.exp(2 * (exponents @ t))
        if far <= REACHED or (far <= NEAR and far >= before / 2):
            return t, True, sure
        before = far
    return t, not chosen.any(), True


def _factored(dense: Array) -> tuple[Array, bool] | None:
    """Cholesky's factor; None of a matrix that is singular, or as good as that."""
    try:
        factor = cho_factor(dense)
    except LinAlgError:
        return None
    return factor if factor[0].diagonal().min() ** 2 > SINGULAR else None


def solved(exponents: csr_matrix, weights: Array, slope: Array) -> tuple[Array, bool]:
    """The shortest solution of 2 B'WB x = slope, in units in which the diagonal is 1.

    It is for sure where what is taken for singular moves no cell, however light.
    """
    units = (exponents.multiply(exponents).T @ (2 * weights)) ** -0.5
    if len(slope) > NORMAL:
        table = csr_matrix(diags((2 * weights) ** 0.5) @ exponents @ diags(units))
        normal = aslinearoperator(table.T) @ aslinearoperator(table)
        return units * cg(normal, units * slope, rtol=INEXACT, maxiter=PATIENCE)[0], True
    dense = (exponents.T @ diags(2 * weights) @ exponents).toarray() * np.outer(units, units)
    factor = _factored(dense)
    if factor is not None:
        return units * cho_solve(factor, units * slope), True
    values, vectors = eigh(dense)
    large = values > SINGULAR
    found = vectors[:, large] @ ((vectors[:, large].T @ (units * slope)) / values[large])
    still = units[:, None] * vectors[:, ~large]
    sure = bool((abs(exponents @ still) <= NEAR * abs(exponents) @ abs(still)).all())
    return units * found, sure
