"""Partial rank correlation against Kendall's formula, and against regression on signs of pairs."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

import counted
from spiritlevel import SpiritlevelError
from spiritlevel.studies import kendall, kendall_interval, partial_kendall
from spiritlevel.studies.ranks import drawn

pytestmark = pytest.mark.filterwarnings("ignore:.*are left out")  # see test_ranks

NETWORKS = list(range(20))


def formula(xy: float, xz: float, yz: float) -> float:
    return (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))


@pytest.mark.parametrize("tied", [False, True])
def test_one_control_is_kendalls_formula_in_every_resample(tied: bool) -> None:
    draws = np.random.default_rng(0)
    x, y, z = np.round(draws.normal(size=(3, 20)), 0 if tied else 9)
    clusters = np.arange(20) // 2
    found = partial_kendall(x, y, {"z": z}, clusters, resamples=100, seed=3)
    assert found.value == pytest.approx(formula(kendall(x, y), kendall(x, z), kendall(y, z)))
    times = drawn(10, 100, np.random.default_rng(3)).astype(int)[1:]
    pairs = ((x, y), (x, z), (y, z))
    each = [formula(*(counted.resample(a, b, clusters, one) for a, b in pairs)) for one in times]
    assert (found.low, found.high) == pytest.approx(np.quantile(each, [0.025, 0.975]), abs=1e-6)


def test_two_controls_are_those_of_a_regression_of_the_signs() -> None:
    """What is left of the signs of all pairs when those of the controls are taken out."""
    draws = np.random.default_rng(1)
    x, y, z, w = np.round(draws.normal(size=(4, 20)), 1)
    x, y = x + z, y + z - w
    pairs = list(combinations(range(20), 2))
    sx, sy, sz, sw = (np.array([np.sign(r[i] - r[j]) for i, j in pairs]) for r in (x, y, z, w))
    controls = np.stack([sz, sw], axis=1)
    left = [s - controls @ np.linalg.lstsq(controls, s, rcond=None)[0] for s in (sx, sy)]
    right = left[0] @ left[1] / np.linalg.norm(left[0]) / np.linalg.norm(left[1])
    found = partial_kendall(x, y, {"z": z, "w": w}, NETWORKS, resamples=5)
    assert found.value == pytest.approx(right)
    turned = partial_kendall(y, x, {"w": -w, "z": np.exp(z)}, NETWORKS, resamples=5)
    assert turned.value == pytest.approx(right)


def test_what_follows_from_the_control_is_taken_out() -> None:
    """x and y have nothing in common but z: tau is far from zero, and given z it is not."""
    draws = np.random.default_rng(0)
    z = draws.normal(size=200)
    x, y = z + draws.normal(size=200), z + draws.normal(size=200)
    clusters = np.arange(200)
    assert kendall_interval(x, y, clusters).low > 0.2
    given = partial_kendall(x, y, {"z": z}, clusters)
    # Kendall's partial is not zero there: taus 1/3, 1/2, 1/2 leave 1/9
    assert abs(given.value - formula(1 / 3, 1 / 2, 1 / 2)) < 0.12
    assert given.value < kendall(x, y) / 2


def test_networks_without_a_control_are_left_out_and_names_are_free() -> None:
    draws = np.random.default_rng(2)
    x, y, z = draws.normal(size=(3, 20))
    z[5] = math.nan
    kept = np.arange(20) != 5
    found = partial_kendall(x, y, {"x": z}, NETWORKS, resamples=5)
    alone = partial_kendall(x[kept], y[kept], {"y": z[kept]}, NETWORKS[:-1], resamples=5)
    assert found.value == pytest.approx(alone.value)


def test_controls_that_leave_nothing_are_refused() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    with pytest.raises(SpiritlevelError, match="the controls rank x or y fully; give others"):
        partial_kendall(x, y, {"z": 3 * x}, NETWORKS)
    with pytest.raises(SpiritlevelError, match="the controls rank x or y fully; give others"):
        partial_kendall(x, y, {"a": np.arange(20), "b": -np.arange(20)}, NETWORKS)
    with pytest.raises(
        SpiritlevelError, match=r"given\['z'\] is 1 everywhere: give one that varies"
    ):
        partial_kendall(x, y, {"z": [1] * 20}, NETWORKS)
    with pytest.raises(
        SpiritlevelError, match=r"x has 20 numbers and given\['z'\] has 2: give one"
    ):
        partial_kendall(x, y, {"z": [1, 2]}, NETWORKS)
    for wrong in ({}, None, [1, 2]):
        with pytest.raises(
            SpiritlevelError, match=r"given is .*: give the numbers of each control"
        ):
            partial_kendall(x, y, wrong, NETWORKS)  # type: ignore[arg-type]
    with pytest.raises(SpiritlevelError, match="of 1 configurations: this needs at least 2"):
        partial_kendall(x, y, {"z": y + x}, [0] * 20)
