"""kl of two coins and its inverse, against each other and against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from spiritlevel import SpiritlevelError
from spiritlevel.bounds import kl, kl_inverse, kl_inverse_below


def pairs() -> list[tuple[float, float]]:
    """10,000 with q <= p: anywhere, close together, near 0 and near 1."""
    draws = np.random.default_rng(0)
    q, p = np.sort(draws.random((2, 4000)), axis=0)
    tiny = 10.0 ** draws.uniform(-300, -1, (2, 2000))
    low, high = np.sort(tiny, axis=0)
    near = draws.random(2000)
    close = near + (1 - near) * 10.0 ** draws.uniform(-12, 0, 2000)
    found = [*zip(q, p, strict=True), *zip(low, high, strict=True), *zip(near, close, strict=True)]
    found += [*zip(1 - high, 1 - low, strict=True)][: 2000 - 6]
    edges = [(0.0, 0.0), (0.0, 1e-300), (0.0, 0.5), (0.5, 0.5), (1e-300, 0.5), (0.3, 1 - 1e-16)]
    return [(float(a), float(b)) for a, b in (*found, *edges)]


def test_the_inverse_gives_back_the_other_coin() -> None:
    cases = pairs()
    assert len(cases) == 10_000
    worst = max(abs(kl_inverse(q, kl(q, p)) - p) for q, p in cases if p < 1)
    assert worst < 1e-12
    below = max(abs(kl_inverse_below(p, kl(p, q)) - q) for q, p in cases if q > 0 and p < 1)
    assert below < 1e-12


def test_no_more_of_the_budget_is_left_than_rounding() -> None:
    """At the inverse kl is the budget, to the last digits of p; and Pinsker's bound is above it."""
    draws = np.random.default_rng(1)
    for q, budget in zip(0.9 * draws.random(500), draws.exponential(0.3, 500), strict=True):
        p = kl_inverse(q, budget)
        assert p < 1
        slope = (p - q) / (p * (1 - p))
        assert abs(kl(q, p) - budget) < 1e-15 * slope + 1e-14
        assert p < q + math.sqrt(budget / 2)


def test_closed_forms() -> None:
    assert kl_inverse(0.0, 0.7) == pytest.approx(1 - math.exp(-0.7), rel=1e-15)
    assert kl_inverse(0.3, 0.0) == 0.3
    assert kl_inverse(1.0, 0.1) == 1.0
    assert kl_inverse(0.2, math.inf) == 1.0
    assert kl(0.5, 0.25) == pytest.approx(0.5 * math.log(4 / 3), rel=1e-15)
    assert kl(0.2, 0.0) == math.inf
    assert kl(0.5, 5e-324) == pytest.approx(-0.5 * (math.log(5e-324) + 2 * math.log(2)), rel=1e-12)
    assert kl(5e-324, 0.5) == pytest.approx(math.log(2), rel=1e-12)
    assert kl(1.0, 0.25) == pytest.approx(math.log(4), rel=1e-15)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kl(1.2, 0.5), "q=1.2: give a share between 0 and 1"),
        (lambda: kl(0.2, -0.5), "p=-0.5: give a number of at least 0"),
        (lambda: kl_inverse(0.2, -1.0), "budget=-1.0: give a number of at least 0"),
        (lambda: kl_inverse(math.nan, 1.0), "error=nan: give a number"),
    ],
)
def test_what_is_no_coin_is_refused(call: Callable[[], float], words: str) -> None:
    with pytest.raises(SpiritlevelError, match=words):
        call()
