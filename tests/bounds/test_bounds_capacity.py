"""Bounds from dimensions, norms, stability and sharpness against closed forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spiritlevel import SpiritlevelError, bounds

# VC dimension -------------------------------------------------------------------------------------


def layers(*sizes: int) -> list[tuple[int, int]]:
    return [((a + 1) * b, b) for a, b in itertools.pairwise(sizes)]


def test_the_dimension_of_a_net_by_hand() -> None:
    """784-600-1: L = 2, W_1 = 471,000, W_2 = 471,601, R = 602."""
    inside = 4 * math.e * 602 * math.log2(2 * math.e * 602)
    expected = 2 + (471_000 + 471_601) * math.log2(inside)
    assert bounds.vc_dimension(layers(784, 600, 1)) == pytest.approx(expected, rel=1e-14)
    assert bounds.vc_dimension(layers(784, 600, 1)) == pytest.approx(15.3e6, rel=2e-3)
    units = 2 * 471_601 * (601 + math.log2(24))
    assert bounds.vc_dimension(layers(784, 600, 1), "units") == pytest.approx(units, rel=1e-14)


def test_dimensions_stand_to_each_other_as_published_ones() -> None:
    """Dziugaite & Roy print 26, 56, 26, 66, 187 and 121 millions: one factor, to their digits."""
    nets = ((600,), (1200,), (300, 300), (600, 600), (1200, 1200), (600, 600, 600))
    found = [bounds.vc_dimension(layers(784, *net, 1)) for net in nets]
    factors = [p * 1e6 / f for p, f in zip((26, 56, 26, 66, 187, 121), found, strict=True)]
    assert max(factors) / min(factors) < 1 + 2 * 0.5 / 26


def test_the_labellings_that_the_dimension_forbids() -> None:
    """One more point than the dimension has more labellings than Warren's count of sign patterns.

    The count is prod_i 2 (2 e m i k_i / W_i)^W_i, and 2 (2 e m 2^U L / W)^W for the other form.
    """
    for sizes in ((3, 2, 1), (784, 600, 1), (10, 20, 20, 20, 1)):
        net = layers(*sizes)
        m = bounds.vc_dimension(net) + 1
        total, bits = 0, 0.0
        for i, (w, k) in enumerate(net, 1):
            total += w
            bits += 1 + total * math.log2(2 * math.e * m * i * k / total)
        assert bits < m
        m = bounds.vc_dimension(net, "units") + 1
        units = sum(k for _, k in net)
        assert 1 + total * (math.log2(2 * math.e * m * len(net) / total) + units) < m


def test_a_bound_from_a_dimension_by_hand() -> None:
    found = bounds.vc(error=0.1, dimension=10, m=100_000)
    growth = 10 * math.log(2 * math.e * 100_000 / 10)
    c = 4 * (growth + math.log(80)) / 100_000
    assert found.value - 0.1 == pytest.approx(math.sqrt(c * found.value), rel=1e-12)
    assert bounds.vc(error=0.0, dimension=1e7, m=1000)["log labellings"] == 2000 * math.log(2)


def test_a_dimension_above_the_examples_is_vacuous() -> None:
    assert bounds.vc(error=0.0, dimension=15.3e6, m=55_000).vacuous


# Margins ------------------------------------------------------------------------------------------

SPECTRAL: dict[str, Any] = {
    **{"error": 0.1, "margin": 1.0, "spectral": [1.0, math.e], "distances": [1.0, math.e]},
    **{"inputs": 100.0, "width": 20, "m": 10_000},
}
PATH: dict[str, Any] = {
    **{"error": 0.1, "margin": 1.0, "norm": math.e, "inputs": 1.0},
    **{"features": 10, "layers": 3, "m": 10_000},
}
FROBENIUS: dict[str, Any] = {
    **{"error": 0.1, "margin": 1.0, "spectral": [1.0, math.e], "frobenius": [2.0, 3.0]},
    **{"inputs": 2.0, "width": 20, "m": 10_000},
}


def nats(*places: int) -> float:
    """log(pi^2 j^2 / 6) of entries of the grids, counted 0, 1, -1, 2, ... from 1."""
    return sum(2 * math.log(j) + math.log(math.pi**2 / 6) for j in places)


def test_spectral_norms_by_hand() -> None:
    """Numbers on the grid, so that nothing is rounded: exp(j / 40), j = 0 and 40."""
    found = bounds.spectral_margin(**SPECTRAL)
    c = math.sqrt(8 * math.log(800)) * 100 * math.e * 2**1.5
    assert found["complexity"] == pytest.approx(c / 10_000, rel=1e-12)
    assert found["capacity"] == pytest.approx(24 * c / 10_000)  # 3 c > m: no logarithm
    many = bounds.spectral_margin(**{**SPECTRAL, "m": 10**6})["capacity"]
    assert many == pytest.approx(24 * c / 10**6 * (1 + math.log(10**6 / (3 * c))))
    paid = nats(1, 80, 1, 80, 1) + math.log(2 / 0.05)
    assert found["confidence"] == pytest.approx(3 * math.sqrt(paid / 20_000))
    assert found.value == pytest.approx(0.1 + found["capacity"] + found["confidence"])
    same = bounds.spectral_margin(**{**SPECTRAL, "distances": [0.0, 0.0]})
    assert same["complexity"] < 1e-9  # a network that was not trained has no capacity


def test_path_norms_by_hand() -> None:
    reach = 4 * math.e * math.sqrt(2 * math.log(20) / 10_000)
    paid = nats(40, 1) + math.log(2 / 0.05)
    for classes, times in ((1, 2), (2, 8), (10, 40)):
        found = bounds.path(classes=classes, **PATH)
        assert found["capacity"] == pytest.approx(times * reach, rel=1e-12)
        assert found["confidence"] == pytest.approx(3 * math.sqrt(paid / 20_000))


def test_spectral_and_frobenius_norms_by_hand() -> None:
    found = bounds.spectral_frobenius(**FROBENIUS)
    level = math.exp(0.5)
    sigma = 1 / (4 * math.e * math.sqrt(2) * 2 * 2 * level * math.sqrt(20 * math.log(160)))
    kl = (4 * level**2 + 9 / math.e) / (2 * sigma**2)
    assert found["sigma"] == pytest.approx(sigma, rel=1e-12)
    assert found["kl"] == pytest.approx(kl, rel=1e-12)
    paid = nats(40, 1) + math.log(6 * 10_000 / 0.05)
    assert found["capacity"] == pytest.approx(4 * math.sqrt((kl + paid) / 9999))


def test_scaling_layers_against_each_other_changes_little() -> None:
    """The products stay: only the grids move, by e^(1/20) at most and a few nats."""
    one = bounds.spectral_margin(**SPECTRAL)
    moved = {"spectral": [1000.0, math.e / 1000], "distances": [1000.0, math.e / 1000]}
    other = bounds.spectral_margin(**{**SPECTRAL, **moved})
    assert other["complexity"] == pytest.approx(one["complexity"], rel=0.11)


@settings(max_examples=80)
@given(st.floats(1e-3, 1e3), st.floats(1, 100))
def test_capacities_rise_with_norms_and_fall_with_margins(size: float, more: float) -> None:
    def both(bound: Callable[..., Any], base: dict[str, Any], name: str, term: str) -> list[float]:
        values = (size, size * more)
        return [
            bound(**{**base, name: [v, 1.0] if isinstance(base[name], list) else v})[term]
            for v in values
        ]

    for name in ("spectral", "distances", "inputs"):
        low, high = both(bounds.spectral_margin, SPECTRAL, name, "capacity")
        assert low <= high * (1 + 1e-9)
    for name in ("norm", "inputs"):
        low, high = both(bounds.path, PATH, name, "capacity")
        assert low <= high * (1 + 1e-9)
    wide = {**FROBENIUS, "inputs": 1e4}  # so that every margin is possible
    low, high = both(
        bounds.spectral_frobenius, {**wide, "spectral": [1e-3, 1.0]}, "frobenius", "kl"
    )
    assert low <= high * (1 + 1e-9)
    for bound, base, term in (
        (bounds.spectral_margin, SPECTRAL, "capacity"),
        (bounds.path, PATH, "capacity"),
        (bounds.spectral_frobenius, wide, "kl"),
    ):
        low, high = both(bound, base, "margin", term)
        assert low >= high * (1 - 1e-9)
        fewer = bound(**base).value
        assert bound(**{**base, "m": math.ceil(base["m"] * more)}).value <= fewer * (1 + 1e-9)


def test_deep_networks_of_large_norms_are_infinitely_bad_and_no_error() -> None:
    deep = [1e10] * 60
    far: Any = {**SPECTRAL, "spectral": deep, "distances": deep}
    assert bounds.spectral_margin(**far).value == math.inf
    assert bounds.spectral_frobenius(**{**FROBENIUS, "spectral": deep, "frobenius": deep}).vacuous
    assert bounds.path(**{**PATH, "layers": 2000}).value == math.inf


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    """float32 is not computed with, and nothing but plain numbers is kept."""
    t = torch.tensor
    for bound, base in (
        (bounds.spectral_margin, SPECTRAL),
        (bounds.path, PATH),
        (bounds.spectral_frobenius, FROBENIUS),
        (bounds.vc, VC),
        (bounds.hardt_convex, CONVEX),
        (bounds.hardt_nonconvex, CONVEX),
        (bounds.hardt_strongly_convex, STRONG),
        (bounds.expected_sharpness, SHARP),
    ):
        odd: Any = {
            k: v if isinstance(v, int) else t(v, dtype=torch.float32) for k, v in base.items()
        }
        plain: Any = {k: v if isinstance(v, int) else v.tolist() for k, v in odd.items()}
        found, expected = bound(**odd), bound(**plain)
        assert found == expected
        assert type(found.value) is float
        assert {type(term.value) for term in found.terms} <= {float, int}


# Stability ----------------------------------------------------------------------------------------


def test_stability_by_hand() -> None:
    convex = bounds.hardt_convex(lipschitz=2.0, smoothness=0.5, rates=[0.1] * 30, m=100)
    assert convex.value == pytest.approx(2 * 4 * 3 / 100)
    assert convex.delta is None
    assert not convex.vacuous
    strongly = bounds.hardt_strongly_convex(
        lipschitz=2.0, smoothness=0.5, convexity=0.25, rate=2.0, m=100, largest=0.3
    )
    assert strongly.value == pytest.approx(2 * 4 / 25)
    assert strongly.vacuous  # beside a largest loss of 0.3
    rates = [0.5 / t for t in range(1, 1001)]
    found = bounds.hardt_nonconvex(lipschitz=2.0, smoothness=2.0, rates=rates, m=101)
    assert found.value == pytest.approx(2 / 100 * math.sqrt(2 * 0.5 * 4) * math.sqrt(1000))
    assert found["c"] == pytest.approx(0.5)


# Sharpness ----------------------------------------------------------------------------------------

SHARP: dict[str, Any] = {
    **{"error": 0.01, "sharpness": 0.02, "norm": 3.0, "sigma": 0.1, "m": 55_000},
}


def test_expected_sharpness_by_hand() -> None:
    found = bounds.expected_sharpness(**SHARP)
    capacity = 4 * math.sqrt((450 + math.log(110_000 / 0.05)) / 55_000)
    assert found.value == pytest.approx(0.03 + capacity, rel=1e-13)
    assert found.value > bounds.mcallester(error=0.03, kl=450, m=55_000).value
    third = bounds.expected_sharpness(index=3, **SHARP)
    assert third["capacity"] == pytest.approx(
        4 * math.sqrt((450 + math.log(110_000 / 0.05) + nats(3)) / 55_000)
    )


# Doors --------------------------------------------------------------------------------------------

CONVEX: dict[str, Any] = {"lipschitz": 1.0, "smoothness": 1.0, "rates": [0.1, 0.1], "m": 10}
STRONG: dict[str, Any] = {
    **{"lipschitz": 1.0, "smoothness": 1.0, "convexity": 0.5, "rate": 0.1, "m": 10}
}
VC: dict[str, Any] = {"error": 0.1, "dimension": 3, "m": 100}
NET: dict[str, Any] = {"layers": [(6, 3), (4, 1)]}


@pytest.mark.parametrize(
    ("bound", "base", "wrong", "words"),
    [
        (bounds.vc_dimension, NET, {"layers": []}, "layers is empty"),
        (bounds.vc_dimension, NET, {"layers": 3}, "layers=3: give a list of .parameters, units."),
        (bounds.vc_dimension, NET, {"layers": [3]}, "layers holds 3: give pairs"),
        (bounds.vc_dimension, NET, {"layers": [(2, 0)]}, "layers=0: give a whole number"),
        (bounds.vc_dimension, NET, {"layers": [(2, 1)]}, "layers has 1 units; give more than two"),
        (bounds.vc_dimension, NET, {"form": "all"}, "form='all' is not known"),
        (bounds.vc, VC, {"dimension": 0}, "dimension=0: give a number of at least 1"),
        (bounds.vc, VC, {"m": 1}, "m=1: give a whole number of at least 2"),
        (bounds.vc, VC, {"delta": 1.0}, "delta=1.0: give a probability"),
        (bounds.vc, VC, {"error": 2.0}, "error=2.0: give a share"),
        (bounds.spectral_margin, SPECTRAL, {"margin": 0.0}, "margin=0.0: give a positive number"),
        (bounds.spectral_margin, SPECTRAL, {"spectral": 1.0}, "spectral=1.0: give a list"),
        (bounds.spectral_margin, SPECTRAL, {"spectral": []}, "spectral is empty"),
        (bounds.spectral_margin, SPECTRAL, {"spectral": [0.0, 1.0]}, "spectral=0.0: give"),
        (bounds.spectral_margin, SPECTRAL, {"distances": [1.0]}, "distances has 1 norms, spectral"),
        (bounds.spectral_margin, SPECTRAL, {"distances": [-1.0, 1]}, "distances=-1.0: give"),
        (bounds.spectral_margin, SPECTRAL, {"width": 2.5}, "width=2.5: give a whole number"),
        (bounds.path, PATH, {"norm": 0.0}, "norm=0.0: give a positive number"),
        (bounds.path, PATH, {"layers": 0}, "layers=0: give a whole number"),
        (bounds.path, PATH, {"error": 1.5}, "error=1.5: give a share"),
        (bounds.spectral_frobenius, FROBENIUS, {"frobenius": [0.5, 3.0]}, "frobenius holds 0.5"),
        (bounds.spectral_frobenius, FROBENIUS, {"margin": 1e3}, "margin=1000.0 is above all"),
        (bounds.spectral_frobenius, FROBENIUS, {"m": 1}, "m=1: give a whole number"),
        (bounds.hardt_convex, CONVEX, {"rates": [3.0]}, "rates: 3 is above 2 / smoothness = 2"),
        (bounds.hardt_convex, CONVEX, {"rates": 0.1}, "rates=0.1: give a list"),
        (bounds.hardt_convex, CONVEX, {"rates": []}, "rates is empty"),
        (bounds.hardt_convex, CONVEX, {"lipschitz": -1.0}, "lipschitz=-1.0: give a positive"),
        (bounds.hardt_convex, CONVEX, {"largest": 0.0}, "largest=0.0: give a positive number"),
        (bounds.hardt_nonconvex, CONVEX, {"rates": [0.1, 0.2]}, "rates rise"),
        (bounds.hardt_strongly_convex, STRONG, {"rate": 1.5}, "rate: 1.5 is above 1 / smoothness"),
        (bounds.hardt_strongly_convex, STRONG, {"convexity": 2.0}, "convexity=2.0 is above"),
        (bounds.expected_sharpness, SHARP, {"sigma": 0.0}, "sigma=0.0: give a positive number"),
        (bounds.expected_sharpness, SHARP, {"sharpness": 1.0}, "error . sharpness = 1.01: give"),
        (bounds.expected_sharpness, SHARP, {"norm": -1.0}, "norm=-1.0: give a number of at least"),
    ],
)
def test_what_no_bound_can_be_made_of_is_refused(
    bound: Callable[..., Any], base: dict[str, Any], wrong: dict[str, Any], words: str
) -> None:
    bound(**base)
    with pytest.raises(SpiritlevelError, match=words):
        bound(**{**base, **wrong})
