"""All statistics of a study at once: each is the one that its own function gives."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counted
import studied
from spiritlevel import SpiritlevelError, write_report
from spiritlevel.results.study import Findings, Network, networks_from_csv
from spiritlevel.studies import (
    analyse,
    conditional_information,
    granulated,
    holm,
    kendall,
    kendall_interval,
    partial_kendall,
    permutation_test,
    read_csv,
    sign_error,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*are left out")  # see test_ranks

CONFIGS = [
    {"width": w, "rate": r, "optimizer": o} for w in (1, 2, 3) for r in (0.1, 1.0) for o in "ab"
]
SEEDS = 3
SIZE = len(CONFIGS) * SEEDS


def networks(
    values: Mapping[str, Any],
    numbers: Mapping[str, Any],
    config: Callable[[int], dict[str, Any]] = CONFIGS.__getitem__,
    seeds: int = SEEDS,
) -> list[Network]:
    """Seeds of one configuration lie together; a number that is None is not there."""
    found = []
    for k in range(len(next(iter(values.values())))):
        told = {name: float(row[k]) for name, row in numbers.items() if row[k] is not None}
        measured = {name: float(row[k]) for name, row in values.items()}
        found.append(Network(str(k), config(k // seeds), k % seeds, told, measured, {}))
    return found


def drawn(*names: str, source: int = 0) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(source)
    return {name: draws.normal(size=SIZE) for name in names}


def test_each_number_is_that_of_its_own_function() -> None:
    """Measures with the same networks share their work; ties, holes and a control by text."""
    numbers = drawn("gap", "loss") | {"gap_stderr": np.full(SIZE, 0.3)}
    values = drawn("one", "two", "holes", source=1)
    values["one"] += numbers["gap"]
    values["two"] = np.round(values["two"])
    values["holes"][[0, 1, 2, 7]] = math.nan
    found = analyse(
        networks(values, numbers), controls=["loss", "optimizer"], resamples=60, seed=5, least=2.0
    )
    clusters = np.repeat(np.arange(len(CONFIGS)), SEEDS)
    configs = [one for one in CONFIGS for _ in range(SEEDS)]
    gap, noise = numbers["gap"], numbers["gap_stderr"]
    given = {"loss": numbers["loss"], "b": [float(one["optimizer"] == "b") for one in configs]}
    ps = {n: permutation_test(row, gap, clusters, seed=5) for n, row in values.items()}
    adjusted = dict(zip(values, holm(list(ps.values())), strict=True))
    assert [row.name for row in found] == sorted(
        values, key=lambda name: -abs(kendall(values[name], gap))
    )
    for name, row in values.items():
        mine = found[name]
        assert mine.n == np.isfinite(row).sum()
        _close(mine.tau, kendall_interval(row, gap, clusters, resamples=60, seed=5))
        assert mine.tau_a == pytest.approx(kendall(row, gap, "a"))
        assert mine.p == pytest.approx(adjusted[name])
        psi = granulated(configs, row, gap)
        assert (mine.psi, mine.by_axis) == (psi.psi, psi.by_axis)
        assert mine.information == conditional_information(configs, row, gap).least
        assert mine.signs == sign_error(configs, row, gap, noise=noise, least=2.0)
        _close(mine.partial, partial_kendall(row, gap, given, clusters, resamples=60, seed=5))
    assert found.axes == {"width": [1, 2, 3], "rate": [0.1, 1.0], "optimizer": ["a", "b"]}
    assert found.controls == ("loss", "optimizer")


def _close(mine: Any, other: Any) -> None:
    assert mine is not None
    assert (mine.value, mine.low, mine.high) == pytest.approx((other.value, other.low, other.high))


def test_a_gain_is_of_the_networks_that_have_both() -> None:
    """tau with the orbit divided out minus tau as it is, on the same resamples."""
    at = "param_norm @ representative"
    numbers, values = drawn("gap"), drawn("param_norm", at, source=1)
    values[at] += numbers["gap"]
    gain = analyse(networks(values, numbers), resamples=50)["param_norm"].gain
    taus = [kendall(values[name], numbers["gap"]) for name in (at, "param_norm")]
    assert gain is not None
    assert gain.value == pytest.approx(taus[0] - taus[1])
    assert gain.low < gain.value < gain.high
    values[at][4:9] = math.nan
    found = analyse(networks(values, numbers), resamples=50)["param_norm"]
    kept = np.isfinite(values[at])
    taus = [kendall(values[name][kept], numbers["gap"][kept]) for name in (at, "param_norm")]
    assert found.bottom == at
    assert found.gain is not None
    assert found.gain.value == pytest.approx(taus[0] - taus[1])


def test_controls_are_of_the_networks_that_have_them() -> None:
    """Of one measure all networks lack the control: nothing is left of it, and nothing breaks."""
    numbers: dict[str, Any] = drawn("gap", "loss")
    loss = numbers["loss"][12:]
    numbers["loss"] = [*[None] * 12, *loss]
    values = drawn("all", "without", "half", source=1)
    values["without"][12:] = math.nan
    values["half"][:6] = math.nan
    found = analyse(networks(values, numbers), controls="loss", resamples=20)
    assert found["without"].partial is None
    clusters = np.arange(SIZE) // SEEDS
    for name in ("all", "half"):
        rows = (values[name][12:], numbers["gap"][12:], {"loss": loss})
        partial = found[name].partial
        assert partial is not None
        assert partial.value == pytest.approx(partial_kendall(*rows, clusters[12:]).value)


def test_measures_that_cannot_be_ranked_say_why() -> None:
    """A degenerate interval, or a tau that is none, would be taken for a number."""
    gap = drawn("gap")["gap"]
    gap[:9] = 1.0
    values = drawn("good", "few", "two", "same", source=1) | {"constant": np.ones(SIZE)}
    values["few"][2:] = math.nan
    values["two"][:9] = values["two"][15:] = math.nan
    values["same"][9:] = math.nan
    found = analyse(networks(values, {"gap": gap}), resamples=20)
    assert [row.name for row in found] == ["good"]
    assert found.provenance["refused"] == {
        "few": "2 networks have it: this needs at least 3, give more",
        "two": "the networks are of 2 configurations: this needs at least 3, give more",
        "same": "the outcome of the 9 that have it is 1 everywhere: give one that varies",
        "constant": "it is 1 everywhere: give one that varies",
    }
    with pytest.raises(
        SpiritlevelError, match="no measure of theirs varies; give some with values"
    ):
        analyse(networks({"constant": np.ones(SIZE)}, drawn("gap")))


def test_notes_say_what_to_doubt() -> None:
    values = drawn("all", "some", source=1)
    values["some"][15:] = math.nan
    gap: list[Any] = [*drawn("gap")["gap"][:-1], math.nan]
    found = analyse(networks(values, {"gap": gap}), resamples=20, failed=2)
    assert found.provenance["notes"] == [
        "p is adjusted for 2 measures",
        "1 networks have no gap: left out",
        "no noise of gap is told: all pairs count alike in the sign error",
        "some is known of 5 configurations, which are few: its interval is too narrow",
    ]
    assert (found.provenance["planned"], found.provenance["failed"]) == (None, 2)
    values = {"m": drawn("m", source=1)["m"][:11]}
    one = analyse(networks(values, drawn("gap"), seeds=1), resamples=20)
    assert one["m"].signs is None
    assert one.provenance["notes"] == [
        "the grid has holes, settings that lack a value: 1 along width, 1 along rate, "
        "1 along optimizer",
        "no environment has enough effective pairs for a sign error: give more seeds",
    ]
    few = analyse(networks({"m": values["m"][:8]}, drawn("gap"), seeds=1), resamples=20)
    assert "8 configurations are few: the intervals are too narrow" in few.provenance["notes"]


def test_the_noise_of_a_share_of_examples_is_binomial() -> None:
    numbers = drawn("gap") | {"test_error": np.linspace(0, 1, SIZE)}
    made = networks(drawn("m", source=1), numbers)
    error = numbers["test_error"]
    configs = [one for one in CONFIGS for _ in range(SEEDS)]
    values, gap = [one.values["m"] for one in made], numbers["gap"]
    noise = np.sqrt(error * (1 - error) / 50)
    right = sign_error(configs, values, gap, noise=noise)
    assert analyse(made, examples=50, resamples=5)["m"].signs == right
    with pytest.raises(SpiritlevelError, match=r"examples=50: .* test_error, give networks with"):
        analyse(networks(drawn("m"), drawn("gap")), examples=50)
    for wrong in (-0.1, math.inf):
        told = drawn("gap") | {"gap_stderr": np.full(SIZE, wrong)}
        with pytest.raises(SpiritlevelError, match="gap_stderr holds no standard errors: give num"):
            analyse(networks(drawn("m"), told))


def test_infinite_values_are_the_largest() -> None:
    """A network that diverged is ranked, and makes no warning; two of them are tied."""
    numbers = drawn("gap") | {"gap_stderr": np.full(SIZE, 0.1)}
    values = {"m": numbers["gap"].copy()}
    values["m"][[0, 5]] = math.inf
    numbers["gap"][[0, 5]] = math.inf
    numbers["gap"][7] = values["m"][7] = -math.inf
    row = analyse(networks(values, numbers), resamples=20)["m"]
    assert row.tau.value == row.information == 1.0
    assert row.tau_a == pytest.approx(counted.tau_a(values["m"], numbers["gap"]))
    assert row.signs is not None
    assert row.signs.largest == 0.0


def test_without_axes_every_network_is_a_configuration() -> None:
    numbers, values = drawn("gap"), drawn("m", source=1)
    found = analyse(networks(values, numbers, lambda _: {"width": 1}), resamples=40)
    row = found["m"]
    _close(row.tau, kendall_interval(values["m"], numbers["gap"], range(SIZE), resamples=40))
    assert (row.psi, row.by_axis, row.signs, found.axes) == (None, {}, None, {})
    said = "all networks have one configuration: each is resampled and permuted alone"
    assert said in found.provenance["notes"]


def test_names_that_are_not_there_are_refused() -> None:
    made = networks(drawn("m"), drawn("gap", "loss"), lambda i: CONFIGS[i] | {"data": "cifar"})
    with pytest.raises(SpiritlevelError, match="outcome='error' is not known; choose one of 'gap'"):
        analyse(made, outcome="error")
    with pytest.raises(SpiritlevelError, match="controls='depth' is not known; choose one of 'wid"):
        analyse(made, controls=["depth"])
    with pytest.raises(SpiritlevelError, match="controls='gap' is not known; choose one of"):
        analyse(made, controls=["gap"])  # given the outcome, nothing is left of it
    with pytest.raises(SpiritlevelError, match="data is cifar everywhere: give one that varies"):
        analyse(made, controls=["data"])


def test_of_a_part_nobody_says_how_many_failed() -> None:
    """The study knows how many of all networks did, of whatever part they were."""
    made = networks(drawn("m"), drawn("gap"))
    planned = SIZE + 1
    assert analyse(made, planned=planned, failed=1).provenance["failed"] == 1
    part = analyse(made, where={"width": 1}, planned=planned, failed=1)
    assert part.provenance["failed"] is None


def test_values_that_are_lists_can_be_chosen() -> None:
    made = networks(drawn("m"), drawn("gap"), lambda i: CONFIGS[i] | {"width": [i // 6]})
    found = analyse(made, where={"width": [1]})
    assert {str(one.config["width"]) for one in found.networks} == {"[1]"}
    with pytest.raises(
        SpiritlevelError, match=r"where\['width'\]=3 is not known; choose one of \[0"
    ):
        analyse(made, where={"width": 3})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "0 networks have been given: this needs at least 3, give more"),
        (None, "networks is a NoneType; give a list of networks"),
        ("abc", "networks holds something else: give a list of networks"),
        ([1, 2, 3], "networks holds something else: give a list of networks"),
    ],
)
def test_what_are_no_networks_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(SpiritlevelError, match=message):
        analyse(wrong)


def test_a_ranking_of_a_made_up_study_and_its_file() -> None:
    """What is blurred less ranks better; and JSON gives the same back."""
    made = studied.networks()
    found = analyse(made, outcome="gap", resamples=100)
    for least, blurred in (
        ("orbit_trace", "hessian_trace"),
        ("orbit_spectral", "hessian_spectral"),
    ):
        assert found[least].tau.value > found[blurred].tau.value
        assert found[blurred].bottom == least
    assert not found["gradient_noise"].tau.clear
    assert found["gradient_noise"].p > 0.05 > found["orbit_trace"].p
    again = Findings.from_dict(json.loads(found.to_json()))
    assert (again.rows, again.axes) == (found.rows, found.axes)
    assert str(again.networks) == str(found.networks)  # some values are NaN


def test_networks_come_back_from_csv_as_they_were() -> None:
    """Texts that read like numbers, booleans, lists and infinite values among them."""
    kinds = [math.inf, "inf", "nan", "Infinity", 2.0, 2, "2", True, "true", 1e300, "a,b\n", '"q"']
    kinds += ["", [1, "a"], "é", "None", -0.5]
    values = {"m": np.arange(len(kinds), dtype=float), "n": np.full(len(kinds), math.inf)}
    made = networks(values, {"gap": values["m"] / 7}, lambda i: {"kind": kinds[i]}, seeds=1)
    found = analyse(made, resamples=2)
    lines, text = found.records(), io.StringIO()
    writer = csv.DictWriter(text, lines[0])
    writer.writeheader()
    writer.writerows(lines)
    back = networks_from_csv(text.getvalue())
    assert back == tuple(made)
    assert [type(one.config["kind"]) for one in back] == [type(kind) for kind in kinds]
    with pytest.raises(SpiritlevelError, match="these are no networks: use the text that Findings"):
        networks_from_csv("a,b\n1,2\n")


def test_names_of_files_that_are_no_text_are_on_the_page(tmp_path: Path) -> None:
    """Linux takes any bytes as a name, which Python holds as lone surrogates."""
    files = [os.fsdecode(b"\xff%d.npy" % i) for i in range(12)]
    found = analyse(networks(drawn("m"), drawn("gap"), lambda i: {"file": files[i]}), resamples=20)
    write_report(found, tmp_path / "s.html")
    assert "\\udcff11.npy" in (tmp_path / "s.html").read_text(encoding="utf-8")
    found.to_csv(tmp_path / "s.csv")
    assert [n.config for n in read_csv(tmp_path / "s.csv")] == [n.config for n in found.networks]
