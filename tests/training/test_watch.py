"""What a watch reads, against dense matrices, measures and searches over the orbit."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import spiritlevel as sl
from looks import data, dense, descend, net, plain_loss
from spiritlevel.measures.bottoms import Bottoms
from spiritlevel.results.course import Verdict
from spiritlevel.training import Watch, watch_checkpoints

CURVED = ["lambda_max", "hessian_spectral", "hessian_trace"]


@pytest.fixture(scope="module")
def looked() -> tuple[Watch, list[nn.Module]]:
    """A training of 60 steps seen at 0 and 60, and the networks at these steps."""
    model, seen = net(), []
    watch = Watch(sl.Objective(model, data(), F.cross_entropy), CURVED, every=60)
    for step in range(61):
        if step:
            descend(model, 1)
        if watch.look(model, step=step, rate=0.2) is not None:
            seen.append(copy.deepcopy(model))
    return watch, seen


def test_readings_are_those_of_the_dense_hessian(looked: tuple[Watch, list[nn.Module]]) -> None:
    watch, seen = looked
    assert [m.step for m in watch.moments] == [0, 60]
    for moment, model in zip(watch.moments, seen, strict=True):
        matrix = dense(model, *data())
        values = torch.linalg.eigvalsh(matrix)
        top, norm, trace = (moment[name].estimate for name in CURVED)
        assert abs(top.value - float(values[-1])) <= top.error + 1e-9
        assert abs(norm.value - float(values.abs().max())) <= norm.error + 1e-9
        assert abs(trace.value - float(matrix.trace())) <= 4 * trace.error + 1e-9
        assert moment.loss == pytest.approx(plain_loss(model), rel=1e-12)


def test_readings_are_those_of_measure(looked: tuple[Watch, list[nn.Module]]) -> None:
    watch, seen = looked
    table = sl.measure(sl.Objective(seen[1], data(), F.cross_entropy), CURVED, compile=False)
    assert {n: watch.moments[1][n].estimate.value for n in CURVED} == pytest.approx(
        {n: table[n].value for n in CURVED}, rel=1e-12
    )


def test_least_values_are_those_of_a_search_over_the_orbit(
    looked: tuple[Watch, list[nn.Module]],
) -> None:
    """Against the library's own minimum from a cold start, and a random search for a lower one."""
    watch, seen = looked
    draws = np.random.default_rng(0)
    for moment, model in zip(watch.moments, seen, strict=True):
        objective = sl.Objective(model, data(), F.cross_entropy)
        group = sl.symmetries(objective)
        matrix = dense(model, *data()).numpy()
        for name, norm in (("hessian_spectral", "spectral"), ("hessian_trace", "trace")):
            least = moment[name].least
            assert least is not None
            found = sl.orbit.minimum(objective, group, norm=norm, operator="hessian", tol=2e-3)
            assert abs(found.value - least.value) <= 2 * least.error
            t = found.log_scales
            for size in (0.0, 0.01, 0.1, 1.0):
                element = t + size * torch.from_numpy(draws.standard_normal(group.dim))
                d = 1 / group.flat_factors(element, objective.shapes).numpy()
                moved = matrix * np.outer(d, d)
                there = moved.trace() if norm == "trace" else np.linalg.norm(moved, 2)
                assert there >= least.value - least.error


def test_where_nothing_is_known_from_below_the_least_value_is_at_most_the_upper_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    seen, plain = sl.Objective(model, data(), F.cross_entropy), Bottoms.interval
    monkeypatch.setattr(Bottoms, "interval", lambda *a: replace(plain(*a), low=0.0))
    [moment] = watch_checkpoints(seen, [seen.params], ["hessian_spectral"]).moments
    least = moment["hessian_spectral"].least
    assert least is not None
    assert (least.status, least.error) == (sl.Status.UPPER_BOUND, 0.0)
    here = moment["hessian_spectral"].estimate
    known = sl.orbit.minimum(seen, norm="spectral", operator="hessian").value
    assert known <= least.value <= here.value + here.error


def test_a_series_that_only_moves_along_the_orbit_is_all_coordinates(tmp_path: Path) -> None:
    """The same function in every file, shuffled names: the norm moves, the least does not."""
    objective = sl.Objective(net(), data(), F.cross_entropy)
    group = sl.symmetries(objective)
    far = 1.5 + group.random(3, 0.5)
    files = []
    for step, size in ((1000, 1.0), (200, 0.5), (30, 0.0)):
        path = tmp_path / f"step_{step}.safetensors"
        save_file(group.apply(objective, size * far).params, path)
        files.append(path)
    found = watch_checkpoints(objective, files, ["lambda_max", "hessian_trace", "fisher_rao"])
    assert [(m.name, m.step) for m in found] == [
        ("step_30", 30),
        ("step_200", 200),
        ("step_1000", 1000),
    ]
    assert [m.loss for m in found] == pytest.approx([objective.value()] * 3, rel=1e-9)
    for name in ("lambda_max", "hessian_trace"):
        here = [m[name].estimate.value for m in found]
        assert max(here) > 1.5 * min(here)
        bottoms = [m[name].least for m in found]
        low = max(b.value - b.error for b in bottoms if b is not None)
        high = min(b.value + b.error for b in bottoms if b is not None)
        assert low <= high  # one number
    assert [change.verdict for change in found.changes] == [Verdict.ALL, Verdict.ALL]
    assert found.headline.endswith("all of it was coordinates.")
    still = [m["fisher_rao"] for m in found]
    assert all(r.invariant and r.least is None for r in still)
    assert [r.estimate.value for r in still] == pytest.approx([still[0].estimate.value] * 3)
    assert "no rescaling moves: Fisher-Rao norm" in str(found)


def test_the_edge_of_gradient_descent_on_a_quadratic() -> None:
    """A linear model with squared errors: lambda_max is constant, its share is eta lambda / 2."""
    x = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)) * math.sqrt(2)
    y = torch.ones(2, 1, dtype=torch.float64)
    model = nn.Linear(2, 1, bias=False).double()
    objective = sl.Objective(model, (x, y), lambda out, y: F.mse_loss(out, y) / 2)
    watch = Watch(objective, ["lambda_max"], every=2)
    rate = 0.2  # 2 / rate = 10 > 9
    for step in range(5):
        if step:
            loss = F.mse_loss(model(x), y) / 2
            (grad,) = torch.autograd.grad(loss, [model.weight])
            with torch.no_grad():
                model.weight -= rate * grad
        watch.look(model, step=step, rate=rate)
    assert [m.step for m in watch.moments] == [0, 2, 4]
    assert [m["lambda_max"].estimate.value for m in watch.moments] == pytest.approx([9.0] * 3)
    assert [m.edge for m in watch.moments] == [10.0] * 3
    shares = [m.edge_share.value for m in watch.moments if m.edge_share is not None]
    assert shares == pytest.approx([0.9] * 3)
    found = watch.history()
    assert "at 0 of 3 looks" in found.sentences[-1]
    assert "0.900 times the edge" in found.sentences[-1]


def test_without_rescalings_it_is_said_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)).double()
    watch = Watch(sl.Objective(model, data(), F.cross_entropy), ["hessian_spectral"], every=1)
    for step in range(2):
        watch.look(model, step=step)
    found = watch.history()
    assert all(m["hessian_spectral"].least is None for m in found)
    assert [note for note in found.provenance["notes"] if "no rescalings" in note] == [
        "this network has no rescalings: nothing of what is seen is of the coordinates"
    ]
    assert found.changes == ()
