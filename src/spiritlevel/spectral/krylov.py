"""An orthonormal basis that grows by products, and the small matrix that A becomes in it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spiritlevel.base.operator import SKEW, Operator, not_symmetric
from spiritlevel.base.tensors import gaussian

ROUNDING = 10  # in units of the last place of the norm: what a product and its sums may err by
UNDERFLOW = 1e-140  # squares of smaller numbers come to nothing
BLAS = 2**31  # numbers in a matrix: with more, products of CUDA read memory that is not theirs
NOTHING = 1e-290  # beyond it not even rounding errors have digits


class Ritz(NamedTuple):
    """Ritz values in rising order, their coordinates as columns, the norms of their residuals."""

    values: Tensor
    coordinates: Tensor
    residuals: Tensor


class Krylov:
    """A V_m = V_{m+p} C, with V orthonormal and C of shape (m + p, m), for p start vectors.

    Several start vectors find eigenvalues that are several times there, which one cannot. Every
    coefficient of C is kept, not only the band that is nonzero in exact arithmetic, so that the
    residual of a Ritz pair is known from C alone and is the true one, without one more product.
    Rows of `basis` are the vectors; they never leave the device. `past` holds the C of the bases
    before each restart, and where the vectors that it went on from were in it.
    """

    def __init__(
        self,
        operator: Operator,
        start: Tensor,
        capacity: int,
        draws: torch.Generator,
        noise: float = 0.0,
    ) -> None:
        """`start` holds one vector, or several as columns; `noise` is the deviation of every entry.

        Kept as `noise` is that of the orthonormal start: at least so much of it is random.
        """
        self.operator, self.draws = operator, draws
        columns = start[:, None] if start.ndim == 1 else start
        self.pending = self.width = columns.shape[1]
        self.capacity = min(capacity, operator.size)
        rows = min(self.capacity + self.pending, operator.size)
        self.basis = start.new_zeros((rows, operator.size))
        basis, mix = torch.linalg.qr(columns)
        self.basis[: self.pending] = basis.T
        self.noise = noise / float(torch.linalg.matrix_norm(mix.double(), 2)) if noise else 0.0
        self.past: list[tuple[Tensor, int]] = []
        self.begin = 0
        self.norm = 0.0  # of the longest product: at most that of A
        self.coefficients = torch.zeros(rows, self.capacity, dtype=torch.float64, device="cpu")
        self.length = 0
        self.products = 0

    @property
    def full(self) -> bool:
        return self.length == self.capacity

    @property
    def complete(self) -> bool:
        """Whether the basis spans the whole space, so that Ritz pairs are eigenpairs."""
        return self.length == self.operator.size

    @property
    def rounding(self) -> float:
        """What the precision of the operator costs after so many products, relative to the norm."""
        return ROUNDING * torch.finfo(self.operator.dtype).eps * max(self.products, 1) ** 0.5

    def expand(self) -> None:
        """One product; its part outside the basis, if any, becomes the next vector."""
        j, known = self.length, self.length + self.pending
        w = self.operator @ self.basis[j]
        self.norm = max(self.norm, length(w))
        w, column = self._orthogonalize(w, known)
        rest = length(w)
        self.products += 1
        self.length += 1
        self.coefficients[:known, j] = column
        if known == self.operator.size:
            self.pending -= 1
            return
        noise = ROUNDING * torch.finfo(w.dtype).eps * self.norm
        noise = noise if noise > NOTHING else 0.0
        if rest <= noise:  # an invariant subspace, to rounding: noise opens it to all the others
            fresh, _ = self._orthogonalize(gaussian(len(w), self.draws, w), known)
            w = w + (noise or 1.0) / length(fresh) * fresh
            rest = length(w) if noise else 0.0
        self.coefficients[known, j] = rest
        self.basis[known] = w / length(w)

    def ritz(self) -> Ritz:
        m = self.length
        square = self.coefficients[:m, :m]
        # what is near nothing is cut off in one column and not in another
        unit = max(float(square.abs().max()), 1e10 * NOTHING)
        skewness = float(((square - square.T) / unit).norm() / (square / unit).norm().clamp(min=1))
        if skewness > SKEW:
            raise not_symmetric(self.operator, skewness)
        values, vectors = torch.linalg.eigh((square + square.T) / 2)
        image = self.coefficients[: m + self.pending, :m] @ vectors
        image[:m] -= vectors * values
        return Ritz(values, vectors, unit * (image / unit).norm(dim=0))

    def lift(self, coordinates: Tensor) -> Tensor:
        """Columns of coordinates as vectors of the space, one per column."""
        return combined(self.basis[: self.length], coordinates)

    def image(self, coordinates: Tensor) -> Tensor:
        """A times `lift(coordinates)`, from what the products left behind."""
        m, known = self.length, self.length + self.pending
        return combined(self.basis[:known], self.coefficients[:known, :m] @ coordinates)

    def restart(self, coordinates: Tensor) -> None:
        """Keep some Ritz vectors and the last directions (thick restart, Wu and Simon, 2000)."""
        m, p, k = self.length, self.pending, coordinates.shape[1]
        self.past.append((self.coefficients[: m + p, :m].clone(), self.begin))
        self.begin = k
        kept = self.lift(coordinates).T
        square = coordinates.T @ self.coefficients[:m, :m] @ coordinates
        last = self.coefficients[m : m + p, :m] @ coordinates
        self.basis[:k] = kept
        self.basis[k : k + p] = self.basis[m : m + p].clone()
        self.coefficients.zero_()
        self.coefficients[:k, :k] = square
        self.coefficients[k : k + p, :k] = last
        self.length = k

    def shares(self, value: float) -> Tensor:
        """What eigenvectors of the eigenvalue `value` have of the start at most, in falling order.

        The i-th is for the i-th of several orthonormal ones. Through every basis, from the vectors
        that it began with to those that it left to the next. Rounding takes a few eps ||A||^2 / r^2
        beside a pair that had the residual r at a restart: a converged one loses its own share.
        """
        m, p = self.length, self.pending
        path = torch.eye(self.width, dtype=torch.float64, device="cpu")
        least = torch.ones(self.width, dtype=torch.float64, device="cpu")
        for coefficients, begin in [*self.past, (self.coefficients[: m + p, :m], self.begin)]:
            shifted = coefficients.clone()
            shifted.diagonal().sub_(value)
            products = shifted.shape[1]
            free = torch.linalg.qr(shifted, mode="complete")[0][:, products:]
            path = path @ free[begin : begin + path.shape[1]]
            sizes = torch.linalg.svdvals(path)
            least[: len(sizes)] = torch.minimum(least[: len(sizes)], sizes)
            least[len(sizes) :] = 0.0
            back, failed = torch.linalg.inv_ex(free[products:])
            if failed or not back.isfinite().all():
                break  # what was known before stays true
            path = path @ back
        return least

    def _orthogonalize(self, w: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Twice is enough (Kahan and Parlett)."""
        known = self.basis[:count]
        column = torch.zeros(count, dtype=torch.float64, device="cpu")
        for _ in range(2):
            part = projected(known, w)
            w = w - combined(known, part)
            column += part.double().cpu()
        return w, column


def projected(rows: Tensor, vector: Tensor) -> Tensor:
    """Inner products of a vector with every row."""
    if len(rows) * rows.stride(0) < BLAS:
        return rows @ vector
    parts = [zip(row.split(BLAS // 4), vector.split(BLAS // 4), strict=True) for row in rows]
    return torch.stack([torch.stack([a @ b for a, b in pieces]).sum() for pieces in parts])


def combined(rows: Tensor, coordinates: Tensor) -> Tensor:
    """Sums of rows, one for a vector of coordinates, one per column for a matrix."""
    weights = coordinates.to(rows)
    if len(rows) * rows.stride(0) < BLAS:
        return rows.T @ weights
    made = rows.new_zeros(*weights.shape[1:], rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        made.addcmul_(weight[..., None], row)
    return made.movedim(-1, 0)


def length(vector: Tensor) -> float:
    """The norm, in double precision, also where squares come to nothing."""
    found = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if found > UNDERFLOW:
        return found
    top = float(vector.abs().max())
    if top < NOTHING:
        return 0.0
    return top * float(torch.linalg.vector_norm(vector / top, dtype=torch.float64))
