"""The largest eigenvalue over the orbit: a model of few vectors, refined where it is minimal.

For G psd, D = exp(-B t) and any Z, lambda_max(D G D) >= lambda_max(Y' D^2 Y) with
Y = G Z (Z' G Z)^-1/2: the model is a lower bound everywhere, costs no products to evaluate, and is
exact at the points whose top eigenvectors are in it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from spiritlevel.base.operator import Operator, scaled
from spiritlevel.base.progress import bar
from spiritlevel.orbit.balance import balance
from spiritlevel.orbit.cells import Array, Cells
from spiritlevel.spectral import Eigenpairs, Which, eigenpairs

VECTORS = 8  # that a look adds to the model: one eigenvector, and what else its Krylov space has
SIGNED = 2  # eigenpairs where the model is no bound: with one, some searches end out of balance
POWERS = (30, 100, 300, 1000)
# relative to the tolerance: where the gain of a step is too small for another one
FIRST, LAST = 2e-4, 2e-6
CLOSED = 2e-5  # the last where a gap is seen: a gap that stays open is searched on
CHEAP, CARE = 2**18, 1e-3  # numbers in a model that costs nothing, which is solved so much better
NOISE = 1e-6  # of the largest: Ritz values that say nothing
LOOSE = 1e-1  # residuals inside; the value that is reported is measured anew
KEPT = 24  # vectors in the model
OUTER = 12
LARGEST = 300.0  # log: sizes beyond it are those of cells without mass


Vectors = tuple[Tensor, Tensor, Tensor]  # Ritz values, Ritz vectors, their images
Near = Callable[[Tensor, int], Tensor]  # of D and a number: so many vectors to begin near


@dataclass(frozen=True)
class Model:
    """The model's vectors, a column for each parameter, or a few columns for each cell of many.

    With the columns y of a cell c, its part of the matrix is D_c^2 sum y y'. `index` is the cell of
    every column, `masses` are the sums of y'y by cell. In numpy, and into the same room every time:
    the threads of torch, and new memory, cost more than the products.
    """

    cells: Cells
    columns: Array  # (vectors, parameters)
    index: Array
    masses: Array

    @functools.cached_property
    def live(self) -> Array:
        """log of the masses; cells without one are out of it."""
        with np.errstate(divide="ignore"):
            return np.log(self.masses)

    @functools.cached_property
    def _room(self) -> tuple[Array, Array]:
        return np.empty_like(self.columns), np.empty_like(self.columns)

    @functools.cached_property
    def alone(self) -> bool:
        """Whether every cell has one column."""
        return len(self.index) == len(self.masses)

    def scaled(self, t: Array) -> tuple[Array, float]:
        """The columns times D(t) over a common factor, and the logarithm of its square.

        With it the largest part of the matrix is 1, however far a line search reaches.
        """
        logs = -2 * self.cells.log_scales(t)
        factor = float((logs + self.live).max())
        sizes = np.exp(np.minimum(0.5 * (logs - factor), LARGEST)) * (self.masses > 0)
        sizes = sizes if self.alone else sizes[self.index]
        return np.multiply(self.columns, sizes, out=self._room[0]), factor

    def by_cell(self, values: Array) -> Array:
        """Sums of one number per column."""
        return values if self.alone else np.bincount(self.index, values, len(self.masses))

    def log_norm(self, t: Array, power: int, free: Array) -> tuple[float, Array]:
        """log of the Schatten norm of the model, and its gradient in the free generators."""
        columns, factor = self.scaled(t)
        values, vectors = np.linalg.eigh(columns @ columns.T)
        top = values[-1]
        scaled_values = np.maximum(values / top, 0.0)
        total = (scaled_values**power).sum()
        inner = (vectors * (scaled_values ** (power - 1) / total)) @ vectors.T / top
        slope = -2 * (self.cells.exponents.T @ self._parts(columns, inner))
        return float(factor + np.log(top) + np.log(total) / power), slope * free

    def _parts(self, columns: Array, inner: Array) -> Array:
        """y' M y by cell."""
        image = np.matmul(inner, columns, out=self._room[1])
        return self.by_cell(np.einsum("ij,ij->j", image, columns))

    def log_top(self, t: Array) -> float:
        """log of the largest eigenvalue of the model."""
        columns, factor = self.scaled(t)
        return factor + float(np.log(np.linalg.eigvalsh(columns @ columns.T)[-1]))

    def dual(self, t: Array, power: int) -> Array:
        """Masses by cell of the psd weights that the Schatten norm gives: any such are a bound."""
        columns, _ = self.scaled(t)
        values, vectors = np.linalg.eigh(columns @ columns.T)
        spread = np.maximum(values / values[-1], 0.0) ** (power - 1)
        inner = (vectors * (spread / spread.sum())) @ vectors.T
        return np.maximum(self._parts(self.columns, inner), 0.0)


def model_of(cells: Cells, images: Tensor, inner: Tensor) -> Model:
    """From Y = G Z and Z' G Z, orthonormalized."""
    return _modelled(cells, (images @ _root(inner).to(images)).double().cpu().numpy())


def _root(inner: Tensor) -> Tensor:
    """R with R R' the inverse of Z' G Z; directions that are noise are dropped."""
    values, vectors = torch.linalg.eigh(((inner + inner.T) / 2).double())
    keep = values > 1e-10 * values[-1]
    return vectors[:, keep] / values[keep].sqrt()


def expected(images: Tensor, inner: Tensor, d: Tensor, count: int) -> Tensor:
    """The top eigenvectors of D Y Y' D, of what is known of D G D: near those of the whole."""
    found = d[:, None] * (images @ _root(inner).to(images))
    return found @ torch.linalg.eigh(found.T @ found)[1][:, -count:].flip(1)


def _modelled(cells: Cells, y: Array) -> Model:
    """The rows of parameters by cell, those of a cell with very many as the root of their Gram."""
    rows, index, start, first = [], [], 0, 0
    for name, shape in cells.shapes.items():
        part = tuple(cells.parts[name])
        count = cells.parts[name].numel()
        piece = y[start : start + shape.numel()]
        own = np.broadcast_to(np.arange(count).reshape(part), tuple(shape)).reshape(-1)
        if len(own) > y.shape[1] * count:
            piece, own = _compressed(piece, own, count)
        rows.append(piece)
        index.append(own + first)
        start, first = start + shape.numel(), first + count
    joined, places = np.concatenate(rows), np.concatenate(index)
    masses = np.bincount(places, (joined**2).sum(1), first)
    return Model(cells, np.ascontiguousarray(joined.T), places, masses)


def _compressed(rows: Array, index: Array, count: int) -> tuple[Array, Array]:
    """As few rows for every cell as there are vectors, with the same Gram matrices."""
    size = rows.shape[1]
    grams = np.empty((count, size, size))
    for i in range(size):
        for j in range(i + 1):
            sums = np.bincount(index, rows[:, i] * rows[:, j], count)
            grams[:, i, j] = grams[:, j, i] = sums
    values, vectors = np.linalg.eigh(grams)
    roots = np.sqrt(np.maximum(values, 0.0))[..., None] * vectors.swapaxes(1, 2)
    return roots.reshape(-1, size), np.repeat(np.arange(count), size)


def minimize_model(
    model: Model,
    start: Array,
    free: Array,
    tol: float,
    powers: tuple[int, ...] = POWERS,
    last: float = LAST,
) -> Array:
    """Quasi-Newton on Schatten norms of rising power, far below a gap of tol; no products."""
    t = start.copy()
    tol = tol if model.columns.size > CHEAP else CARE * tol
    for power in powers:
        gain = (last if power == powers[-1] else FIRST) * tol
        result = minimize(
            lambda x, p=power: model.log_norm(x, p, free),
            t,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 200, "ftol": max(gain, 1e-12), "gtol": max(FIRST * tol, 1e-9)},
        )
        t = result.x
    return t


@dataclass(frozen=True)
class Found:
    """Where the norm is least, the norm there, and below what it cannot go."""

    value: float
    t: Array
    lower_bound: float
    products: float
    converged: bool
    top: Vectors  # what is known of the largest eigenvalues there
    near: Near | None = None  # what is known of them elsewhere


@dataclass(frozen=True)
class _Point:
    """Eigenpairs of D A D at some t."""

    t: Array
    d: Tensor
    pairs: Eigenpairs

    @property
    def norm(self) -> float:
        return abs(self.pairs[0].value)

    @property
    def upper(self) -> float:
        """A Ritz value is a lower estimate; with its bound it is an upper one."""
        bound = self.pairs[0].bound
        return math.inf if bound is None else self.norm + bound


class Looker:
    """Looks at points of an orbit, and counts the products.

    The first eigenpair is the norm; the other vectors of a model need not be exact. Where it is not
    `below` what would end the search, it is only known to be no less.
    """

    def __init__(self, operator: Operator, cells: Cells, which: Which, pairs: int = 1) -> None:
        self.operator, self.cells, self.pairs = operator, cells, pairs
        self.which: Which = which
        self.products, self.looks = 0.0, 0

    def look(self, t: Array, tol: float, seed: int, below: float | None = None) -> _Point:
        return self._at(t, seed, tol=tol, below=below)

    def glance(self, t: Array, seed: int) -> _Point:
        """As many products as a look adds vectors, and no more."""
        return self._at(t, seed, tol=0.0, sure=False, budget=VECTORS)

    def _at(self, t: Array, seed: int, **settings: Any) -> _Point:
        # every time from another random start: the last top vector would hide a crossing
        like = torch.zeros((), dtype=self.operator.dtype, device=self.operator.device)
        d = self.cells.spread(np.exp(-self.cells.log_scales(t)), like)
        self.looks += 1
        count = min(self.pairs, self.operator.size)
        settings |= {"which": self.which, "leading": max(count, VECTORS)}
        found = eigenpairs(scaled(self.operator, d), count, seed=seed + self.looks, **settings)
        self.products += found[0].matvecs
        return _Point(t, d, found)


def least_eigenvalue(
    operator: Operator,
    cells: Cells,
    blocks: list[Array],
    start: Array,
    free: Array,
    tol: float,
    seed: int,
) -> Found:
    """min over t of lambda_max(D G D), G psd: to a gap of tol between two rigorous ends."""
    orbit = Looker(operator, cells, "largest")
    best = here = orbit.glance(start, seed)
    if not best.norm > 0:  # flat to rounding
        return Found(0.0, start, 0.0, orbit.products, True, _top(best))
    zs, ys, bound, near = here.d.new_empty(0), here.d.new_empty(0), 0.0, None
    with bar(OUTER, "orbit minimum") as progress:
        for _ in range(OUTER):
            z, y = _cuts(here, 1.0)
            zs, ys = (z, y) if not len(zs) else (torch.cat([zs, z], 1), torch.cat([ys, y], 1))
            zs, ys = zs[:, -KEPT:], ys[:, -KEPT:]
            inner = zs.T @ ys
            model, near = model_of(cells, ys, inner), functools.partial(expected, ys, inner)
            t = minimize_model(model, best.t, free, tol, last=CLOSED)
            masses = model.dual(t, POWERS[-1])
            lower = balance(cells.exponents, masses, blocks, t * free, free)
            bound = max(bound, lower.lower_bound)
            here = orbit.look(t, tol / 4, seed, below=(1 + tol) * bound or None)
            best = here if here.upper < best.upper or here.norm < best.norm else best
            progress.update()
            progress.set_postfix_str(f"{best.upper:.4g} >= {bound:.4g}")
            if best.upper <= (1 + tol) * bound:
                break
    if best.pairs[0].bound is None:
        best = orbit.look(best.t, tol / 4, seed)
    converged = best.upper <= (1 + tol) * bound
    bound = min(bound, best.norm)  # a Ritz value may lie below the bound by its residual
    return Found(best.norm, best.t, bound, orbit.products, converged, _top(best), near)


def least_norm(
    operator: Operator, cells: Cells, start: Array, free: Array, tol: float, seed: int
) -> Found:
    """min over t of ||D H D||, H indefinite: the model of the current point only, and backtracking.

    Convex, but the model is no bound for an indefinite matrix; the certificate is the subgradient.
    At the point where it was made the model has the subgradients of the norm itself, so that a
    model that has nothing to gain is as good as a look that gained nothing.
    """
    orbit = Looker(operator, cells, "magnitude", SIGNED)
    first, converged = orbit.look(start, LOOSE, seed), False
    if not first.norm > 0:
        return Found(0.0, start, 0.0, orbit.products, True, _top(first))
    t = minimize_model(signed_model(cells, first), start, free, tol)
    best = orbit.look(t, tol / 4, seed)
    if best.norm > first.upper:  # a model that is no bound may mislead
        best = orbit.look(start, tol / 4, seed)
    with bar(OUTER, "orbit minimum") as progress:
        for _ in range(OUTER):
            model = signed_model(cells, best)
            wanted = minimize_model(model, best.t, free, tol)
            if model.log_top(best.t) - model.log_top(wanted) <= tol / 4:
                converged = True
                break
            step, found = 1.0, None
            while found is None and step > 0.05:
                tried = orbit.look(best.t + step * (wanted - best.t), tol / 4, seed)
                found = tried if tried.norm < best.norm else None
                step /= 3
            progress.update()
            gain = best.norm - found.norm if found else 0.0
            best = found or best
            if gain <= tol / 4 * best.norm:
                converged = True
                break
    return Found(best.norm, best.t, 0.0, orbit.products, converged, _top(best))


def _top(point: _Point) -> Vectors:
    """Whatever Ritz vectors the look at a point left, with their Rayleigh quotients."""
    v, image = point.pairs.leading, point.pairs.leading_images
    return (v.double() * image).sum(0), v, image


def _cuts(point: _Point, sign: float) -> tuple[Tensor, Tensor]:
    """Z = D v / sqrt(theta) and Y = A Z in base coordinates, for Ritz values of one sign."""
    values, vectors, images = _top(point)
    keep = sign * values > NOISE * values.abs().max()
    size = values[keep].abs().sqrt().to(point.d)
    z = point.d[:, None] * vectors[:, keep] / size
    return z, sign * images[:, keep] / point.d[:, None] / size


def signed_model(cells: Cells, point: _Point) -> Model:
    """Positive and negative eigenvectors in blocks of their own."""
    cuts = [_cuts(point, sign) for sign in (1.0, -1.0)]
    found = [model_of(cells, y, z.T @ y) for z, y in cuts if z.shape[1]]
    columns, start = [], 0
    for model in found:
        wide = np.zeros((sum(len(one.columns) for one in found), model.columns.shape[1]))
        wide[start : start + len(model.columns)] = model.columns
        columns.append(wide)
        start += len(model.columns)
    index = np.concatenate([model.index for model in found])
    masses = np.sum([model.masses for model in found], axis=0)
    return Model(cells, np.concatenate(columns, axis=1), index, masses)
