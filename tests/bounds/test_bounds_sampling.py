"""How large a mean can be: against exact wealth, and laws of what betting gives."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiritlevel import SpiritlevelError
from spiritlevel.bounds import drawn, kl, mean_above
from spiritlevel.bounds.sampling import BETS, MONEY

shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def wealth(values: list[float], p: float) -> Fraction:
    """sum_b money_b prod_i (1 + b (p - x_i) / (1 - p)), without rounding."""
    total = Fraction(0)
    for bet, money in zip(BETS.tolist(), MONEY.tolist(), strict=True):
        won = Fraction(money)
        for x in values:
            won *= 1 + Fraction(bet) * (Fraction(p) - Fraction(x)) / (1 - Fraction(p))
        total += won
    return total


def test_no_gambler_can_lose_more_than_all_and_the_money_is_one() -> None:
    assert MONEY.sum() == pytest.approx(1, abs=1e-15)
    assert MONEY.min() > 0
    assert 0 < BETS.min() < 1e-3
    assert BETS.max() == 1


@settings(max_examples=60)
@given(shares, st.floats(1e-6, 0.9))
def test_what_is_refused_is_refused_without_rounding(values: list[float], delta: float) -> None:
    """W >= 1 / delta at the bound, and less a little below it: safe, and not wasteful."""
    found = mean_above(values, delta)
    assert found >= sum(values) / len(values) - 1e-12
    if found < 1:
        assert wealth(values, found) >= 1 / Fraction(delta)
        below = found - 1e-9 * (1 - found) - 1e-10
        if below > max(values):
            assert wealth(values, below) < 1 / Fraction(delta)


@settings(max_examples=40)
@given(shares, st.integers(0, 11), st.floats(0, 1), st.floats(1e-6, 0.5))
def test_it_rises_with_every_value_and_falls_with_delta(
    values: list[float], place: int, up: float, delta: float
) -> None:
    found = mean_above(values, delta)
    more = list(values)
    more[place % len(values)] = max(up, values[place % len(values)])
    assert mean_above(more, delta) >= found - 1e-9
    assert mean_above(values[::-1], delta) == pytest.approx(found, abs=1e-9)
    assert mean_above(values, 1.5 * delta) <= found + 1e-9


def test_where_numbers_hardly_vary_it_is_near_log_of_delta_over_draws() -> None:
    """(log(1 / delta) + log 2) (1 - mean) / draws, far below what their mean alone allows."""
    values = 0.03 + 0.002 * np.random.default_rng(0).uniform(-1, 1, 2000)
    above = mean_above(values, 0.01) - values.mean()
    law = (math.log(100) + math.log(2)) * (1 - values.mean()) / 2000
    assert above == pytest.approx(law, rel=0.01)
    assert above < (drawn(error=float(values.mean()), draws=2000) - values.mean()) / 5


def test_many_numbers_are_taken_in_pieces() -> None:
    values = np.random.default_rng(1).random(25_001)
    whole = mean_above(values, 0.05)
    deviation = math.sqrt(2 * math.log(20) * values.var() / len(values))
    assert 0.9 * deviation < whole - values.mean() < 2 * deviation


def test_all_ones_tell_nothing() -> None:
    assert mean_above([1.0, 1.0], 0.1) == 1.0


def test_drawn_by_hand() -> None:
    assert drawn(error=0.0, draws=100) == pytest.approx(1 - 0.005**0.01, rel=1e-12)
    assert kl(0.2, drawn(error=0.2, draws=50, delta=0.1)) == pytest.approx(math.log(20) / 50)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"values": [0.1, 1.2]}, "values holds what is no number in .0, 1."),
        ({"values": []}, "values holds what is no number"),
        ({"values": [math.nan]}, "values holds what is no number"),
        ({"values": [[0.1]]}, "values holds what is no number"),
        ({"values": "many"}, "values is a str; give a row"),
        ({"delta": 0.0}, "delta=0.0: give a positive number"),
        ({"delta": 1.0}, "delta=1.0: give a probability"),
    ],
)
def test_what_is_no_row_of_shares_is_refused(given_: dict[str, Any], words: str) -> None:
    with pytest.raises(SpiritlevelError, match=words):
        mean_above(**{"values": [0.1, 0.2], "delta": 0.05, **given_})


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"error": 1.5}, "error=1.5: give a share"),
        ({"draws": 0}, "draws=0: give a whole number of at least 1"),
        ({"delta": 2}, "delta=2: give a probability"),
    ],
)
def test_drawn_refuses(given_: dict[str, Any], words: str) -> None:
    with pytest.raises(SpiritlevelError, match=words):
        drawn(**{"error": 0.1, "draws": 10, **given_})
