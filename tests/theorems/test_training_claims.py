"""Claims about training: their parts against closed forms, and checks that see a broken witness."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import ttest_1samp

import spiritlevel as sl
from cases import small_net
from spiritlevel import SpiritlevelError
from spiritlevel.theorems import CLAIMS, Claim, Finding, Setting, aware, boxes, noise, searching
from spiritlevel.theorems.statistics import paired_interval
from spiritlevel.training.discrete import energies

LONG = ("dense_solutions", "sam_with_bias", "rate_over_batch")


# Long claims --------------------------------------------------------------------------------------


def short_claim(**more: Any) -> Claim:
    return Claim("One is one.", "nobody", "1", lambda _: {}, lambda: Finding("1", {}, True), **more)


def test_long_claims_run_only_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for name, claim in CLAIMS.items() if claim.long} == set(LONG)
    for name in list(CLAIMS):
        monkeypatch.delitem(CLAIMS, name)
    monkeypatch.setitem(CLAIMS, "one", short_claim())
    monkeypatch.setitem(CLAIMS, "minutes", short_claim(long=True))
    found = sl.claims()
    assert [row.name for row in found.rows] == ["one"]
    note = "not run, since they take minutes: minutes"
    assert found.provenance["notes"] == [note]
    assert note in " ".join(str(found).split())
    named = sl.claims(None, ["minutes", "one"])
    assert [row.name for row in named.rows] == ["minutes", "one"]
    assert named.provenance["notes"] == []


# Flat boxes ---------------------------------------------------------------------------------------


def test_the_box_of_a_scaled_layer_by_hand() -> None:
    """4 x 6 weights and 6 biases times a, 5 x 6 divided by it, of which a dead unit hides some."""
    witness = boxes.scaled_boxes(Setting(small_net()))
    found = boxes.check_boxes(**witness)
    assert found.holds
    objective = witness["objective"]
    outs = torch.func.jacrev(lambda p: objective.outputs(p, objective.batches[0]))(objective.params)
    seen = {name: int((d.double().square().sum((0, 1)) > 0).sum()) for name, d in outs.items()}
    more = seen["2.weight"] - seen["0.weight"] - seen["0.bias"]
    assert (seen["0.weight"], seen["0.bias"], objective.shapes["2.weight"].numel()) == (24, 6, 30)
    assert found.numbers["n₂ - n₁"] == more == -10
    assert found.numbers["B grows, factor 10"] == pytest.approx(more * math.log(10), rel=1e-9)


def test_other_boxes_and_other_networks_are_seen() -> None:
    witness = boxes.scaled_boxes(Setting(small_net()))
    turned: dict[str, Any] = {**witness, "exponents": -witness["exponents"]}
    assert not boxes.check_boxes(**turned).holds
    twins = {a: twin.at(1.01 * twin.vector) for a, twin in witness["twins"].items()}
    moved: dict[str, Any] = {**witness, "twins": twins}
    assert not boxes.check_boxes(**moved).holds


# Dense solutions ----------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[searching.Case]:
    """Smaller, and without annealing: the construction in a second."""
    monkeypatch.setattr(searching, "SIZE", 11)
    monkeypatch.setattr(searching, "PATTERNS", 4)
    monkeypatch.setattr(searching, "INSTANCES", 50)
    quick = {"SBPI": searching.ALGORITHMS["SBPI"]}
    monkeypatch.setattr(searching, "ALGORITHMS", quick)
    return searching.dense_solutions(Setting())["cases"]


def typical(case: searching.Case, best: bool) -> searching.Case:
    """As if the most, or the least, dense solution had been found."""
    found = searching.entropies(case.everything, case.everything, searching.DISTANCE)
    place = found.argmax() if best else found.argmin()
    return replace(case, found={"SBPI": case.everything[place][None]})


def test_local_entropies_are_compared_within_each_instance(few: list[searching.Case]) -> None:
    assert len(few) == 50
    assert all(not energies(case.instance, case.everything).any() for case in few)
    densest = searching.check_dense([typical(case, True) for case in few])
    assert densest.holds
    assert densest.numbers["SBPI, from"] > 0
    assert not searching.check_dense([typical(case, False) for case in few]).holds
    everything = [replace(case, found={"SBPI": case.typical}) for case in few]
    same = searching.check_dense(everything)
    assert not same.holds
    assert same.numbers["SBPI, more by"] == 0
    assert "<svg" in searching.draw_dense(few)


def test_a_row_that_is_no_solution_is_seen(few: list[searching.Case]) -> None:
    cases = [typical(case, True) for case in few]
    wrong = -cases[0].found["SBPI"]
    broken = [replace(cases[0], found={"SBPI": wrong}), *cases[1:]]
    found = searching.check_dense(broken)
    assert found.numbers == {"no solutions": 1}
    assert not found.holds
    assert not searching.check_dense(cases[:20]).holds  # too few instances


# SAM on XOR ---------------------------------------------------------------------------------------


@pytest.fixture
def small_xor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DIMENSION": 6, "POINTS": 8, "WIDTH": 9, "TESTS": 200}.items():
        monkeypatch.setattr(aware, name, value)


def xor_pairs(seeds: int = 2) -> aware.Nets:
    return aware.both(
        aware.xor_nets(range(seeds), False, np.float64),
        aware.xor_nets(range(seeds), True, np.float64),
    )


@pytest.mark.usefixtures("small_xor")
def test_a_step_of_sam_by_hand_is_that_of_autograd() -> None:
    nets, rate, radius = xor_pairs(), 0.1, 0.3
    rows = np.array([0, 3, 5, 1])
    expected = []
    for i, row in enumerate(rows):
        objective = aware.as_objective(nets, i)
        x, y = (t[row : row + 1] for t in objective.batches[0])
        one = objective.on([(x, y)])
        slope = one.gradient()
        there = one.at(one.vector + radius * slope / slope.norm())
        expected.append(one.vector - rate * there.gradient())
    aware.sam_step(nets, rows, rate, radius)
    for i, vector in enumerate(expected):
        assert torch.allclose(aware.as_objective(nets, i).vector, vector, rtol=1e-12, atol=1e-13)
    assert not nets.first[:2, :, -1].any()  # a net without a bias stays one


@pytest.mark.usefixtures("small_xor")
def test_loss_and_trace_by_formula_are_those_of_the_dense_hessian() -> None:
    """Before anything is fitted: the trace of the Hessian of f itself is zero."""
    nets = xor_pairs()
    losses, traces = aware.by_formula(nets)
    for i in range(4):
        objective = aware.as_objective(nets, i)
        assert losses[i] == pytest.approx(objective.value(), rel=1e-12)
        assert traces[i] == pytest.approx(float(sl.hessian(objective).dense().trace()), rel=1e-10)
    assert losses.min() > 0.1


@pytest.fixture
def trained(small_xor: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Five pairs of small nets after a few epochs."""
    monkeypatch.setattr(aware, "SEEDS", range(5))
    monkeypatch.setattr(aware, "EPOCHS", 20)
    return aware.sam_with_and_without(Setting())


@pytest.mark.usefixtures("trained")
def test_the_witness_of_sam_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aware, "SEEDS", range(2))
    trained = aware.sam_with_and_without(Setting())
    found = aware.check_sam(**trained)
    assert found.numbers["formula off by, of what may be"] < 1
    assert json.dumps(found.numbers)  # plain numbers, that a file can hold
    assert found.numbers["largest loss"] > aware.FITTED
    assert not found.holds
    assert "<svg" in aware.draw_sam(**trained)


@pytest.mark.parametrize(
    ("trace", "accuracy", "loss", "off", "holds"),
    [
        (-5.0, -0.1, 1e-3, 0.0, True),
        (5.0, -0.1, 1e-3, 0.0, False),
        (-5.0, 0.1, 1e-3, 0.0, False),
        (-5.0, -0.1, 0.1, 0.0, False),  # not fitted
        (-5.0, -0.1, 1e-3, 0.01, False),  # the Hessian has another trace
        (-5.0, -0.005, 1e-3, 0.0, False),  # less than the seeds vary by
    ],
)
def test_sam_is_judged_by_traces_accuracies_and_losses(
    trained: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    trace: float,
    accuracy: float,
    loss: float,
    off: float,
    holds: bool,
) -> None:
    """Measured numbers replaced, in pairs that differ by so much, more or less."""
    noise_of_seeds = np.array([0.0, 0.02, -0.02, 0.01, -0.01])
    traces = np.concatenate([np.full(5, 30.0), 30.0 + trace + noise_of_seeds])
    right = np.concatenate([np.full(5, 0.9), 0.9 + accuracy + noise_of_seeds])
    monkeypatch.setattr(aware, "by_formula", lambda _: (np.full(10, loss), traces))
    monkeypatch.setattr(aware, "accuracies", lambda *_: right)
    monkeypatch.setattr(aware, "hessian", lambda *_, **__: None)
    monkeypatch.setattr(
        aware, "trace", lambda _, seed: sl.Estimate(float(traces[seed]) * (1 + off))
    )
    found = aware.check_sam(**trained)
    assert found.holds is holds
    assert found.numbers["trace, more by"] == pytest.approx(trace)
    assert found.numbers["accuracy, more by"] == pytest.approx(accuracy)
    assert found.numbers["net 1, trace with bias"] == pytest.approx(30.02 + trace)


# Rate over batch ----------------------------------------------------------------------------------


def toy_data() -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    return torch.randn(40, 5, generator=draws), torch.arange(40) % 3


def test_gradients_by_hand_are_those_of_autograd() -> None:
    x, y = toy_data()
    weights = [w.double() for w in noise.fresh([0, 1], (5, 7, 3))]
    rows = torch.tensor([[0, 5, 9], [2, 2, 30]])
    found = noise.gradients(weights, x.double()[rows], y[rows])
    for i in range(2):
        one = sl.Objective(
            noise.as_net(weights, i).double(), (x.double()[rows[i]], y[rows[i]]), F.cross_entropy
        )
        slopes = one.gradient()
        by_hand = [found[0][i].T, found[1][i, 0], found[2][i].T, found[3][i, 0]]
        assert torch.allclose(slopes, torch.cat([g.reshape(-1) for g in by_hand]), atol=1e-12)
        whole = sl.Objective(noise.as_net(weights, i).double(), (x.double(), y), F.cross_entropy)
        losses = noise.losses(weights, x.double(), y)
        assert float(losses[i]) == pytest.approx(whole.value(), rel=1e-12)


def test_a_run_is_plain_sgd_until_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side or alone, the same; the first look at or below the target is the last step."""
    monkeypatch.setattr(noise, "EVERY", 5)
    data = toy_data()
    with torch.no_grad():
        weights, steps = noise.descended(data, [0.3, 0.1], [4, 4], 8, 0.5)
        alone, count = noise.descended(data, [0.1], [4], 8, 0.5)
    assert steps[0] < steps[1] == count[0]
    assert torch.allclose(weights[0][1], alone[0][0], atol=1e-5)
    net = noise.as_net(noise.fresh([4], (5, noise.HIDDEN, 3)), 0)
    order, optimizer = torch.Generator().manual_seed(1004), torch.optim.SGD(net.parameters(), 0.1)
    done = 0
    while done < count[0]:
        for some in torch.randperm(40, generator=order).split(8):
            optimizer.zero_grad()
            F.cross_entropy(net(data[0][some]), data[1][some]).backward()
            optimizer.step()
            done += 1
            if done == count[0]:
                break
    assert torch.allclose(net[0].weight, noise.as_net(alone, 0)[0].weight, atol=1e-5)  # type: ignore[arg-type]


def made_up(scale: float, loss: float = 0.02) -> dict[str, Any]:
    """Runs of one eigenvalue each: scale / ratio, without training."""
    runs = [
        noise.Run(rate, batch, seed, 1, torch.nn.Sequential(), (rate / batch) ** scale)
        for rate in (0.1, 0.2, 0.4)
        for batch in (8, 32)
        for seed in range(3)
    ]
    return {"runs": runs, "tops": ([r.least * (1 + r.seed / 100) for r in runs], [loss] * 18)}


@pytest.mark.parametrize(
    ("scale", "loss", "holds"),
    [(-1.0, 0.02, True), (1.0, 0.02, False), (-1.0, 0.03, False), (-1.0, 0.01, False)],
)
def test_the_ratio_is_judged_at_matched_losses(
    monkeypatch: pytest.MonkeyPatch, scale: float, loss: float, holds: bool
) -> None:
    made = made_up(scale, loss)
    monkeypatch.setattr(noise, "tops", lambda *_, **__: made["tops"])
    found = noise.check_ratio(made["runs"], toy_data())
    assert found.holds is holds
    assert found.numbers["τ of λ"] == pytest.approx(scale)
    assert found.numbers["τ of λ and the rate at one batch"] == pytest.approx(scale)
    assert found.numbers["τ of λ and the batch at one rate"] == pytest.approx(-scale)
    assert ("losses differ" in found.shown) is (loss != 0.02)
    assert "<svg" in noise.draw_ratio(made["runs"], toy_data())


# Statistics ---------------------------------------------------------------------------------------


def test_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 30)
    mean, low, high = paired_interval(values)
    interval = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((interval.low, interval.high))
    assert mean == pytest.approx(values.mean())
    assert paired_interval([1.0]) == (1.0, -math.inf, math.inf)


def test_one_on_a_network_without_rescalings_is_refused() -> None:
    with pytest.raises(SpiritlevelError, match="no rescalings"):
        boxes.scaled_boxes(Setting(small_net(torch.nn.Tanh)))
