"""What a measurement will take, said before it is begun."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import spiritlevel as sl
from cases import BY_NAME
from spiritlevel.audits import forecast
from spiritlevel.curvature.engine import Engine
from spiritlevel.measures.base import Measure

SECONDS = {"passes": 1.0, "gradients": 3.0, "products": 6.0, "proofs": 10.0}
OF_FEW_PRODUCTS = ("loss", "gradient_norm", "keskar", "expected_sharpness")


@pytest.fixture(scope="module")
def net() -> sl.Objective:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
    )
    x, y = torch.randn(200, 8), torch.arange(200) % 3
    return sl.Objective(model, (x, y), F.cross_entropy, microbatch=50)


@pytest.fixture
def smooth() -> sl.Objective:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    x, y = torch.randn(200, 8), torch.arange(200) % 3
    return sl.Objective(model, (x, y), F.cross_entropy, microbatch=50)


def test_products_are_foretold_to_a_factor_of_two(net: sl.Objective) -> None:
    ahead, table = sl.estimate(net), sl.measure(net)
    assert 0.5 <= ahead.products / table.provenance["products"] <= 2
    ahead, audit = sl.estimate(net, audit=True, way=False), sl.audit(net, way=False)
    gradients = sum(e.matvecs for r in audit.rows for e in r.values.values() if r.name == "keskar")
    passes = 96  # of expected sharpness, which are counted among the products of an audit
    assert 0.5 <= ahead.products / (audit.provenance["products"] - gradients - passes) <= 2
    assert [row.name for row in ahead.rows[:-2]] == [row.name for row in audit.rows]
    for row in audit.rows:
        assert ahead[row.name].points == len(row.values)
    more = sl.audit(net).provenance["products"] - audit.provenance["products"]  # of the figure
    assert 0.5 <= sl.estimate(net, audit=True)["way"].products / more <= 2


def test_seconds_are_those_of_the_passes_that_were_timed(
    net: sl.Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(self: forecast._Clock, kind: str) -> float:
        self.start["products"] = 0.5
        return {**SECONDS, "diagonals": 20.0}[kind]

    monkeypatch.setattr(forecast._Clock, "seconds", timed)
    found = sl.estimate(net, OF_FEW_PRODUCTS)
    assert [row.seconds for row in found.rows] == [1.0, 3.0, 36.0, 32.0]
    assert found.seconds == 72.0
    assert found.products == 0
    assert found.units == {"pass": 1.0, "gradient": 3.0}
    traces = ["hessian_trace", "layer_traces", "hessian_frobenius", "effective_rank"]
    both = sl.estimate(net, ["hessian_spectral", "lambda_min", *traces])
    # both ends are found in one go, and whoever comes first pays for them and for the beginning
    assert [row.seconds for row in both.rows] == [50 * 6 + 0.5, 0.0, 20, 0, 12 * 6, 0, 12 * 6]
    group = sl.symmetries(net)
    audit = sl.estimate(net, ["hessian_trace"], audit=True, group=group)
    assert audit["hessian_trace"].seconds == 20  # of the diagonal: a trace is its sum
    assert audit["points"].seconds == pytest.approx((3 + 2 * 5) * 10 + 16 * 6 + 5 * 0.2)
    # nine stops in float64, which is ten times slower here
    assert audit["way"].seconds == pytest.approx(9 * 10 * (50 * 6 + 31 * 1))
    short = sl.estimate(net, ["hessian_trace"], audit=True, group=group, way=False)
    assert [row.name for row in short.rows] == [row.name for row in audit.rows if row.name != "way"]


def test_traces_of_networks_that_bend_are_drawn(
    smooth: sl.Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast._Clock, "seconds", lambda self, kind: SECONDS[kind])
    found = sl.estimate(smooth, ["hessian_trace", "hessian_frobenius"])
    assert [row.seconds for row in found.rows] == [30 * 6, 0, 12 * 6]
    audit = sl.estimate(smooth, ["hessian_trace"], audit=True, group=sl.symmetries(smooth))
    assert audit["hessian_trace"].seconds == 30 * 6  # at one point: nothing can be rescaled


def test_a_budget_is_the_most_that_a_measure_takes(net: sl.Objective, smooth: sl.Objective) -> None:
    found = sl.estimate(net, ["lambda_max", "hessian_trace"], budget=10)
    assert [row.products for row in found.rows] == [10, 0, 12]
    found = sl.estimate(smooth, ["lambda_max", "hessian_trace"], budget=10)
    assert [row.products for row in found.rows] == [10, 10, 12]
    with pytest.raises(sl.SpiritlevelError, match="budget"):
        sl.estimate(net, budget=0)


def test_what_nobody_knows_is_said(net: sl.Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Measure(lambda tools: sl.Estimate(0.0), "my own")
    monkeypatch.setitem(sl.MEASURES, "mine", own)
    found = sl.estimate(net, ["loss", "mine", "path_norm"])
    notes = [note for note in found.provenance["notes"] if "nobody knows" in note]
    assert notes == ["nobody knows what mine takes: left out"]
    assert found["mine"].seconds == 0


def test_memory_is_that_of_tapes_a_product_and_a_basis(net: sl.Objective) -> None:
    found = sl.estimate(net, ["hessian_spectral"])
    operator = sl.hessian(net)
    for _ in range(2):
        operator @ torch.randn(net.size)
    engine = operator.matvec.__self__  # type: ignore[attr-defined]
    assert isinstance(engine, Engine)
    assert len(engine.tapes) == 4
    each = engine.sizes[0]
    assert found.memory == pytest.approx(each * (200 + 1.7 * 50) + 32 * 4 * net.size)


def test_what_cannot_be_done_is_said(net: sl.Objective) -> None:
    model = nn.Linear(8, 3)
    loss = sl.Objective(model, net.batches[0], lambda model, batch: model(batch[0]).square().mean())
    found = sl.estimate(loss, ["orbit_trace"])
    assert any(note.startswith("no exact diagonal") for note in found.provenance["notes"])
    with pytest.raises(sl.SpiritlevelError, match="unknown measure 'nothing'"):
        sl.estimate(net, ["nothing"])
    with pytest.raises(sl.SpiritlevelError, match="audit"):
        sl.estimate(net, audit="yes")  # type: ignore[arg-type]


def test_a_net_without_rescalings_has_one_point() -> None:
    found = sl.estimate(BY_NAME["mlp"].objective(), ["loss", "hessian_trace"], audit=True)
    assert {row.points for row in found.rows} == {1}


def test_a_dry_run_says_what_it_would_take_and_does_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiritlevel.audits import audit as made
    from spiritlevel.cli.app import app

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a dry run measures nothing")

    monkeypatch.setattr(made, "audit", never)
    path = tmp_path / "ahead.json"
    run = CliRunner().invoke(
        app, ["audit", "--dry-run", "--only", "loss,keskar", "--json", str(path)]
    )
    assert run.exit_code == 0, run.output
    assert "an audit: about" in run.output
    assert "Keskar sharpness" in run.output
    ahead = sl.load(path)
    assert isinstance(ahead, sl.Forecast)
    assert [row.name for row in ahead.rows] == ["loss", "keskar", "points", "way"]
