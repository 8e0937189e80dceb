"""Barriers and radii: closed forms, within the errors that are told."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiritlevel as sl
from spiritlevel.landscape.axes import bent, centred, covering, halved
from spiritlevel.landscape.numbers import barrier, flat_radius


def axis(steps: int) -> list[float]:
    return [i / (steps - 1) for i in range(steps)]


@pytest.mark.parametrize("steps", [6, 7, 24, 25])
def test_the_barrier_of_a_parabola_is_exact(steps: int) -> None:
    places = axis(steps)
    found = barrier(places, [1 + 2 * s - 3 * (s - 0.4) ** 2 for s in places])
    # over the chord: 3 s (1 - s), whatever the slope
    assert found is not None
    assert found.value == pytest.approx(0.75, rel=1e-12)


@settings(max_examples=60)
@given(st.floats(0.2, 0.8), st.floats(0.05, 0.3), st.integers(5, 30))
def test_the_barrier_of_a_bump_lies_within_its_error(at: float, width: float, half: int) -> None:
    places = axis(2 * max(half, math.ceil(1 / width)) + 1)  # what no point sees nobody knows

    def bump(s: float) -> float:
        return math.exp(-(((s - at) / width) ** 2))

    fine = [i / 4000 for i in range(4001)]
    chord = [bump(0) + (bump(1) - bump(0)) * s for s in fine]
    truth = max(bump(s) - c for s, c in zip(fine, chord, strict=True))
    found = barrier(places, [bump(s) for s in places])
    assert found is not None
    assert abs(found.value - truth) <= 2 * found.error + 1e-5


def test_no_barrier_where_there_is_none_or_nothing_is_known() -> None:
    places = axis(5)
    flat = barrier(places, [s**2 for s in places])
    assert flat is not None
    assert flat.value == 0
    assert barrier(places, [1.0, 2.0, math.inf, 2.0, 1.0]) is None
    assert barrier(places, [1.0, None, 2.0, 2.0, 1.0]) is None


def test_the_radius_is_where_the_loss_has_risen() -> None:
    places = centred(41, 2.0)
    losses = [1 + (3 * a**2 if a > 0 else a**2) for a in places]
    for rise in (0.1, 0.5, 2.0):
        found = flat_radius(places, losses, rise, norm=5.0)
        truth = 5 * math.sqrt(rise / 3)
        assert found is not None
        assert abs(found.value - truth) <= found.error
        assert found.error <= 5 * 0.1
    assert flat_radius(places, losses, 100.0) is None
    assert flat_radius([0.1, 0.2], [1.0, 2.0], 0.1) is None
    wall = [1.0 if a <= 0 else math.inf for a in places]
    found = flat_radius(places, wall, 0.1)
    assert found is not None
    assert (found.value, found.error) == (pytest.approx(0.05), pytest.approx(0.05))
    with pytest.raises(sl.SpiritlevelError, match="rise=0: give a positive number"):
        flat_radius(places, losses, 0)


def test_axes() -> None:
    assert centred(5, 2.0) == [-2.0, -1.0, 0.0, 1.0, 2.0]
    covered = covering(-1.3, 2.2, 8)
    assert 0.0 in covered
    assert covered[0] <= -1.3
    assert covered[-1] >= 2.2
    assert len(covered) <= 10
    steps = {round(b - a, 12) for a, b in pairwise(covered)}
    assert steps == {0.5}


def test_intervals_that_bend_are_halved() -> None:
    places = centred(9, 4.0)
    straight = bent(places, [[-1 + 2 * a for a in places]])
    assert max(straight) == 0
    assert halved(places, straight) == places
    kinked = bent(places, [[-max(a - 2, 0.0) for a in places]])
    assert {i for i, b in enumerate(kinked) if b > 0} == {5, 6}
    assert halved(places, kinked) == [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
    missing = bent(places, [[1.0 if a < 3 else math.inf for a in places]])
    assert all(math.isfinite(b) for b in missing)
