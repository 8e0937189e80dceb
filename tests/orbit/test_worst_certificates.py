"""Certificates of worst cases over an orbit: rational weights, lengths, and what breaks them."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

import spiritlevel as sl
from brute import TINY
from spiritlevel.orbit.proofs import Choice, chosen, least_mean

UP, DOWN = ((0, Fraction(1)),), ((0, Fraction(-1)),)


def test_a_certificate_that_is_tampered_with_breaks() -> None:
    found = sl.orbit.worst_case(TINY["two layers without biases"](), radius=0.3)
    assert found.proof is not None
    proof, (choice,) = found.proof, found.proof.choices
    assert proof.holds(0.3)
    assert not proof.holds(0.29)
    first, *rest = choice.weights
    for weights in (
        (first + Fraction(1, 10**30), *rest),
        (-first, *rest),
        tuple(2 * y for y in choice.weights),
        (Fraction(1), *(Fraction(0) for _ in rest)),
    ):
        changed = dataclasses.replace(choice, weights=weights)
        assert not dataclasses.replace(proof, choices=(changed,)).holds(0.3)
    longer = dataclasses.replace(choice, lengths=tuple(1.01 * a for a in choice.lengths))
    assert not dataclasses.replace(proof, choices=(longer,)).holds(0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("name", "radius"), [("two units", 0.6), ("two layers without biases", 0.3)]
)
def test_what_a_certificate_says_is_found_anew(
    name: str, radius: float, dtype: torch.dtype
) -> None:
    """Of units, and of classes: rise, steps, lengths and rows that are others do not hold."""
    found = sl.orbit.worst_case(TINY[name]().to(dtype), radius=radius)
    proof = found.proof
    assert proof is not None
    assert proof.alternatives == (name != "two units")
    assert found.holds()
    last = proof.choices[-1]
    shorter = dataclasses.replace(last, lengths=tuple(0.99 * a for a in last.lengths))
    nothing = dataclasses.replace(last, lengths=tuple(math.nan for _ in last.lengths))
    still = dataclasses.replace(last, rows=tuple(() for _ in last.rows))
    for change in (
        {"rise": 1.001 * proof.rise},
        {"steps": tuple(1.001 * step for step in proof.steps)},
        {"steps": tuple(torch.ones_like(step) for step in proof.steps)},
        *({"choices": (*proof.choices[:-1], choice)} for choice in (shorter, nothing, still)),
    ):
        told = dataclasses.replace(proof, **change)
        assert not dataclasses.replace(found, proof=told).holds()
    assert not dataclasses.replace(found, lower=1.001 * found.lower).holds()
    assert not dataclasses.replace(found, radius=0.99 * radius).holds()
    assert not dataclasses.replace(found, proof=None).holds()


def test_a_length_is_no_less_than_its_mean() -> None:
    """prod a_k^p_k <= length^q in rational numbers, with integers p and q."""
    draws = torch.Generator().manual_seed(0)
    for _ in range(200):
        sizes = (6 * torch.randn(3, generator=draws, dtype=torch.float64)).exp().tolist()
        parts = torch.randint(1, 9, (3,), generator=draws).tolist()
        weights = tuple(Fraction(p, sum(parts)) for p in parts)
        found = Choice(("a", "b", "c"), ((), (), ()), tuple(sizes), weights).length
        exact = math.prod(Fraction(a) ** p for a, p in zip(sizes, parts, strict=True))
        assert Fraction(found) ** sum(parts) >= exact
        assert found == pytest.approx(float(exact) ** (1 / sum(parts)), rel=1e-13)


def test_weights_are_found_in_rational_numbers() -> None:
    """A third each along a path of three; a square has 2/3 on the side of the smaller exponent."""
    path = [((0, Fraction(1)),), ((0, Fraction(-1)), (1, Fraction(1))), ((1, Fraction(-1)),)]
    found = chosen("abc", path, [1.0, 2.0, 4.0])
    assert found is not None
    assert found.weights == (Fraction(1, 3),) * 3
    assert found.length == pytest.approx(2.0, rel=1e-14)
    square = chosen("ab", [UP, ((0, Fraction(-2)),)], [1.0, 8.0])
    assert square is not None
    assert square.weights == (Fraction(2, 3), Fraction(1, 3))
    assert square.length == pytest.approx(2.0, rel=1e-14)
    assert chosen("ab", [UP, UP], [1.0, 1.0]) is None  # both grow
    assert chosen("abc", [UP, DOWN, UP], [1.0, 1.0, 1.0]) is None  # not just one
    assert not Choice(("a",), (UP,), (1.0,), (Fraction(1),)).holds()


def test_the_program_takes_the_least_mean() -> None:
    import numpy as np
    from scipy.sparse import csr_matrix

    exponents = csr_matrix(np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [1, 0]]))
    logs = np.array([0.0, 1.0, 2.0, -2.0, -0.5])
    assert least_mean(exponents, logs) == [2, 3]
    assert least_mean(exponents, logs + np.array([0, 0, 9.0, 9.0, 0])) == [1, 4]
    assert least_mean(exponents[[0, 2]], logs[[0, 2]]) == []
