"""p-values: exact on small samples, uniform where nothing is related, adjusted for their number."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, rankdata, spearmanr

from spiritlevel import SpiritlevelError
from spiritlevel.studies import holm, permutation_test


def test_it_comes_near_the_share_of_all_permutations() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 6))
    orders = [np.array(order) for order in permutations(y)]  # the first is y
    rhos = np.abs([np.asarray(spearmanr(x, order))[0] for order in orders])
    exact = np.mean(rhos >= rhos[0] - 1e-12)
    error = math.sqrt(exact * (1 - exact) / 9999)
    assert abs(permutation_test(x, y, range(6)) - exact) < 4 * error + 1e-4


@pytest.mark.parametrize(
    ("counts", "noise"),
    [([1] * 24, 0.2), ([3] * 16, 0.2), ([1, 2, 5] * 6, 0.2), ([1, 30] * 20, 3.0)],
    ids=["alone", "seeds", "unequal", "means of unequal spread"],
)
def test_it_is_uniform_where_nothing_is_related(counts: list[int], noise: float) -> None:
    """Networks of one configuration are alike: to permute them one by one would call it related.

    And the mean of one noisy seed lies farther out than that of thirty.
    """
    clusters = np.repeat(np.arange(len(counts)), counts)
    draws, ps = np.random.default_rng(0), []
    for seed in range(300):
        x, y = draws.normal(size=(2, len(counts)))[:, clusters]
        x, y = (row + noise * draws.normal(size=len(clusters)) for row in (x, y))
        ps.append(permutation_test(x, y, clusters, draws=199, seed=seed))
    assert kstest(np.array(ps) - 1 / 400, "uniform").pvalue > 1e-3
    assert abs(np.mean(np.array(ps) <= 0.05) - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 300)


def test_the_least_p_is_that_of_its_draws() -> None:
    x = np.arange(30)
    assert permutation_test(x, x**3, x.tolist(), draws=99) == 0.01
    assert permutation_test(x, -x, x.tolist(), draws=99) == 0.01
    assert permutation_test([1, 2, 1, 2, 1, 2], range(6), [0, 0, 1, 1, 2, 2], draws=99) == 1.0
    ends = [-math.inf, *range(28), math.inf]
    assert permutation_test(ends, x, x.tolist(), draws=99) == 0.01


def test_it_permutes_means_of_ranks_of_configurations() -> None:
    """Three of one seed, three of two: against a loop over all 36 permutations of the means."""
    x, y = np.array([5.0, 1, 2, 9, 4, 7, 3, 8, 6]), np.array([3.0, 1, 6, 8, 2, 9, 4, 5, 7])
    clusters = np.array([0, 1, 2, 3, 3, 4, 4, 5, 5])
    left, right = ([rankdata(r)[clusters == c].mean() for c in range(6)] for r in (x, y))
    orders = [(*a, *b) for a in permutations(right[:3]) for b in permutations(right[3:])]
    rows = [np.corrcoef(left, order)[0, 1] for order in orders]
    exact = np.mean(np.abs(rows) >= abs(np.corrcoef(left, right)[0, 1]) - 1e-12)
    assert 0.1 < exact < 0.9
    found = permutation_test(x, y, [*"abcddeeff"])
    assert abs(found - exact) < 4 * math.sqrt(exact * (1 - exact) / 9999) + 1e-4


def test_nothing_can_be_permuted_where_no_two_have_as_many_seeds() -> None:
    assert permutation_test([1, 2, 2, 3, 3, 3], range(6), [*"abbccc"], draws=99) == 1.0


def test_it_is_refused_without_configurations_to_permute() -> None:
    with pytest.raises(SpiritlevelError, match="of 2 configurations: this needs at least 3, give"):
        permutation_test([1, 2, 3], [1, 2, 3], [0, 0, 1])
    with pytest.raises(SpiritlevelError, match="y is 1 everywhere: give one that varies"):
        permutation_test([1, 2, 3], [1, 1, 1], [0, 1, 2])
    with pytest.raises(SpiritlevelError, match="draws=0"):
        permutation_test([1, 2, 3], [1, 2, 3], [0, 1, 2], draws=0)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == [0.02]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_steps_reject(ps: list[float], level: float) -> None:
    """From the least p on, while p_(i) <= level / (n - i + 1)."""
    rejected: set[int] = set()
    for step, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[i] * (len(ps) - step) > level:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(ps)) if p <= level} == rejected


def test_what_is_no_p_is_refused() -> None:
    for wrong in ([0.1, 1.2], [-0.1], [math.nan]):
        with pytest.raises(SpiritlevelError, match="ps holds numbers that are no p-values: give"):
            holm(wrong)
