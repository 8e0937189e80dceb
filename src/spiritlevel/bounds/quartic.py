"""What one unit alone adds to a divergence, least over all of its scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from spiritlevel.orbit.cells import Array

POLISHED = 3  # steps of Newton's method on the roots
Side = tuple[Array, Array, Array]  # a, b, n


@dataclass(frozen=True)
class Pairs:
    """Generators with a cell that they alone scale up, and one that they alone scale down."""

    generators: Array
    up: Array  # cells
    down: Array


@dataclass(frozen=True)
class Units:
    """The sum of the least values, where they are, and the sizes of what is added."""

    value: float
    t: Array
    size: float


def paired(exponents: csr_matrix) -> Pairs:
    """The pairs of cells e_j and -e_j; the rows of `exponents` are distinct."""
    dim = int(exponents.shape[1])  # type: ignore[index]
    places = np.full((2, dim), -1)
    for row in np.flatnonzero(np.diff(exponents.indptr) == 1):
        entry = exponents.indptr[row]
        if abs(exponents.data[entry]) == 1:
            places[int(exponents.data[entry] < 0), exponents.indices[entry]] = row
    generators = np.flatnonzero((places >= 0).all(axis=0))
    return Pairs(generators, places[0, generators], places[1, generators])


def least(up: Side, down: Side, pull: Array, start: Array) -> Units:
    """min over t of a e^{2t}/2 - b e^t + c e^{-2t}/2 - d e^{-t} - (n - m - r) t, for every unit.

    Where the slope is 0, u = e^t solves a u^4 - b u^3 - (n - m - r) u^2 + d u - c = 0: the best of
    the positive roots. In units of e^start, so that the coefficients are of one size.
    """
    if not len(pull):
        return Units(0.0, start, 0.0)
    v = np.exp(start)
    a, b, c, d = up[0] * v * v, up[1] * v, down[0] / v / v, down[1] / v
    k = up[2] - down[2] - pull
    u = _roots(np.stack([a, -b, -k, d, -c]))
    for _ in range(POLISHED):
        slope = (a * u - b) * u - (c / u - d) / u - k
        curve = (2 * a * u - b) * u + (2 * c / u - d) / u
        step = np.where(curve > 0, slope / np.where(curve > 0, curve, 1.0), 0.0)
        u = u * np.exp(-np.clip(step, -1, 1))
    values = (a * u / 2 - b) * u + (c / u / 2 - d) / u - k * (np.log(u) + start)
    best = values.argmin(axis=0), np.arange(len(pull))
    u = u[best]
    sizes = a * u * u + abs(b) * u + (c / u + abs(d)) / u + abs(k) * (abs(np.log(u)) + abs(start))
    return Units(float(values[best].sum()), np.log(u) + start, float(sizes.sum()))


def _roots(coefficients: Array) -> Array:
    """Candidates for the positive roots of a quartic, (4, units), and never none: 1 is always one.

    The roots of double ones are found as complex pairs: their sizes are near them.
    """
    leading = coefficients[1:] / coefficients[0]
    companion = np.zeros((leading.shape[1], 4, 4))
    companion[:, 0, :] = -leading.T
    companion[:, 1:, :3] = np.eye(3)
    roots = np.abs(np.linalg.eigvals(companion)).T
    return np.concatenate([np.where(roots > 0, roots, 1.0), np.ones((1, roots.shape[1]))])
