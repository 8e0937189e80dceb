"""An orthonormal basis that grows by products, and the small matrix that A becomes in it."""

from __future__ import annotations

import torch
from torch import Tensor

from spiritlevel.operators import Operator
from spiritlevel.tensors import gaussian


class Krylov:
    """A V_m = V_{m+p} C, with V orthonormal and C of shape (m + p, m), for p start vectors.

    Several start vectors find eigenvalues that are several times there, which one cannot. Every
    coefficient of C is kept, not only the band that is nonzero in exact arithmetic, so that the
    residual of a Ritz pair is known from C alone and is the true one, without one more product.
    Rows of `basis` are the vectors; they never leave the device.
    """

    def __init__(
        self, operator: Operator, start: Tensor, capacity: int, draws: torch.Generator
    ) -> None:
        """`start` holds one vector, or several as columns."""
        self.operator, self.draws = operator, draws
        columns = start[:, None] if start.ndim == 1 else start
        self.pending = columns.shape[1]
        self.capacity = min(capacity, operator.size)
        rows = min(self.capacity + self.pending, operator.size)
        self.basis = start.new_zeros((rows, operator.size))
        self.basis[: self.pending] = torch.linalg.qr(columns)[0].T
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

    def expand(self) -> None:
        """One product; its part outside the basis, if any, becomes the next vector."""
        j, known = self.length, self.length + self.pending
        w = self.operator.matvec(self.basis[j])
        size = float(w.norm())
        w, column = self._orthogonalize(w, known)
        rest = float(w.norm())
        self.products += 1
        self.length += 1
        self.coefficients[:known, j] = column
        if known == self.operator.size:
            self.pending -= 1
        elif rest > 100 * torch.finfo(w.dtype).eps * size:
            self.coefficients[known, j] = rest
            self.basis[known] = w / rest
        else:  # an invariant subspace: go on from somewhere new
            fresh, _ = self._orthogonalize(gaussian(len(w), self.draws, w), known)
            self.basis[known] = fresh / fresh.norm()

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values in rising order, their coordinates, and the norms of their residuals."""
        m = self.length
        square = self.coefficients[:m, :m]
        values, vectors = torch.linalg.eigh((square + square.T) / 2)
        image = self.coefficients[: m + self.pending, :m] @ vectors
        image[:m] -= vectors * values
        return values, vectors, image.norm(dim=0)

    def lift(self, coordinates: Tensor) -> Tensor:
        """Columns of coordinates as vectors of the space, one per column."""
        return self.basis[: self.length].T @ coordinates.to(self.basis)

    def image(self, coordinates: Tensor) -> Tensor:
        """A times `lift(coordinates)`, from what the products left behind."""
        m, known = self.length, self.length + self.pending
        return self.basis[:known].T @ (self.coefficients[:known, :m] @ coordinates).to(self.basis)

    def restart(self, coordinates: Tensor) -> None:
        """Keep some Ritz vectors and the last directions (thick restart, Wu and Simon, 2000)."""
        m, p, k = self.length, self.pending, coordinates.shape[1]
        kept = self.lift(coordinates).T
        square = coordinates.T @ self.coefficients[:m, :m] @ coordinates
        last = self.coefficients[m : m + p, :m] @ coordinates
        self.basis[:k] = kept
        self.basis[k : k + p] = self.basis[m : m + p].clone()
        self.coefficients.zero_()
        self.coefficients[:k, :k] = square
        self.coefficients[k : k + p, :k] = last
        self.length = k

    def _orthogonalize(self, w: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Twice is enough (Kahan and Parlett)."""
        known = self.basis[:count]
        column = torch.zeros(count, dtype=torch.float64, device="cpu")
        for _ in range(2):
            part = known @ w
            w = w - part @ known
            column += part.double().cpu()
        return w, column
