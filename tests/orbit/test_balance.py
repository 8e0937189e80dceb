"""Sums of exponentials over the orbit: closed forms, sides, and a bound from any point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from spiritlevel.orbit.balance import balance
from spiritlevel.orbit.program import _runaway


@pytest.mark.parametrize(("up", "down"), [(1, 1), (2, 1), (0.5, 3)])
def test_any_exponents_have_a_closed_form(up: float, down: float) -> None:
    """4 e^(-2 a t) + e^(2 b t) is least at t = log(4 a / b) / (2 (a + b)): one step is enough."""
    found = balance(csr_matrix([[up], [-down]]), np.array([4.0, 1.0]), [np.array([0])])
    t = math.log(4 * up / down) / (2 * (up + down))
    assert found.t[0] == pytest.approx(t, rel=1e-12)
    assert found.value == pytest.approx(4 * math.exp(-2 * up * t) + math.exp(2 * down * t))
    assert found.sweeps <= 2
    assert found.residual <= 1e-12


def test_sides_without_mass_are_told_apart_and_stay() -> None:
    """Generators with mass on two sides, on one, on the other, on none."""
    exponents = csr_matrix(np.vstack([np.eye(4), -np.eye(4)]))
    masses = np.array([4.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    blocks = [np.arange(4)]
    found = balance(exponents, masses, blocks, start=np.full(4, 0.7))
    assert found.dead.tolist() == [False, False, False, True]
    assert found.one_sided.tolist() == [False, True, True, False]
    assert found.t.tolist() == pytest.approx([math.log(4) / 4, 0, 0, 0], rel=1e-9)
    assert found.value == pytest.approx(4 + 2, rel=1e-9)
    kept = balance(exponents, masses, blocks, start=np.full(4, 0.7), free=np.zeros(4))
    assert kept.t.tolist() == [0, 0, 0, 0]
    assert kept.value == pytest.approx(masses.sum())


@settings(max_examples=100, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 3.0]))
def test_the_bound_holds_from_any_point(seed: int, far: float) -> None:
    draws = np.random.default_rng(seed)
    cells, dim = 9, 3
    exponents = draws.integers(-2, 3, (cells, dim)).astype(float)
    exponents[: 2 * dim] = np.vstack([np.eye(dim), -np.eye(dim)])
    masses = np.exp(draws.normal(size=cells))
    table, free = csr_matrix(exponents), np.ones(dim)
    least = balance(table, masses, [np.array([k]) for k in range(dim)], None, free)
    assert least.lower_bound == pytest.approx(least.value, rel=1e-6)
    there = balance(table, masses, [], far * draws.normal(size=dim), free)
    assert 0 <= there.lower_bound <= least.value * (1 + 1e-9)


def test_cells_that_run_away_together_are_found() -> None:
    """t = (1, 1) sends the first cell to zero and leaves the others; no generator does alone."""
    exponents = csr_matrix([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
    masses = np.array([3.0, 2.0, 5.0])
    start = balance(exponents, masses, [np.array([0]), np.array([1])])
    assert not start.one_sided.any()
    assert _runaway(exponents, masses, start).tolist() == [True, False, False]
    held = csr_matrix(exponents.multiply(np.array([[0.0], [1.0], [1.0]])))
    rest = balance(held, masses, [np.array([0]), np.array([1])])
    assert rest.value == pytest.approx(3 + 2 * math.sqrt(10), rel=1e-9)
    assert not _runaway(held, masses, rest).any()
