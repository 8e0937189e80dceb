"""Reported directions against networks that were made up."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from spiritlevel import SpiritlevelError
from spiritlevel.results.study import Network
from spiritlevel.studies.directions import Outcome, Reported, direction
from spiritlevel.studies.protocols import PROTOCOLS, protocol

AXES: dict[str, list[Any]] = {"width": [1, 2, 3], "optimizer": ["sgd", "sam"]}


def made(seed: int, config: dict[str, Any], sharp: float, gap: float) -> Network:
    return Network(f"{config} {seed}", config, seed, {"gap": gap}, {"sharp": sharp}, {"sharp": 0.0})


def networks(noise: float, seeds: int = 6) -> list[Network]:
    """Sharpness falls with width and with sam; the gap is sharpness."""
    draws = np.random.default_rng(0)
    found = []
    for seed, width, optimizer in product(range(seeds), *AXES.values()):
        sharp = -width - 10 * (optimizer == "sam") + noise * draws.normal()
        found.append(made(seed, {"width": width, "optimizer": optimizer}, sharp, sharp))
    return found


def test_along_an_axis_the_others_stand_still() -> None:
    found = direction(networks(0.0), Reported("width", "sharp", less=True), AXES)
    assert (found.tau.value, found.tau.low, found.tau.high) == (-1.0, -1.0, -1.0)
    assert (found.outcome, found.seeds, found.networks) == (Outcome.SAME, 6, 36)
    assert direction(networks(0.0), Reported("width", "sharp"), AXES).outcome is Outcome.OTHER
    assert "sharp falls with width: as reported, tau -1.00" in found.text


def test_words_of_an_axis_are_counted_in_the_order_of_the_grid() -> None:
    reported = Reported("optimizer", "sharp", less=True)
    assert direction(networks(0.0), reported, AXES).tau.value == -1.0
    turned = {**AXES, "optimizer": ["sam", "sgd"]}
    assert direction(networks(0.0), reported, turned).tau.value == 1.0


def test_what_is_no_axis_is_ranked_over_all_networks_of_a_seed() -> None:
    assert direction(networks(0.1), Reported("gap", "sharp"), AXES).tau.value == pytest.approx(1.0)


def test_noise_leaves_it_open() -> None:
    found = direction(networks(1e6), Reported("width", "sharp", less=True), AXES)
    assert found.outcome is Outcome.OPEN
    assert found.tau.low < 0 < found.tau.high


def test_networks_without_the_number_are_left_out() -> None:
    some = networks(0.0)
    broken = [made(n.seed, n.config, math.nan, 0.0) for n in some if n.config["width"] == 3]
    kept = [n for n in some if n.config["width"] != 3]
    assert direction([*kept, *broken], Reported("width", "sharp"), AXES).networks == 24
    one = [n for n in some if n.seed == 0]
    with pytest.raises(SpiritlevelError, match="1 seeds have networks that differ in width; 2 are"):
        direction(one, Reported("width", "sharp"), AXES)
    with pytest.raises(SpiritlevelError, match=r"'flat' is neither an axis .* width, optimizer"):
        direction(some, Reported("width", "flat"), AXES)


def test_some_are_not_measured_yet() -> None:
    some = networks(0.0)
    late = [Network(n.key, n.config, n.seed, n.numbers, {}, {}) for n in some if n.seed == 5]
    found = direction([*(n for n in some if n.seed < 5), *late], Reported("width", "sharp"), AXES)
    assert (found.seeds, found.networks) == (5, 30)


def test_texts_of_what_is_no_axis_and_of_no_value() -> None:
    """A configuration may lack an axis, and name what does not vary."""
    some = networks(0.0)
    for n in some:
        n.config["data"] = "digits"
        if n.config["optimizer"] == "sam":
            del n.config["optimizer"]
    assert direction(some, Reported("width", "sharp"), AXES).tau.value == -1.0
    with pytest.raises(SpiritlevelError, match="0 seeds have networks that differ in data"):
        direction(some, Reported("data", "sharp"), AXES)
    with pytest.raises(SpiritlevelError, match=r"axes\['optimizer'\] has no 'sgd', .* are: adam"):
        direction(some, Reported("optimizer", "gap"), {**AXES, "optimizer": ["adam"]})


@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_few_seeds_that_agree_leave_it_open(seeds: int) -> None:
    """Two that draw a sign agree every other time, and have no spread."""
    found = direction(networks(0.0, seeds), Reported("width", "sharp", less=True), AXES)
    assert (found.tau.value, found.tau.low) == (-1.0, -1.0)
    assert (found.outcome is Outcome.OPEN) == (seeds < 5)


@pytest.mark.parametrize(("seeds", "values"), [(2, 2), (3, 2), (2, 3), (5, 2), (6, 3)])
def test_nothing_is_seldom_taken_for_something(seeds: int, values: int) -> None:
    """A t interval of taus misses zero once in twenty times; signs of five, once in sixteen."""
    draws, axes, decided = np.random.default_rng(1), {"width": list(range(values))}, 0
    for _ in range(300):
        pairs = product(range(seeds), axes["width"])
        made_up = [made(s, {"width": w}, float(draws.normal()), 0.0) for s, w in pairs]
        found = direction(made_up, Reported("width", "sharp"), axes)
        decided += found.outcome is not Outcome.OPEN
    assert decided / 300 < 1 / 16 + 4 * (1 / 16 * 15 / 16 / 300) ** 0.5


def test_tau_is_the_mean_over_strata_and_seeds() -> None:
    """By hand: ties count as zero, and the interval is that of Student."""
    tables = [[[1, 2, 3], [3, 3, 1]], [[2, 1, 3], [1, 2, 2]]]  # seed, optimizer, width
    some = [
        made(seed, {"width": width, "optimizer": name}, value, 0.0)
        for seed, table in enumerate(tables)
        for name, row in zip(AXES["optimizer"], table, strict=True)
        for width, value in zip(AXES["width"], row, strict=True)
    ]
    found = direction(some, Reported("width", "sharp"), AXES)
    taus = [(1 - 2 / 3) / 2, (1 / 3 + 2 / 3) / 2]
    half = 12.7062 * np.std(taus, ddof=1) / 2**0.5
    expected = (np.mean(taus), max(np.mean(taus) - half, -1), min(np.mean(taus) + half, 1))
    assert (found.tau.value, found.tau.low, found.tau.high) == pytest.approx(expected, abs=1e-4)


def test_protocols_ask_for_what_they_report() -> None:
    for name, one in PROTOCOLS.items():
        for full in (False, True):
            study = one.study(full=full, seeds=2)
            axes = study.axes
            known = [*axes, *study.measures, "test_error", "gap", "rate_over_batch"]
            for reported in one.reported:
                assert {reported.x, reported.y} <= set(known), name
                assert reported.x not in axes or len(axes[reported.x]) > 1, name
            assert len({run.key for run in study.runs()}) == len(study.runs())
    with pytest.raises(SpiritlevelError, match="no protocol 'sharp'; there are: batch, "):
        protocol("sharp")
