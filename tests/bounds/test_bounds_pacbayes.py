"""PAC-Bayes and Occam bounds against closed forms; what they cannot be made of is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from spiritlevel import SpiritlevelError, bounds
from spiritlevel.results.bound import Bound

SAME_EVENT = (bounds.maurer, bounds.mcallester, bounds.quadratic, bounds.thiemann)
GRID = bounds.on_grid(0.05)


def roy(**given: float) -> Bound:
    return bounds.dziugaite_roy(scale=GRID[1], **given)  # type: ignore[arg-type]


def catoni(**given: float) -> Bound:
    return bounds.catoni(rate=1.3, **given)  # type: ignore[arg-type]


def occam(*, kl: float, **given: float) -> Bound:
    return bounds.occam(nats=kl, **given)  # type: ignore[arg-type]


ALL: tuple[Callable[..., Bound], ...] = (*SAME_EVENT, roy, catoni, occam)


def test_without_an_error_and_a_divergence() -> None:
    """1 - (delta / (2 sqrt(m)))^(1/m), and what Pinsker and the others make of it."""
    b = math.log(2 * math.sqrt(1000) / 0.05)
    given: Any = {"error": 0.0, "kl": 0.0, "m": 1000}
    assert bounds.maurer(**given).value == pytest.approx(1 - math.exp(-b / 1000), rel=1e-14)
    assert bounds.mcallester(**given).value == pytest.approx(math.sqrt(b / 2000), rel=1e-14)
    assert bounds.quadratic(**given).value == pytest.approx(2 * b / 1000, rel=1e-14)
    assert bounds.thiemann(rate=0.5, **given).value == pytest.approx(
        b / (1000 * 0.5 * 0.75), rel=1e-14
    )
    assert occam(**given).value == pytest.approx(1 - 0.05**0.001, rel=1e-12)


def test_an_error_by_hand() -> None:
    given: Any = {"error": 0.1, "kl": 30.0, "m": 500, "delta": 0.02}
    b = (30 + math.log(2 * math.sqrt(500) / 0.02)) / 500
    risk = bounds.maurer(**given).value
    assert bounds.kl(0.1, risk) == pytest.approx(b, rel=1e-13)
    assert bounds.maurer(**given)["budget"] == pytest.approx(b, rel=1e-14)
    assert bounds.mcallester(**given).value == pytest.approx(0.1 + math.sqrt(b / 2))
    root = (math.sqrt(0.1 + b / 2) + math.sqrt(b / 2)) ** 2
    assert bounds.quadratic(**given).value == pytest.approx(root)
    found = bounds.catoni(rate=2.0, **given).value
    paid = (30 + math.log(1 / 0.02)) / 500
    assert found == pytest.approx((1 - math.exp(-0.2 - paid)) / (1 - math.exp(-2.0)))


def test_the_constant_of_maurer_for_every_number_of_examples() -> None:
    """sum_k C(m, k) (k/m)^k (1 - k/m)^(m - k) lies between sqrt(m) and 2 sqrt(m), m = 1, 2, ..."""
    for m in (*range(1, 200), 1000, 100_000):
        k = np.arange(m + 1.0)
        logs = gammaln(m + 1) - gammaln(k + 1) - gammaln(m - k + 1)
        logs += np.where(k > 0, k * np.log(np.maximum(k, 1) / m), 0)
        logs += np.where(k < m, (m - k) * np.log(np.maximum(m - k, 1) / m), 0)
        assert math.sqrt(m) <= np.exp(logs).sum() <= 2 * math.sqrt(m) * (1 + 1e-9)


def test_dziugaite_and_roy_by_hand() -> None:
    index, scale = GRID
    assert index == round(100 * math.log(0.1 / 0.05**2))
    assert scale**2 == pytest.approx(0.1 * math.exp(-index / 100), rel=1e-13)
    found = roy(error=0.03, kl=5000, m=55_000, delta=0.025)
    more = math.log(math.pi**2 * 55_000 / (6 * 0.025)) + 2 * math.log(
        100 * math.log(0.1 / scale**2)
    )
    b = (5000 + more) / 54_999
    assert found["budget"] == pytest.approx(b, rel=1e-12)
    assert found["square root"] == pytest.approx(math.sqrt(b / 2), rel=1e-12)
    assert bounds.kl(0.03, found.value) == pytest.approx(b, rel=1e-12)


def test_a_bound_above_one_is_said_and_not_inverted_away() -> None:
    """Random labels of their table: the square root is above 1, the inverse is below."""
    found = roy(error=0.112, kl=201_131, m=55_000, delta=0.025)
    assert found["square root"] == pytest.approx(1.352, abs=5e-4)
    assert found.value == pytest.approx(0.989, abs=5e-4)
    assert not found.vacuous
    assert bounds.mcallester(error=0.112, kl=201_131, m=55_000).vacuous


def test_shares_of_a_grid_sum_to_delta() -> None:
    shares = [bounds.grid_share(0.05, j) for j in range(1, 20_000)]
    assert 0.05 * (1 - 1e-4) < sum(shares) < 0.05
    one = bounds.maurer(error=0.1, kl=30.0, m=500, index=7)
    other = bounds.maurer(error=0.1, kl=30.0, m=500, delta=bounds.grid_share(0.05, 7))
    assert one.value == other.value
    assert one.delta == 0.05
    assert "grid" in one.assumptions[-1]
    assert bounds.on_grid(3.0)[0] == 1  # larger than all entries: the largest
    for j in (1, 17, 900):
        scale = math.sqrt(0.2 * math.exp(-j / 30))
        assert bounds.on_grid(scale * 1.001, precision=30, largest=0.2) == pytest.approx((j, scale))


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    odd: Any = {"error": torch.tensor(0.1), "kl": np.float32(3), "m": np.int64(50), "delta": 0.05}
    plain: Any = {"error": float(odd["error"]), "kl": 3.0, "m": 50, "delta": 0.05}
    for bound in ALL:
        found = bound(**odd)
        assert type(found.value) is float
        assert {type(term.value) for term in found.terms} <= {float, int}
        assert found.value == pytest.approx(bound(**plain).value, rel=1e-12)


# Laws ---------------------------------------------------------------------------------------------

numbers = st.fixed_dictionaries(
    {
        "error": st.floats(0, 1),
        "kl": st.one_of(st.floats(0, 1e6), st.just(math.inf)),
        "m": st.integers(2, 10**7),
        "delta": st.floats(1e-6, 0.999),
    }
)


@settings(max_examples=60)
@given(numbers, numbers)
def test_bounds_rise_with_error_and_divergence_and_fall_with_examples(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    for bound in ALL:
        for name, value in one.items():
            low, high = sorted((value, other[name]))
            first = bound(**{**one, name: low}).value
            second = bound(**{**one, name: high}).value
            if name in ("m", "delta"):
                first, second = second, first
            assert first <= second * (1 + 1e-9) + 1e-12, (bound, name)


@settings(max_examples=100)
@given(numbers, st.floats(0.01, 1.99))
def test_the_order_of_bounds_of_one_event(given_: dict[str, Any], rate: float) -> None:
    """kl inverted is the least; the best rate gives the quadratic one, and no other a smaller."""
    maurer, pinsker, quadratic, best = (bound(**given_).value for bound in SAME_EVENT)
    assert given_["error"] <= maurer <= min(pinsker, quadratic) + 1e-9
    if math.isfinite(best):
        assert best == pytest.approx(quadratic, rel=1e-9)
    assert bounds.thiemann(rate=rate, **given_).value >= best * (1 - 1e-9)


@settings(max_examples=100)
@given(numbers)
def test_dziugaite_and_roy_follows_from_maurer(given_: dict[str, Any]) -> None:
    stronger = bounds.maurer(index=GRID[0], **given_).value
    assert stronger <= roy(**given_).value + 1e-9


# Doors --------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"error": 0.1, "kl": 10.0, "m": 100, "delta": 0.05}


@pytest.mark.parametrize("bound", ALL)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"error": 1.1}, "error=1.1: give a share between 0 and 1"),
        ({"error": -0.1}, "error=-0.1: give a number of at least 0"),
        ({"kl": -1.0}, "=-1.0: give a number of at least 0"),
        ({"kl": math.nan}, "=nan: give a number"),
        ({"m": 1}, "m=1: give a whole number of at least 2"),
        ({"m": 10.5}, "m=10.5: give a whole number"),
        ({"delta": 0.0}, "delta=0.0: give a positive number"),
        ({"delta": 1.0}, "delta=1.0: give a probability between 0 and 1"),
    ],
)
def test_wrong_numbers_are_refused(
    bound: Callable[..., Bound], wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpiritlevelError, match=words):
        bound(**{**GOOD, **wrong})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bounds.thiemann(rate=2.0, **GOOD), "rate=2.0: give a number between 0 and 2"),
        (lambda: bounds.thiemann(rate=0.0, **GOOD), "rate=0.0: give a positive number"),
        (lambda: bounds.catoni(rate=-1.0, **GOOD), "rate=-1.0: give a positive number"),
        (lambda: bounds.maurer(index=0, **GOOD), "index=0: give a whole number of at least 1"),
        (lambda: bounds.dziugaite_roy(scale=0.05, **GOOD), "scale=0.05 is not on the grid"),
        (lambda: bounds.dziugaite_roy(scale=0.4, **GOOD), "on_grid.scale. is the nearest, 0.314"),
        (lambda: bounds.on_grid(0.0), "scale=0.0: give a positive number"),
        (lambda: bounds.grid_share(1.5, 1), "delta=1.5: give a probability"),
    ],
)
def test_other_wrong_arguments_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(SpiritlevelError, match=words):
        call()
