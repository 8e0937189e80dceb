"""What a measure tells of the order, given the axes: against counted tables and closed cases."""

from __future__ import annotations

import math
import tracemalloc
from itertools import product

import numpy as np
import pytest

import counted
from counted import ragged
from spiritlevel import SpiritlevelError
from spiritlevel.studies import conditional_information, information

pytestmark = pytest.mark.filterwarnings("ignore:.*are left out")  # see test_ranks

GRID = [dict(zip("abc", point, strict=True)) for point in product(range(3), range(2), range(2))]


@pytest.mark.parametrize("source", range(8))
def test_it_is_that_of_counted_pairs(source: int) -> None:
    """Ties, infinite values, NaN, missing cells, unequal numbers of seeds, texts and booleans."""
    draws, configs, gap = ragged(source)
    size = len(configs)
    measure = np.round(gap + draws.normal(size=size), source % 3)
    if source > 3:
        measure[:4] = math.inf, math.inf, -math.inf, math.nan
    known = ~np.isnan(measure)
    kept = [one for one, here in zip(configs, known, strict=True) if here]
    found = conditional_information(configs, measure, gap)
    right = counted.information(kept, measure[known], gap[known])
    assert found.by_axes == pytest.approx(right, abs=1e-9)
    assert found.least == pytest.approx(min(right.values()), abs=1e-9)
    assert found.by_axes[found.given] == found.least


@pytest.mark.parametrize("turn", [1, -1])
def test_a_copy_tells_all_of_it(turn: int) -> None:
    gap = np.random.default_rng(0).normal(size=36)
    found = conditional_information(GRID * 3, turn * gap, gap)
    assert len(found.by_axes) == 1 + 3 + 3
    assert list(found.by_axes.values()) == [1.0] * 7


def test_what_is_independent_tells_nothing_but_for_sampling() -> None:
    """Pairs share networks, so that I is of size 1 / networks: no more than 3 / n without axes."""
    draws, size = np.random.default_rng(0), 240
    of_none = []
    for _ in range(20):
        gap, measure = draws.normal(size=(2, size))
        found = conditional_information(GRID * (size // 12), measure, gap)
        of_none.append(found.by_axes[()])
        assert 0 <= found.least <= found.by_axes[()] < 0.05
    assert np.mean(of_none) < 3 / size
    constant = conditional_information(GRID * 20, np.ones(size), draws.normal(size=size))
    assert constant.least == 0.0


def test_what_the_axes_tell_is_no_information_of_the_measure() -> None:
    """The measure is an axis: alone it ranks well, and given that axis it says nothing."""
    draws = np.random.default_rng(0)
    configs = GRID * 10
    axis = np.array([one["a"] for one in configs], dtype=float)
    gap = axis + 0.1 * draws.normal(size=len(axis))
    found = conditional_information(configs, axis, gap)
    assert found.by_axes[()] > 0.5
    assert found.least == found.by_axes["a",] == pytest.approx(0, abs=1e-12)
    assert "a" in found.given


def test_sets_that_leave_nothing_open_are_left_out() -> None:
    configs = [{"a": i} for i in range(4)]
    found = conditional_information(configs, [1, 3, 2, 4], [1, 2, 3, 4])
    assert list(found.by_axes) == [()]
    assert found.given == ()
    right = counted.information(configs, [1, 3, 2, 4], [1, 2, 3, 4])[()]
    assert found.least == pytest.approx(right)


def test_measures_share_their_work_and_not_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one pass, in blocks of few configurations, or few measures at a time: the same."""
    draws = np.random.default_rng(0)
    gap, *rows = np.round(draws.normal(size=(4, 36)), 1)
    rows[1] = draws.normal(size=36)  # without ties other powers of the signs are summed
    alone = [conditional_information(GRID * 3, row, gap) for row in rows]
    codes = {axis: np.array([one[axis] for one in GRID * 3]) for axis in "abc"}
    assert information.informed(codes, rows, gap) == alone
    monkeypatch.setattr("spiritlevel.studies.tally.AT_ONCE", 250)
    assert information.informed(codes, rows, gap) == alone
    monkeypatch.setattr(information, "AT_ONCE", 1)
    assert information.informed(codes, rows, gap) == alone


def test_without_axes_each_network_is_its_own() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 300))
    found = conditional_information([{}] * 300, x, y)
    tau = abs(counted.tau_a(x, y))  # I of two fair signs that agree with probability (1 + tau) / 2
    p, q = (1 + tau) / 2, (1 - tau) / 2
    assert found.least == pytest.approx(1 + p * math.log2(p) + q * math.log2(q), abs=1e-12)


def test_axes_drawn_at_random_group_alike() -> None:
    """Every set of them tells the configuration: one table for all, and what seeds leave open."""
    draws = np.random.default_rng(0)
    grid = [{"a": draws.random(), "b": draws.random(), "c": i % 2} for i in range(8)]
    configs = [one for one in grid for _ in range(3)]
    measure, gap = draws.normal(size=(2, 24))
    found = conditional_information(configs, measure, gap)
    assert found.by_axes == pytest.approx(counted.information(configs, measure, gap), abs=1e-9)
    assert len(found.by_axes) == 7
    assert found.by_axes["a",] == found.by_axes["b", "c"] != found.by_axes["c",]


def test_tables_are_not_made_where_they_would_say_nothing() -> None:
    """A random search of n networks has no table of their n^2 pairs, which no memory would hold."""
    x, y, axis = np.random.default_rng(0).normal(size=(3, 400))
    tracemalloc.start()
    found = conditional_information([{"a": one, "b": -one} for one in axis], x, y)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == conditional_information([{}] * 400, x, y)
    assert most < 9 * 8 * 400**2, "3 by 3 signs in float64"


def test_an_outcome_without_order_is_refused() -> None:
    with pytest.raises(SpiritlevelError, match="gap is 1 everywhere: give one that varies"):
        conditional_information(GRID, range(12), [1] * 12)
    with pytest.raises(SpiritlevelError, match="configs has 12 entries for 2 networks"):
        conditional_information(GRID, [1, 2], [1, 2])
