"""Signs of the differences of pairs of networks, summed over pairs of configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

AT_ONCE = 2**24  # signs of one measure that are held at a time


@dataclass(frozen=True, eq=False)
class Layout:
    """Networks in a table of seeds by configurations; `size` of these, some may be empty."""

    clusters: np.ndarray
    size: int

    @cached_property
    def counts(self) -> np.ndarray:
        """Networks of each configuration."""
        return np.bincount(self.clusters, minlength=self.size)

    @cached_property
    def slots(self) -> np.ndarray:
        """The place of each network among those of its configuration."""
        order = np.argsort(self.clusters, kind="stable")
        starts = np.cumsum(self.counts) - self.counts
        found = np.empty(len(order), dtype=np.int64)
        found[order] = np.arange(len(order)) - starts[self.clusters[order]]
        return found

    @property
    def deep(self) -> int:
        return int(self.counts.max())

    @property
    def kind(self) -> type[np.signedinteger]:
        """Sums over all pairs of two configurations fit into it."""
        return next(
            kind for kind in (np.int8, np.int16, np.int32) if self.deep**2 <= np.iinfo(kind).max
        )

    def blocks(self) -> Iterator[slice]:
        """Rows of configurations, as many as are summed at a time."""
        step = max(AT_ONCE // (self.deep**2 * self.size), 1)
        return (slice(i, min(i + step, self.size)) for i in range(0, self.size, step))


@dataclass(frozen=True, eq=False)
class Ordered:
    """The ranks of one row of numbers in a layout, NaN where there is no network."""

    ranks: np.ndarray  # seeds by configurations
    tied: bool

    def signs(self, rows: slice, b: int) -> np.ndarray:
        """sign of (each of a configuration in `rows`) - (b-th of one from there on)."""
        own, others = self.ranks[:, rows, None], self.ranks[b, rows.start :]
        above, below = own > others, own < others
        return np.subtract(above.view(np.int8), below.view(np.int8), out=above.view(np.int8))


def ordered(values: np.ndarray, layout: Layout) -> Ordered:
    distinct, ranks = np.unique(values, return_inverse=True)
    table = np.full((layout.deep, layout.size), np.nan, dtype=np.float32)
    table[layout.slots, layout.clusters] = ranks
    return Ordered(table, len(distinct) < len(values))


Powers = tuple[int, int]  # of the signs of x and of y in a product


def reduced(powers: Powers, x: Ordered, y: Ordered) -> Powers:
    """The square of a sign is 1 for every pair where no two are tied."""
    p, q = powers
    return (0 if p == 2 and not x.tied else p, 0 if q == 2 and not y.tied else q)


def tallied(
    layout: Layout, xs: Sequence[Ordered], ys: Sequence[Ordered], powers: Sequence[Powers]
) -> Iterator[tuple[slice, int, int, dict[Powers, np.ndarray]]]:
    """For some configurations at a time and every x and y: sums of sign(dx)^p sign(dy)^q.

    Those with configurations from the first of the rows on, by reduced powers; (0, 0) is left out.
    """
    for rows in layout.blocks():
        seen = [[y.signs(rows, b) for b in range(layout.deep)] for y in ys]
        shape = (rows.stop - rows.start, layout.size - rows.start)
        for i, x in enumerate(xs):
            wanted = [{reduced(p, x, y) for p in powers} - {(0, 0)} for y in ys]
            sums = [{p: np.zeros(shape, layout.kind) for p in keys} for keys in wanted]
            for b in range(layout.deep):
                dx = x.signs(rows, b)
                for signs, found in zip(seen, sums, strict=True):
                    for p, q in found:
                        found[p, q] += _product(dx, p, signs[b], q).sum(0, dtype=layout.kind)
            for j, found in enumerate(sums):
                yield rows, i, j, found


def _product(dx: np.ndarray, p: int, dy: np.ndarray, q: int) -> np.ndarray:
    if p == 0:
        return dy if q == 1 else dy * dy
    found = dx if p == 1 else dx * dx
    return found if q == 0 else found * dy if q == 1 else found * (dy * dy)
