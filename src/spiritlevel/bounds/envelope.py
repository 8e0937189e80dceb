"""Sums of a u^2 / 2 - b u - n log u over u = exp(B t), minimized and bounded from below."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from spiritlevel.bounds.quartic import least, paired
from spiritlevel.orbit.cells import Array
from spiritlevel.orbit.representative import solved

ROUNDS = 200  # of Newton's method
FAR = 2.0  # log-scales that one step may change
FLAT = 1e-2  # of n: curvature where there is none, so that steps are finite
FALLS = 1e-4  # of what the slope promises: less is no descent
SHORTEST = 1e-10  # of a step
REACHED = 1e-15  # of the sizes that are added: a smaller promise is rounding
LIGHT = 1e-9  # of n: what a cell at rest may give to others
REFINED = 4
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Sum:
    """constant + sum_c f_c(x_c), f = a e^{2x} / 2 - b e^x - n x, a > 0, n > 0, at x = B t.

    With `convex` each f is replaced by its convex envelope: e^x is held at b / a in the first two
    terms where it is below, as they are least there.
    """

    exponents: csr_matrix
    a: Array
    b: Array
    n: Array
    constant: float
    size: float  # the sum of the sizes of what the constant is made of
    convex: bool = False

    @property
    def dim(self) -> int:
        return int(self.exponents.shape[1])  # type: ignore[index]

    def terms(self, t: Array) -> tuple[Array, Array, Array]:
        """f, its slope and its curvature, for every cell."""
        x = self.exponents @ t
        u = np.exp(x)
        held = (self.a * u < self.b) if self.convex else np.zeros(len(x), dtype=bool)
        u = np.where(held, self.b / self.a, u)
        values = (self.a * u / 2 - self.b) * u - self.n * x
        slopes = np.where(held, 0.0, (self.a * u - self.b) * u) - self.n
        return values, slopes, np.where(held, 0.0, (2 * self.a * u - self.b) * u)

    def value(self, t: Array) -> float:
        return float(self.terms(t)[0].sum()) + self.constant

    def weight(self, t: Array) -> float:
        """The sum of the sizes of everything that is added: rounding is relative to it."""
        x = self.exponents @ t
        u = np.exp(x)
        return float((self.a * u * u + abs(self.b) * u + self.n * abs(x)).sum()) + self.size

    @property
    def envelope(self) -> Sum:
        return replace(self, convex=True)


def merged(exponents: csr_matrix, a: Array, b: Array, n: Array) -> tuple[csr_matrix, Array]:
    """Cells with the same row of B as one: the rows, and the sums of (a, b, n) over each."""
    exponents.sort_indices()
    keys = exponents @ np.random.default_rng(0).random(int(exponents.shape[1]))  # type: ignore[index]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    rows = csr_matrix(exponents[first])
    if abs(rows[place] - exponents).sum() > 0:  # two rows with one key
        return exponents, np.stack([a, b, n])
    return rows, np.stack([np.bincount(place, weights=v, minlength=len(first)) for v in (a, b, n)])


def descended(total: Sum, start: Array) -> Array:
    """Newton's method from `start`, with curvature of at least FLAT n; the sum never rises."""
    t = start.copy()
    chosen = total.exponents.getnnz(axis=0) > 0
    table = csr_matrix(total.exponents[:, chosen])
    value = total.value(t)
    for _ in range(ROUNDS if chosen.any() else 0):
        _, slopes, curves = total.terms(t)
        slope = table.T @ slopes
        step, _ = solved(table, np.maximum(curves, FLAT * total.n) / 2, -slope)
        promised, rounding = -float(slope @ step), REACHED * total.weight(t)
        if not promised > rounding:
            break
        length = min(1.0, FAR / float(np.abs(table @ step).max()))
        while length > SHORTEST:
            moved = t.copy()
            moved[chosen] += length * step
            new = total.value(moved)
            if new <= value - FALLS * length * promised:
                break
            length /= 2
        else:  # no step is seen to fall: what is left is rounding
            break
        t, value = moved, new
    return t


def below(total: Sum, t: Array, reach: float) -> tuple[float, Array]:
    """A lower bound of the sum over all t with |B t| <= reach, and where the units are least.

    Lagrange: with r = B'y over cells K, the sum is sum_K (f_c(x_c) - y_c x_c), r't and the cells
    outside of K. A term of K is a u^2 / 2 - b u - (n + y) log u, convex in u > 0 for n + y >= 0:
    its least has a closed form. Outside are pairs of cells of one generator j each, their least
    with r_j t_j is a root of a quartic; for all other generators r_j = 0. Each least is below.
    y are the slopes of the envelope near its minimum; what is left of r is charged.
    """
    y, change = _balanced(total, t)
    pairs = paired(total.exponents)
    rest = np.ones(len(y), dtype=bool)
    rest[pairs.up], rest[pairs.down] = False, False
    pull, slack = (csr_matrix(total.exponents[rest]).T @ v[rest] for v in (y, change))
    cells, cell_sizes = _cells(total.a[rest], total.b[rest], (total.n + y)[rest])
    first, second = ((total.a[k], total.b[k], total.n[k]) for k in (pairs.up, pairs.down))
    found = least(first, second, pull[pairs.generators], t[pairs.generators])
    start = t.copy()
    start[pairs.generators] = found.t
    sizes = cell_sizes + found.size + total.size
    left = float(abs(change[rest]).sum() + abs(slack[pairs.generators]).sum())
    charge = 2 * reach * left + 64 * EPS * sizes
    return cells + found.value + total.constant - charge, start


def _balanced(total: Sum, t: Array) -> tuple[Array, Array]:
    """y with B'y = 0 and n + y >= 0 near the slopes of the envelope, and the error of that."""
    chosen = total.exponents.getnnz(axis=0) > 0
    table = csr_matrix(total.exponents[:, chosen])
    y = total.envelope.terms(t)[1]
    shares, change = np.maximum(total.n + y, LIGHT * total.n), np.zeros_like(y)
    for _ in range(REFINED):
        y = y + change
        change = shares * (table @ solved(table, shares / 2, -(table.T @ y))[0])
    # a multiple of y solves B'y = 0 too; the smallest, 0, says what the cells say alone
    return y * min(1.0, float((total.n / np.maximum(-y, total.n)).min())), change


def _cells(a: Array, b: Array, m: Array) -> tuple[float, float]:
    """sum min over u of a u^2 / 2 - b u - m log u, m >= 0, and the sizes of what is added."""
    m = np.maximum(m, 0.0)
    root = np.sqrt(b**2 + 4 * a * m)
    some = root + b > 0  # else the least is 0, at u = 0
    u = np.where(b > 0, (b + root) / (2 * a), 2 * m / np.where(root > b, root - b, 1.0))
    logs = np.where(some, m * np.log(np.where(some & (u > 0), u, 1.0)), 0.0)
    values = np.where(some, (a * u / 2 - b) * u - logs, 0.0)
    return float(values.sum()), float((a * u * u + abs(b) * u + abs(logs)).sum())
