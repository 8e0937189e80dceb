"""How much a measure tells of the order of two networks, given their hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.studies.given import Numbers, axes, complete, matched, numbered, varied
from spiritlevel.studies.tally import Layout, Ordered, Powers, ordered, reduced, tallied

AT_ONCE = 2**25  # cells of tables that are held at a time
MOST = 2  # axes that are given at a time (Jiang et al., 2020)
# Rows: a sign that is -1, 0 or 1. Columns: as a sum of 1, the sign and its square.
INDICATORS = np.array([[0, -0.5, 0.5], [1, 0, -1], [0, 0.5, 0.5]])
Subset = tuple[str, ...]


@dataclass(frozen=True)
class Information:
    """I(V_mu; V_g | U_S) / H(V_g | U_S) for every set S of axes that was given; K is the least."""

    least: float
    given: Subset  # the axes of the least one
    by_axes: dict[Subset, float]


def conditional_information(
    configs: Sequence[Mapping[str, Any]], measure: Numbers, gap: Numbers
) -> Information:
    """K(mu) = min over |S| <= 2 of I(V_mu; V_g | U_S) / H(V_g | U_S) (Jiang et al., 2020).

    V_mu and V_g are the signs of the differences of the measure and of the outcome over ordered
    pairs of two networks, U_S the values of the axes S in both. A tie is a sign of its own: 0. A
    set S that leaves the order of the outcomes no entropy says nothing, and is left out.
    """
    measure, gap = matched(measure=measure, gap=gap)
    varying = axes(configs, len(gap))
    known = complete(measure, gap)
    varied(gap=gap[known])
    varying = {name: codes[known] for name, codes in varying.items()}
    [found] = informed(varying, [measure[known]], gap[known])
    if found is None:
        raise SpiritlevelError("gap: its order follows from the axes alone, give more networks")
    return found


def informed(
    varying: Mapping[str, np.ndarray], measures: Sequence[np.ndarray], gap: np.ndarray
) -> list[Information | None]:
    """That of every measure; None where the order of the outcomes follows from any axes given."""
    each = np.arange(len(gap))
    clusters = numbered(zip(*varying.values(), strict=True)) if varying else each
    layout = Layout(clusters, int(clusters.max()) + 1)
    _, firsts = np.unique(clusters, return_index=True)
    groups = {
        names: numbered(zip(*(varying[name][firsts] for name in names), strict=True))
        if names
        else np.zeros(layout.size, int)
        for size in range(min(MOST, len(varying)) + 1)
        for names in combinations(varying, size)
    }
    # axes whose values are all different, as those drawn at random, give one grouping in any set;
    # where that tells all networks apart, it leaves the order no entropy, for tables of any size
    groups = {names: codes for names, codes in groups.items() if codes.max() + 1 < len(gap)}
    seen: dict[bytes, Subset] = {}
    leads = {names: seen.setdefault(codes.tobytes(), names) for names, codes in groups.items()}
    found = [
        {names: one for names, lead in leads.items() if (one := shares[lead]) is not None}
        for shares in _shares(layout, measures, gap, {lead: groups[lead] for lead in seen.values()})
    ]
    least = [min(shares, key=lambda names: shares[names], default=None) for shares in found]
    return [
        None if names is None else Information(shares[names], names, shares)
        for names, shares in zip(least, found, strict=True)
    ]


def _shares(
    layout: Layout,
    measures: Sequence[np.ndarray],
    gap: np.ndarray,
    groups: Mapping[Subset, np.ndarray],
) -> Iterator[dict[Subset, float | None]]:
    """Some measures at a time, as their tables may be large."""
    xs, y = [ordered(row, layout) for row in measures], ordered(gap, layout)
    step = max(AT_ONCE // sum(int(codes.max() + 1) ** 2 for codes in groups.values()), 1)
    for start in range(0, len(xs), step):
        for tables in _tables(layout, xs[start : start + step], y, groups):
            yield {names: _share(table) for names, table in tables.items()}


def _tables(
    layout: Layout, xs: Sequence[Ordered], y: Ordered, groups: Mapping[Subset, np.ndarray]
) -> Iterator[dict[Subset, np.ndarray]]:
    """Ordered pairs by sign of x, sign of y and the groups of both: 3 by 3 by K by K."""
    powers = [(p, q) for p in range(3) for q in range(3)]
    masks = {
        names: np.eye(codes.max() + 1, dtype=np.float32)[codes] for names, codes in groups.items()
    }
    every = np.concatenate(list(masks.values()), axis=1)
    ends = np.cumsum([mask.shape[1] for mask in masks.values()])[:-1]
    found: list[dict[tuple[Subset, Powers], np.ndarray]] = [{} for _ in xs]
    for rows, i, _, sums in tallied(layout, xs, [y], powers):
        for power, block in sums.items():
            if power[0] == 0 and i:
                continue  # it is that of y alone, the same for all
            parts = np.split(_halved(block) @ every[rows.start :], ends, axis=1)
            for (names, mask), part in zip(masks.items(), parts, strict=True):
                total = mask[rows].T.astype(float) @ part
                found[i][names, power] = found[i].get((names, power), 0) + total
    found = [{key: one for key, one in found[0].items() if key[1][0] == 0} | sums for sums in found]
    counted = {names: _pairs(layout, mask) for names, mask in masks.items()}
    for sums, x in zip(found, xs, strict=True):
        yield {names: _cells(sums, names, counted[names], x, y) for names in groups}


def _halved(block: np.ndarray) -> np.ndarray:
    """Every pair of configurations once, and those within one by half: they are there twice."""
    found, size = block.astype(np.float32), len(block)
    found[:, :size] = np.triu(found[:, :size], 1) + np.diag(np.diag(found[:, :size]) / 2)
    return found


def _pairs(layout: Layout, mask: np.ndarray) -> np.ndarray:
    """Ordered pairs of networks by the groups of both."""
    sizes = layout.counts @ mask.astype(float)
    return np.outer(sizes, sizes) - np.diag(sizes)


def _cells(
    sums: Mapping[tuple[Subset, Powers], np.ndarray],
    names: Subset,
    pairs: np.ndarray,
    x: Ordered,
    y: Ordered,
) -> np.ndarray:
    """Numbers of pairs by their signs, from the sums of powers of signs."""
    moments = np.empty((3, 3, *pairs.shape))
    for p in range(3):
        for q in range(3):
            power = reduced((p, q), x, y)
            once = pairs / 2 if power == (0, 0) else sums[names, power]
            moments[p, q] = once + (-1) ** (p + q) * once.T  # the other half of the pairs
    return np.einsum("ap,bq,pquv->abuv", INDICATORS, INDICATORS, moments)


def _share(table: np.ndarray) -> float | None:
    """I(V_mu; V_g | U) / H(V_g | U) of the plug-in distribution."""
    given = _entropy(table.sum((0, 1)))
    of_gap, of_measure = _entropy(table.sum(0)) - given, _entropy(table.sum(1)) - given
    both = _entropy(table) - given
    if of_gap <= 1e-12:
        return None
    return float(np.clip((of_gap + of_measure - both) / of_gap, 0, 1))


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
