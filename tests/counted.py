"""The statistics of studies as plain loops over pairs, written from their definitions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

Config = Mapping[str, Any]
Row = Any  # numbers that have places, one for each network


def sign(a: float, b: float) -> int:
    """That of a - b; two infinities are tied."""
    return int(a > b) - int(a < b)


def agreement(x: Row, y: Row, pairs: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Sum of sign(dx) sign(dy) over the pairs, and how many of them differ in x and in y."""
    signs = [(sign(x[i], x[j]), sign(y[i], y[j])) for i, j in pairs]
    return (
        sum(p * q for p, q in signs),
        sum(p * p for p, _ in signs),
        sum(q * q for _, q in signs),
    )


def tau_a(x: Row, y: Row) -> float:
    pairs = list(permutations(range(len(x)), 2))
    return agreement(x, y, pairs)[0] / len(pairs)


def tau_b(x: Row, y: Row, pairs: Sequence[tuple[int, int]] | None = None) -> float:
    """NaN where x or y is the same in all the pairs."""
    some = list(combinations(range(len(x)), 2)) if pairs is None else pairs
    both, of_x, of_y = agreement(x, y, some)
    return both / math.sqrt(of_x * of_y) if of_x * of_y else math.nan


def resample(x: Row, y: Row, clusters: Any, times: Any) -> float:
    """tau-b when configuration c is there times[c] times; its copies make no pairs with another."""
    copies = [(i, k) for i, c in enumerate(clusters) for k in range(times[c])]
    pairs = [
        (i, j)
        for (i, k), (j, m) in combinations(copies, 2)
        if clusters[i] != clusters[j] or (k == m and i != j)
    ]
    return tau_b(x, y, pairs)


def along(configs: Sequence[Config]) -> Iterator[tuple[str, Any, Any, int, int]]:
    """Pairs that differ in one axis alone: axis, setting of the others, both values, networks."""
    for i, j in combinations(range(len(configs)), 2):
        [*apart] = [axis for axis in configs[i] if configs[i][axis] != configs[j][axis]]
        if len(apart) == 1:
            [axis] = apart
            setting = tuple((k, v) for k, v in configs[i].items() if k != axis)
            yield axis, setting, frozenset([configs[i][axis], configs[j][axis]]), i, j


def psi(configs: Sequence[Config], measure: Row, gap: Row) -> dict[str, float]:
    signs: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for axis, setting, _, i, j in along(configs):
        signs[axis][setting].append(sign(measure[i], measure[j]) * sign(gap[i], gap[j]))
    return {axis: mean([mean(v) for v in settings.values()]) for axis, settings in signs.items()}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def information(
    configs: Sequence[Config], measure: Row, gap: Row, most: int = 2
) -> dict[tuple[str, ...], float]:
    """I(V_mu; V_g | U_S) / H(V_g | U_S) = 1 - H(V_g | V_mu, U_S) / H(V_g | U_S), for every S."""
    axes = [axis for axis in configs[0] if len({one[axis] for one in configs}) > 1]
    found = {}
    for subset in [s for size in range(most + 1) for s in combinations(axes, size)]:
        rows = [
            (
                sign(gap[i], gap[j]),
                sign(measure[i], measure[j]),
                tuple((configs[i][axis], configs[j][axis]) for axis in subset),
            )
            for i, j in permutations(range(len(gap)), 2)
        ]
        without = entropy([(g, u) for g, _, u in rows]) - entropy([(u,) for _, _, u in rows])
        left = entropy(rows) - entropy([(m, u) for _, m, u in rows])
        if without > 1e-12:
            found[subset] = 1 - left / without
    return found


def entropy(rows: Sequence[tuple[Any, ...]]) -> float:
    return -sum(n / len(rows) * math.log(n / len(rows)) for n in Counter(rows).values())


def sign_errors(
    configs: Sequence[Config], measure: Row, gap: Row, noise: Row | None, least: float
) -> list[float]:
    """1/2 E[1 - sign(dC) sign(dG)] of each two configurations, pairs weighted by their surety."""
    pairs: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for axis, setting, values, i, j in along(configs):
        wrong = (1 - sign(measure[i], measure[j]) * sign(gap[i], gap[j])) / 2
        weight = 1.0
        if noise is not None:
            apart, spread = abs(gap[i] - gap[j]), math.hypot(noise[i], noise[j])
            # P(right) - P(wrong) = Phi(d / s) - Phi(-d / s)
            weight = math.erf(apart / spread / math.sqrt(2)) if spread else float(apart > 0)
        pairs[axis, setting, values].append((weight, wrong))
    found = []
    for some in pairs.values():
        total, squares = sum(w for w, _ in some), sum(w * w for w, _ in some)
        if total and total**2 / squares >= least - 1e-9:
            found.append(sum(w * wrong for w, wrong in some) / total)
    return found


def ragged(source: int) -> tuple[np.random.Generator, list[dict[str, Any]], np.ndarray]:
    """A grid of numbers, texts and booleans without some cells and seeds, and a gap with ties."""
    draws = np.random.default_rng(source)
    grid = list(product([1, 2.5, 3], ["sgd", "adam"], [True, False]))
    configs: list[dict[str, Any]] = [
        dict(zip("pqr", point, strict=True)) for point in grid for _ in range(draws.integers(0, 4))
    ]
    return draws, configs, np.round(draws.normal(size=len(configs)), source % 2)
