"""Sums of exponentials over the orbit, minimized: sum_c m_c exp(-2 (B t)_c), m >= 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import lsqr

from spiritlevel.orbit.cells import Array

SWEEPS = 1000
NORMAL = 4000  # generators, for normal equations
REFINED = 6
Sides = tuple[csr_matrix, csr_matrix, csr_matrix, csr_matrix]
REACH = 100.0  # log-scales: e^100 is beyond all floating-point nets


@dataclass(frozen=True)
class Balance:
    """The minimum of a posynomial over t, between a value that is reached and a lower bound.

    `residual` is the largest |in - out| of a generator over the whole mass: 0 at the minimum.
    `dead` generators have mass on no side and stay at 0; `one_sided` ones have it on one side only
    and would run away, so they stay at 0 too.
    """

    value: float
    lower_bound: float
    t: Array
    residual: float
    sweeps: int
    dead: Array
    one_sided: Array


def balance(
    exponents: csr_matrix,
    masses: Array,
    blocks: list[Array],
    start: Array | None = None,
    free: Array | None = None,
    sweeps: int = SWEEPS,
) -> Balance:
    """Block coordinate descent in closed form: per generator exp(4 t) = in-mass / out-mass.

    `blocks` are sets of generators (the units of a layer) that are moved together; where they
    share parameters the step is halved until the sum falls. Convex, so the limit is the minimum.
    The lower bound holds for all t of the `free` generators; those with two sides, if None.
    """
    sides = _sides(exponents)
    up, down = sides[:2]
    t = np.zeros(int(exponents.shape[1])) if start is None else start.copy()  # type: ignore[index]
    # exactly zero or not: how small a mass is depends on the point, and may not
    alive_in, alive_out = up.T @ masses > 0, down.T @ masses > 0
    two_sided = alive_in & alive_out
    free = two_sided if free is None else free.astype(bool)
    moving = two_sided & free
    t[~moving] = 0.0
    sets = [block[moving[block]] for block in blocks]
    t, weights, value, done = _descended(exponents, sides, masses, t, sets, sweeps)
    pull = exponents.T @ weights
    residual = float(np.abs(pull[moving]).max() / value) if moving.any() else 0.0
    return Balance(
        value=float(value),
        lower_bound=min(_dual(exponents[:, free], masses, weights), float(value)),
        t=t,
        residual=residual,
        sweeps=done,
        dead=~alive_in & ~alive_out,
        one_sided=alive_in ^ alive_out,
    )


def _descended(
    exponents: csr_matrix,
    sides: Sides,
    masses: Array,
    t: Array,
    sets: list[Array],
    most: int,
) -> tuple[Array, Array, float, int]:
    """Steps for one set of generators after another, until the sum stays."""
    weights = masses * np.exp(-2 * (exponents @ t))
    value, sweeps = weights.sum(), 0
    for sweeps in range(1, most + 1):  # noqa: B007
        before = value
        for chosen in sets:
            t, weights, value = _step(exponents, sides, masses, t, weights, value, chosen)
        if before - value <= 1e-14 * before:
            break
    return t, weights, value, sweeps


def _dual(exponents: csr_matrix, masses: Array, weights: Array) -> float:
    """A lower bound of sum_c m_c exp(-2 (B t)_c) over all t, from near-optimal weights.

    For any shares p >= 0 with sum 1 and B'p = 0 the sum is at least prod_c (m_c / p_c)^p_c
    (weighted means; the dual of geometric programming). The weights are projected onto B'p = 0;
    what rounding leaves of it is charged for log-scales up to REACH.
    """
    shares = _two_sided_only(exponents, weights)
    if not shares.sum():
        return 0.0
    shares = shares / shares.sum()
    shares = shares * (1 + exponents @ _projection(exponents, shares))
    if (shares < 0).any():  # too far from balanced to say anything
        return 0.0
    shares = shares / shares.sum()
    some = shares > 0
    left = 2 * REACH * np.abs(exponents.T @ shares).sum()
    return float(np.exp(shares[some] @ np.log(masses[some] / shares[some]) - left))


def _projection(exponents: csr_matrix, shares: Array) -> Array:
    """s with B'(p (1 + B s)) = 0: least squares, by its normal equations where they are small."""
    root = np.sqrt(shares)
    dim = int(exponents.shape[1])  # type: ignore[index]
    if not dim:
        return np.zeros(0)
    if dim > NORMAL:
        return lsqr(diags(root) @ exponents, -root, atol=1e-15, btol=1e-15, iter_lim=2000)[0]
    normal = (exponents.T @ diags(shares) @ exponents).toarray()
    ridge = 1e-13 * max(normal.diagonal().max(initial=0.0), 1e-300)
    factor = cho_factor(normal + ridge * np.eye(dim))
    found = np.zeros(dim)
    for _ in range(REFINED):  # what the ridge and the condition of the squares leave
        found -= cho_solve(factor, exponents.T @ (shares * (1 + exponents @ found)))
    return found


def _two_sided_only(exponents: csr_matrix, weights: Array) -> Array:
    """The weights without those that a generator with one side only would send to zero."""
    up, down = _sides(exponents)[:2]
    weights = weights.copy()
    while True:
        lonely = (up.T @ weights > 0) ^ (down.T @ weights > 0)
        if not lonely.any():
            return weights
        weights[np.asarray(abs(exponents[:, lonely]).sum(axis=1)).reshape(-1) > 0] = 0.0


def _sides(exponents: csr_matrix) -> Sides:
    """The positive and the negative exponents, and their squares."""
    up, down = csr_matrix(exponents.maximum(0)), csr_matrix((-exponents).maximum(0))
    return up, down, up.multiply(up), down.multiply(down)


def _step(
    exponents: csr_matrix,
    sides: Sides,
    masses: Array,
    t: Array,
    weights: Array,
    value: float,
    chosen: Array,
) -> tuple[Array, Array, float]:
    """One closed-form step of some generators, halved until it lowers the value."""
    if not len(chosen) or value == 0:
        return t, weights, value
    ins, outs, square_in, square_out = ((side.T @ weights)[chosen] for side in sides)
    # exponents other than +-1 (squared activations): the mass-weighted ones
    degree_in = square_in / np.maximum(ins, 1e-300)
    degree_out = square_out / np.maximum(outs, 1e-300)
    usable = (ins > 0) & (outs > 0)
    ratio = np.where(usable, ins, 1.0) / np.where(usable, outs, 1.0)
    wanted = np.log(ratio) / (2 * np.maximum(degree_in + degree_out, 1e-12)) * usable
    step = 1.0
    while step > 1e-3:
        moved = t.copy()
        moved[chosen] += step * wanted
        new = masses * np.exp(-2 * (exponents @ moved))
        if new.sum() <= value:
            return moved, new, float(new.sum())
        step /= 2
    return t, weights, value
