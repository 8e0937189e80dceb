"""Kendall's tau along one axis at a time, against the definition of Jiang et al. (2020)."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

import counted
from counted import ragged
from spiritlevel import SpiritlevelError, studies
from spiritlevel.studies import granulated, kendall

pytestmark = pytest.mark.filterwarnings("ignore:.*are left out")  # see test_ranks

GRID = [dict(zip("abc", point, strict=True)) for point in product(range(3), repeat=3)]


def test_the_case_of_the_literature() -> None:
    gap = [10 * p["a"] + p["b"] + 0.1 * p["c"] for p in GRID]
    measure = [10 * p["a"] - p["b"] + 0.1 * p["c"] for p in GRID]
    found = granulated(GRID, measure, gap)
    assert kendall(measure, gap) == pytest.approx(0.5385, abs=5e-5)
    assert found.by_axis == {"a": 1.0, "b": -1.0, "c": 1.0}
    assert found.psi == pytest.approx(1 / 3)
    assert found.settings == {"a": 9, "b": 9, "c": 9}
    assert found.incomplete == {"a": 0, "b": 0, "c": 0}


def test_it_is_a_function_after_a_study_was_analysed() -> None:
    """A module of the same name would take its place as soon as something imports it."""
    from spiritlevel.studies import analysis  # noqa: F401

    assert callable(studies.granulated)
    assert [name for name in studies.__all__ if not callable(getattr(studies, name))] == [
        *("PROTOCOLS", "recipes")
    ]


@pytest.mark.parametrize("source", range(8))
def test_it_is_that_of_a_loop(source: int) -> None:
    """Ties, infinite values, NaN, missing cells, unequal numbers of seeds, texts and booleans."""
    draws, configs, gap = ragged(source)
    size = len(configs)
    measure = np.round(gap + draws.normal(size=size), 1)
    measure[:4] = math.inf, math.inf, -math.inf, math.nan
    known = ~np.isnan(measure)
    kept = [one for one, here in zip(configs, known, strict=True) if here]
    found = granulated(configs, measure, gap)
    assert found.by_axis == pytest.approx(counted.psi(kept, measure[known], gap[known]))
    assert found.psi == pytest.approx(np.mean(list(found.by_axis.values())))


def test_holes_of_the_grid_are_counted() -> None:
    kept = [p for p in GRID if p not in ({"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 0, "c": 0})]
    gap = [float(p["a"] + p["b"] + p["c"]) for p in kept]
    found = granulated(kept, gap, gap)
    assert found.incomplete == {"a": 1, "b": 2, "c": 2}
    assert found.settings == {"a": 8, "b": 9, "c": 9}  # one value alone makes no pair
    assert found.psi == 1.0
    alone = granulated(
        GRID, [math.nan if p["c"] else 1.0 * p["a"] + p["b"] for p in GRID], range(27)
    )
    assert set(alone.by_axis) == {"a", "b"}


def test_axes_are_told_by_their_values() -> None:
    """True is not 1, 1.0 is, and lists and NaN are values like others."""
    for one, other, differ in (
        *((True, 1, True), (1, 1.0, False), ("1", 1, True), (None, 0, True)),
        *(([1], [1], False), ([1], [2], True), (([1],), ([1],), False)),
        *((float("nan"), float("nan"), False), (float("nan"), "nan", True)),
    ):
        configs = [{"a": one, "b": 0}, {"a": other, "b": 0}, {"a": one, "b": 1}]
        found = granulated(configs, [1, 2, 3], [1, 2, 3])
        assert ("a" in found.by_axis) == differ, (one, other)


def test_what_is_no_grid_is_refused() -> None:
    with pytest.raises(SpiritlevelError, match="no two networks differ in one axis alone; give a"):
        granulated([{"a": 0, "b": 0}, {"a": 1, "b": 1}], [1, 2], [1, 2])
    with pytest.raises(
        SpiritlevelError, match=r"configs has axes \['a'\] and \['b'\]: give a list"
    ):
        granulated([{"a": 0}, {"b": 1}], [1, 2], [1, 2])
    with pytest.raises(SpiritlevelError, match="configs has 1 entries for 2 networks"):
        granulated([{"a": 0}], [1, 2], [1, 2])
    with pytest.raises(SpiritlevelError, match=r"configs=\[1, 2\] holds more than mappings"):
        granulated([1, 2], [1, 2], [1, 2])  # type: ignore[list-item]
    with pytest.raises(SpiritlevelError, match=r"configs=3: give a list with the axes and values"):
        granulated(3, [1, 2], [1, 2])  # type: ignore[arg-type]
