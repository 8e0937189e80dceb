"""Whether a rank correlation is more than chance, for one measure and for many."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from scipy.stats import rankdata

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.studies.given import (
    Numbers,
    column,
    complete,
    generator,
    labels,
    matched,
    numbered,
    several,
    varied,
)

AT_ONCE = 500  # permutations


def permutation_test(
    x: Numbers,
    y: Numbers,
    clusters: Sequence[Hashable] | np.ndarray,
    *,
    draws: int = 9999,
    seed: int = 0,
) -> float:
    """Two-sided p of no relation, by permuting whole configurations: (1 + count) / (1 + draws).

    Those with as many seeds change places: a mean over one seed has not the spread of one over ten.
    Where no two have as many, nothing can be permuted, and p is 1.
    Counted are permutations whose correlation of the configurations' mean ranks is as large as the
    one seen, which is Spearman's with one seed each. Where nothing is related tau is that same sum
    but for terms of higher order (its projection), and a sum is permuted at no cost.
    """
    x, y = matched(x=x, y=y)
    found = labels("clusters", clusters, len(x))
    number("draws", draws, 1, whole=True)
    source = generator(seed)
    known = complete(x, y)
    varied(x=x[known], y=y[known])
    clusters = numbered(found[known])
    several(clusters, 3)
    return float(permuted(clusters, [x[known]], y[known], draws, source)[0])


def permuted(
    clusters: np.ndarray,
    xs: Sequence[np.ndarray],
    y: np.ndarray,
    draws: int,
    source: np.random.Generator,
) -> np.ndarray:
    """p of every x, all on the same permutations."""
    left = np.stack([_means(clusters, x) for x in xs])
    right = _means(clusters, y)
    seen = np.abs(left @ right) * (1 - 1e-12) - 1e-12  # as large but for rounding is as large
    count = np.zeros(len(xs))
    seeds = np.bincount(clusters)
    alike = [np.flatnonzero(seeds == number) for number in np.unique(seeds)]
    for start in range(0, draws, AT_ONCE):
        order = np.tile(right, (min(AT_ONCE, draws - start), 1))
        for places in alike:
            order[:, places] = source.permuted(order[:, places], axis=1)
        chance = np.abs(left @ order.T)
        count += (chance >= seen[:, None]).sum(1)
    return (1 + count) / (1 + draws)


def _means(clusters: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean rank of each configuration, of mean 0 and length 1."""
    means = np.bincount(clusters, rankdata(values)) / np.bincount(clusters)
    means = means - means.mean()
    size = np.linalg.norm(means)
    return means / size if size > 1e-9 else np.zeros_like(means)


def holm(ps: Numbers) -> list[float]:
    """p-values adjusted for their number: all below a level are so with that error in the family.

    In order of size, max over the smaller ones j <= i of (n - j + 1) p_j, at most 1 (Holm, 1979).
    """
    found = column("ps", ps)
    if not ((found >= 0) & (found <= 1)).all():
        raise SpiritlevelError("ps holds numbers that are no p-values: give some from 0 to 1")
    order = np.argsort(found, kind="stable")
    steps = np.maximum.accumulate(found[order] * np.arange(len(found), 0, -1))
    adjusted = np.empty(len(found))
    adjusted[order] = np.minimum(steps, 1)
    return adjusted.tolist()
