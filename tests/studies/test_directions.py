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
