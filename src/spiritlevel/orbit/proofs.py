"""Perturbations that fit into a ball at every point of an orbit: certificates, checked exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.orbit.cells import Array

Row = tuple[tuple[int, Fraction], ...]  # of B: generators and their exponents, but for zeros
SOME = 1e-9  # a weight that a solver did not mean to be zero
FEW = 8 * 2.0**-52  # roundings of a product of powers, relative to its logarithms


@dataclass(frozen=True)
class Choice:
    """Ways to do something, one of which is short wherever one is on the orbit.

    Way k has the length a_k exp(b_k . t) at log-scales t. With weights y >= 0, sum y_k = 1 and
    sum y_k b_k = 0 the shortest is no longer than prod a_k^y_k at every t: their weighted geometric
    mean, which t leaves as it is (Farkas' lemma, for the logarithms).
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    lengths: tuple[float, ...]
    weights: tuple[Fraction, ...]

    @property
    def length(self) -> float:
        """prod a_k^y_k, and what rounding may have taken off."""
        chosen = [(y, a) for y, a in zip(self.weights, self.lengths, strict=True) if y]
        if not all(a > 0 for _, a in chosen):
            return 0.0
        top = max(a for _, a in chosen)
        logs = [float(y) * math.log(a / top) for y, a in chosen]
        rounding = FEW * (1 + sum(map(abs, logs)))
        return top * math.exp(math.fsum(logs)) * (1 + rounding)

    def holds(self) -> bool:
        """Whether the weights are what they have to be, in rational numbers."""
        return (
            all(a >= 0 for a in self.lengths)
            and all(y >= 0 for y in self.weights)
            and sum(self.weights) == 1
            and not any(_mixed(self.rows, self.weights).values())
        )


@dataclass(frozen=True)
class Proof:
    """That within some length of every point of an orbit the loss rises by `rise`.

    Every choice is made, each for itself: together they are as long as the root of the sum of
    squares. `steps` are perturbations of the representative with this rise: one for each way of a
    single choice, or one that other points reach by other ways.
    """

    choices: tuple[Choice, ...]
    rise: float
    steps: tuple[Tensor, ...]

    @property
    def alternatives(self) -> bool:
        """Whether it is one choice, between as many steps."""
        return len(self.choices) == 1 and self.choices[0].rows != ((),)

    @property
    def length(self) -> float:
        return math.hypot(*(choice.length for choice in self.choices))

    def holds(self, radius: float) -> bool:
        """Whether the choices fit into balls of this radius, by weights in rational numbers.

        That rows, lengths and rise are those of the steps is checked by `WorstCase.holds`.
        """
        number("radius", radius, above=0)
        return all(choice.holds() for choice in self.choices) and self.length <= radius


def row(exponents: csr_matrix, place: int) -> Row:
    """One row of B in rational numbers."""
    found = exponents[[place]].tocoo()
    pairs = zip(found.col.tolist(), found.data.tolist(), strict=True)
    return tuple(sorted((j, Fraction(e)) for j, e in pairs if e))


def least_mean(exponents: csr_matrix, logs: Array) -> list[int]:
    """Which ways have the least weighted geometric mean: the support of min_y sum_k y_k log a_k.

    Over y >= 0 with sum y = 1 and B'y = 0: a linear program. Empty if no mean is free of t.
    """
    table = vstack([exponents.T, csr_matrix(np.ones((1, len(logs))))])
    wanted = np.append(np.zeros(exponents.get_shape()[1]), 1.0)
    found = linprog(logs, A_eq=table, b_eq=wanted, bounds=(0, None), method="highs-ds")
    return [] if found.x is None else np.flatnonzero(found.x > SOME).tolist()


def chosen(names: Sequence[str], rows: Sequence[Row], lengths: Sequence[float]) -> Choice | None:
    """The choice between these ways, if there is just one and its weights are not negative."""
    weights = _weights(rows)
    if weights is None:
        return None
    found = Choice(tuple(names), tuple(rows), tuple(lengths), weights)
    return found if found.holds() else None


def _mixed(rows: Sequence[Row], weights: Sequence[Fraction]) -> dict[int, Fraction]:
    """sum_k y_k b_k."""
    total: dict[int, Fraction] = {}
    for b, y in zip(rows, weights, strict=True):
        for j, exponent in b:
            total[j] = total.get(j, Fraction(0)) + y * exponent
    return total


def _weights(rows: Sequence[Row]) -> tuple[Fraction, ...] | None:
    """The one y with sum y_k b_k = 0 and sum y_k = 1, by elimination in rational numbers."""
    used = sorted({j for b in rows for j, _ in b})
    columns = [dict(b) for b in rows]
    table = [[column.get(j, Fraction(0)) for column in columns] + [Fraction(0)] for j in used]
    table.append([Fraction(1)] * (len(rows) + 1))
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(table)) if table[i][k]), None)
        if pivot is None:
            return None
        table[k], table[pivot] = table[pivot], table[k]
        table[k] = [value / table[k][k] for value in table[k]]
        for i in range(len(table)):
            if i != k and table[i][k]:
                table[i] = [a - table[i][k] * b for a, b in zip(table[i], table[k], strict=True)]
    if any(line[-1] for line in table[len(rows) :]):
        return None
    return tuple(line[-1] for line in table[: len(rows)])
