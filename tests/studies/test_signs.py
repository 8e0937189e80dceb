"""The sign error of environments, by hand and against a loop (Dziugaite et al., 2020)."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

import counted
from counted import ragged
from spiritlevel import SpiritlevelError
from spiritlevel.results.study import Signs
from spiritlevel.studies import sign_error

pytestmark = pytest.mark.filterwarnings("ignore:.*are left out")  # see test_ranks

LINE = [{"a": i} for i in range(3)]


def test_three_environments_by_hand() -> None:
    """0 and 1 are ranked rightly, 0 and 2 are tied, 1 and 2 are ranked wrongly."""
    found = sign_error(LINE, [1, 2, 1], [1, 2, 3], least=1)
    assert (found.mean, found.largest, found.environments) == (0.5, 1.0, 3)
    assert found.p90 == pytest.approx(0.9)


def test_a_tie_is_half_wrong() -> None:
    assert sign_error(LINE[:2], [1, 1], [1, 2], least=1).mean == 0.5
    assert sign_error(LINE[:2], [1, 2], [1, 1], least=1).mean == 0.5
    assert sign_error(LINE[:2], [1, math.inf], [-math.inf, 1], least=1).mean == 0.0
    assert sign_error(LINE[:2], [math.inf, math.inf], [1, 2], least=1).mean == 0.5


def test_pairs_weigh_as_much_as_their_order_is_sure() -> None:
    """Two seeds each: of four pairs, apart by 1 (right), 3 (right), 3 and 1 (wrong)."""
    configs = [{"a": 0}, {"a": 0}, {"a": 1}, {"a": 1}]
    gap, measure = [0.0, 2.0, 3.0, 1.0], [0.0, 1.0, 2.0, -1.0]
    # 0-2: 3 right; 0-3: 1 wrong; 1-2: 1 right; 1-3: -1 right
    sure = {apart: 2 * NormalDist().cdf(apart / math.sqrt(2)) - 1 for apart in (1, 3)}
    total = sure[3] + 3 * sure[1]
    found = sign_error(configs, measure, gap, noise=[1.0] * 4, least=1)
    assert found.mean == pytest.approx(sure[1] / total)
    effective = total**2 / (sure[3] ** 2 + 3 * sure[1] ** 2)
    assert 3.5 < effective < 4
    sign_error(configs, measure, gap, noise=[1.0] * 4, least=effective - 1e-6)
    with pytest.raises(SpiritlevelError, match="no two configurations that differ in one axis hav"):
        sign_error(configs, measure, gap, noise=[1.0] * 4, least=effective + 1e-6)
    assert sign_error(configs, measure, gap, noise=[0.0] * 4, least=4).mean == 0.25


def test_a_tied_outcome_weighs_nothing_where_noise_is_told() -> None:
    configs = [{"a": 0}, {"a": 0}, {"a": 1}]
    gap = [1.0, 2.0, 2.0]
    for level in (0.0, 0.1):
        found = sign_error(configs, [1, 2, 3], gap, noise=[level] * 3, least=1)
        assert found.mean == pytest.approx(0.0)
    ends = [-math.inf, math.inf, math.inf]  # two infinities are tied, and raise no warning
    assert sign_error(configs, [1, 2, 3], ends, noise=[0.1] * 3, least=1).mean == 0.0


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("source", range(5))
def test_it_is_that_of_a_loop(source: int, noisy: bool) -> None:
    """Ties, NaN, missing cells, unequal numbers of seeds, texts and booleans."""
    draws, configs, gap = ragged(source)
    size = len(configs)
    measure = np.round(gap + draws.normal(size=size), 1)
    measure[3] = math.nan
    noise = np.abs(draws.normal(size=size)) if noisy else None
    if noise is not None:
        noise[3] = math.nan  # of a network that is left out
    known = ~np.isnan(measure)
    kept = [one for one, here in zip(configs, known, strict=True) if here]
    deviations = None if noise is None else noise[known]
    for least in (1.0, 2.5):
        right = counted.sign_errors(kept, measure[known], gap[known], deviations, least)
        found = sign_error(configs, measure, gap, noise=noise, least=least)
        assert found.environments == len(right)
        assert (found.mean, found.largest) == pytest.approx((np.mean(right), max(right)))
        assert found.p90 == pytest.approx(np.quantile(right, 0.9))


def test_one_seed_has_too_few_pairs() -> None:
    with pytest.raises(SpiritlevelError, match="have 4 effective pairs: give more seeds, or a sma"):
        sign_error(LINE, [1, 2, 3], [1, 2, 3])
    found = sign_error(LINE * 2, [1, 2, 3] * 2, [1, 2, 3] * 2)  # 2 seeds make 4 pairs
    assert found == Signs(0.0, 0.0, 0.0, 3)


@pytest.mark.parametrize("wrong", [-0.1, math.inf, math.nan])
def test_what_is_no_standard_error_is_refused(wrong: float) -> None:
    with pytest.raises(
        SpiritlevelError, match="noise holds no standard errors: give numbers of at"
    ):
        sign_error(LINE, [1, 2, 3], [1, 2, 3], noise=[0.1, 0.1, wrong], least=1)
    with pytest.raises(SpiritlevelError, match="gap has 3 numbers and noise has 1: give one for"):
        sign_error(LINE, [1, 2, 3], [1, 2, 3], noise=[0.1])
    with pytest.raises(SpiritlevelError, match="least=0"):
        sign_error(LINE, [1, 2, 3], [1, 2, 3], least=0)
