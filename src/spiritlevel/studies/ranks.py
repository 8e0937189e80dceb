"""Kendall's tau of networks, with intervals from resampled configurations."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from spiritlevel.base import ranks
from spiritlevel.base.doors import number, one_of
from spiritlevel.results.study import Ranked
from spiritlevel.studies.given import Numbers, complete, generator, labels, matched, several, varied
from spiritlevel.studies.tally import Layout, Ordered, ordered, tallied

ENDS = (0.025, 0.975)


def kendall(x: Numbers, y: Numbers, kind: Literal["a", "b"] = "b") -> float:
    """Kendall's tau of the networks that have both numbers; NaN is none.

    tau-a = sum over ordered pairs of sign(dx) sign(dy) / (n (n - 1)), with sign(0) = 0 (Jiang et
    al., 2020). tau-b divides by the geometric mean of the pairs that differ in x and in y.
    """
    one_of("kind", kind, ("a", "b"))
    x, y = matched(x=x, y=y)
    known = complete(x, y)
    varied(x=x[known], y=y[known])
    return getattr(ranks.kendall(x[known], y[known]), kind)


def kendall_interval(
    x: Numbers,
    y: Numbers,
    clusters: Sequence[Hashable] | np.ndarray,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Ranked:
    """tau-b and its 95 % interval: percentiles over resampled configurations with all their seeds.

    `clusters` says which configuration each network is of. Of one that is drawn twice, pairs across
    its two copies are left out of numerator and denominators: they are no pairs of configurations.
    """
    x, y = matched(x=x, y=y)
    clusters = labels("clusters", clusters, len(x))
    number("resamples", resamples, 1, whole=True)
    source = generator(seed)
    known = complete(x, y)
    varied(x=x[known], y=y[known])
    several(clusters[known], 2)
    layout = Layout(clusters[known], int(clusters.max()) + 1)
    draws = drawn(layout.size, resamples, source)
    return interval(resampled(layout, [x[known]], [y[known]], draws)[0, 0])


def drawn(size: int, resamples: int, source: np.random.Generator) -> np.ndarray:
    """How often each configuration is in each resample; the first has each of them once."""
    found = source.multinomial(size, np.full(size, 1 / size), size=resamples)
    return np.concatenate([np.ones((1, size)), found]).astype(np.float32)


def interval(values: np.ndarray) -> Ranked:
    """The first value, with percentiles of the others."""
    rest = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(rest, ENDS) if len(rest) else (np.nan, np.nan)
    return Ranked(float(values[0]), float(low), float(high))


def resampled(
    layout: Layout, xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], draws: np.ndarray
) -> np.ndarray:
    """tau-b of every x with every y in every resample: x by y by resamples."""
    left, right = ([ordered(row, layout) for row in rows] for rows in (xs, ys))
    found = np.zeros((len(xs), len(ys), len(draws)))
    for rows, i, j, sums in tallied(layout, left, right, [(1, 1)]):
        found[i, j] += _form(sums[1, 1], rows, draws)
    across, down = (_varying(layout, side, draws) for side in (left, right))
    with np.errstate(invalid="ignore", divide="ignore"):
        return found / np.sqrt(across[:, None] * down)


def _varying(layout: Layout, rows: Sequence[Ordered], draws: np.ndarray) -> np.ndarray:
    """Pairs that differ, of every row in every resample."""
    sizes = draws * layout.counts
    within = draws * layout.counts * (layout.counts - 1)
    every = sizes.sum(1, dtype=float) ** 2 - (sizes.astype(float) ** 2).sum(1) + within.sum(1)
    found = np.tile(every, (len(rows), 1))
    tied = [i for i, row in enumerate(rows) if row.tied]
    found[tied] = 0
    one = [Ordered(rows[0].ranks, False)]
    for block, i, _, sums in tallied(layout, [rows[k] for k in tied], one, [(2, 0)]):
        found[tied[i]] += _form(sums[2, 0], block, draws)
    return found


def _form(sums: np.ndarray, rows: slice, draws: np.ndarray) -> np.ndarray:
    """2 sum_{c<d} w_c w_d S_cd + sum_c w_c S_cc over the rows c, in every resample w."""
    block = sums.astype(np.float32)
    own = np.arange(len(block))
    within = block[own, own]
    block[:, : len(block)] = np.triu(block[:, : len(block)], 1)
    # exact: all sums are whole numbers below 2^24
    across = block @ draws[:, rows.start :].T
    mine = draws[:, rows].T.astype(float)
    return 2 * (across * mine).sum(0) + within @ mine
