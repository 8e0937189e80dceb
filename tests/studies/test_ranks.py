"""Kendall's tau and its interval against plain loops, SciPy and closed cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

import counted
from spiritlevel import SpiritlevelError
from spiritlevel.base import ranks
from spiritlevel.studies import kendall, kendall_interval
from spiritlevel.studies.ranks import drawn, resampled
from spiritlevel.studies.tally import Layout

# few values, so that many are tied, and the infinite ones
VALUES = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf]))


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    size = draw(st.integers(2, 14))
    some = st.lists(VALUES, min_size=size, max_size=size).filter(lambda row: len(set(row)) > 1)
    return draw(some), draw(some)


@given(rows())
def test_taus_are_those_of_loops_and_of_scipy(both: tuple[list[float], list[float]]) -> None:
    x, y = both
    assert kendall(x, y, "a") == pytest.approx(counted.tau_a(x, y), abs=1e-12)
    assert kendall(x, y) == pytest.approx(counted.tau_b(x, y), abs=1e-12)
    assert kendall(x, y) == pytest.approx(kendalltau(np.array(x), np.array(y))[0], abs=1e-12)


@given(rows(), st.randoms(use_true_random=False))
def test_only_the_order_counts(both: tuple[list[float], list[float]], source: object) -> None:
    x, y = both
    for kind in ("a", "b"):
        tau = kendall(x, y, kind)
        assert kendall([math.atan(v) ** 3 for v in x], y, kind) == tau
        assert kendall([-v for v in x], y, kind) == pytest.approx(-tau, abs=1e-12)
        assert kendall(y, x, kind) == pytest.approx(tau, abs=1e-12)
        order = np.random.default_rng(source.getrandbits(32)).permutation(len(x))  # type: ignore[attr-defined]
        turned = kendall(np.array(x)[order], np.array(y)[order], kind)
        assert turned == pytest.approx(tau, abs=1e-12)


def test_ties_by_hand() -> None:
    x, y = [1.0, 1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 1.0]  # of 6 pairs 5 differ in x, 4 in y
    assert kendall(x, y, "a") == pytest.approx(-1 / 6)
    assert kendall(x, y) == pytest.approx(-1 / math.sqrt(20))
    assert kendall([1, 1, 2], [1, 2, 3], "a") == pytest.approx(2 / 3)
    assert kendall([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(6))
    assert kendall([-math.inf, 0, math.inf], [1, 2, 3]) == 1.0


def test_nan_is_no_network_and_a_warning_says_so() -> None:
    with pytest.warns(UserWarning, match="2 of 4 networks are left out") as told:
        assert kendall([1, 2, math.nan, 3], [1, 2, -9, math.nan]) == 1.0
    assert told[0].filename == __file__
    with pytest.raises(SpiritlevelError, match="1 networks have both numbers: this needs at least"):
        kendall([1, math.nan, 2], [1, 2, math.nan])


def test_what_has_no_order_is_zero_without_a_warning() -> None:
    for x, y in (([], []), ([1.0], [2.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0] * 3, [1.0, 2.0, 3.0])):
        assert ranks.kendall(x, y) == (0.0, 0.0)
    assert ranks.untied([1, 1, 2]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("source", range(6))
def test_every_resample_is_that_of_a_loop(source: int) -> None:
    """Unequal numbers of seeds, ties, configurations with no network at all."""
    draws = np.random.default_rng(source)
    clusters = draws.permutation(np.repeat([0, 1, 3, 4, 5], [1, 4, 2, 3, 1]))
    x = np.round(draws.normal(size=11), 0 if source % 2 else 3)
    y = np.round(x + draws.normal(size=11), 0 if source % 3 else 3)
    times = drawn(6, 30, draws)
    found = resampled(Layout(clusters, 6), [x, -y], [y], times)
    for k, one in enumerate((x, -y)):
        for r, weights in enumerate(times.astype(int)):
            right = counted.resample(one, y, clusters, weights)
            assert found[k, 0, r] == pytest.approx(right, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize(("configurations", "seeds"), [(3, 12), (2, 200)])
def test_many_seeds_do_not_overflow(configurations: int, seeds: int) -> None:
    """12 seeds are the first whose sums over two configurations exceed a byte, 182 two of them."""
    x = np.arange(configurations * seeds)
    clusters = np.repeat(np.arange(configurations), seeds)
    found = kendall_interval(x, x, clusters, resamples=5)
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))


def test_the_interval_holds_the_percentiles_of_the_resamples() -> None:
    draws = np.random.default_rng(0)
    x, y, clusters = draws.normal(size=30), draws.normal(size=30), np.arange(30) // 3
    found = kendall_interval(x, y, clusters.tolist(), resamples=200, seed=7)
    times = drawn(10, 200, np.random.default_rng(7)).astype(int)
    taus = [counted.resample(x, y, clusters, one) for one in times[1:]]
    assert found.value == pytest.approx(kendalltau(x, y)[0])
    assert (found.low, found.high) == pytest.approx(np.quantile(taus, [0.025, 0.975]), abs=1e-6)
    assert found == kendall_interval(x, y, [f"c{c}" for c in clusters], resamples=200, seed=7)
    assert found != kendall_interval(x, y, clusters, resamples=200, seed=8)


@pytest.mark.parametrize("seeds", [1, 4])
def test_the_interval_covers_the_truth(seeds: int) -> None:
    """Seeds of a configuration move together: resampling networks would cover far less."""
    draws, trials, size, r = np.random.default_rng(0), 300, 60, 0.5
    clusters = np.repeat(np.arange(size), seeds)
    hits = []
    for _ in range(trials):
        z = draws.normal(size=(2, size))[:, clusters] + 0.3 * draws.normal(size=(2, size * seeds))
        x, y = z[0], r * z[0] + math.sqrt(1 - r * r) * z[1]
        # pairs of a configuration share its effect, and x and y are jointly normal with the same r
        found = kendall_interval(x, y, clusters, resamples=200)
        hits.append(found.low <= 2 / math.pi * math.asin(r) <= found.high)
    error = math.sqrt(0.95 * 0.05 / trials)
    assert abs(np.mean(hits) - 0.95) < 3 * error


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(SpiritlevelError, match="x is 2 everywhere: give one that varies"):
        kendall([2, 2, 2], [1, 2, 3])
    with pytest.raises(SpiritlevelError, match="x has 3 numbers and y has 2: give one for each"):
        kendall([1, 2, 3], [1, 2])
    with pytest.raises(SpiritlevelError, match="kind='c' is not known; choose one of 'a', 'b'"):
        kendall([1, 2], [1, 2], "c")  # type: ignore[arg-type]
    gradient = torch.ones(3, requires_grad=True)
    for wrong in ("abc", {"a": 1}, [[1, 2]], [], [1j, 2, 3], np.array([1j]), gradient, [[]], 3):
        with pytest.raises(SpiritlevelError, match=r"x=.*: give a list of numbers, one for each"):
            kendall(wrong, [1, 2, 3])  # type: ignore[arg-type]


def test_clusters_that_are_none_are_refused() -> None:
    x, y = [1, 2, 3], [1, 3, 2]
    for wrong in ("abc", [1, 2], 3, None, [[1], [2], [3]], [([1],), 2, 3], np.array(3)):
        with pytest.raises(SpiritlevelError, match="give a list with the configuration of each of"):
            kendall_interval(x, y, wrong)  # type: ignore[arg-type]
    with pytest.raises(SpiritlevelError, match="of 1 configurations: this needs at least 2, give"):
        kendall_interval(x, y, [5, 5, 5])
    told = pytest.warns(UserWarning, match="1 of 3 networks are left out")
    with told, pytest.raises(SpiritlevelError, match="of 1 configurations"):
        kendall_interval([1, 2, math.nan], y, [5, 5, 6])
