"""The audit: what it says of measures that move, of those that do not, and of those that lie."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from architectures import mlp, randomized
from cases import labels, randn
from spiritlevel import auditing as module
from spiritlevel.curvature import fisher
from spiritlevel.estimate import Estimate
from spiritlevel.measures.registry import MEASURES, Measure


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))


@functools.cache
def small() -> sl.Objective:
    data = (randn(30, 6), labels(30))
    return sl.Objective(randomized(net()), data, F.cross_entropy)


@functools.cache
def audited() -> sl.Audit:
    return sl.audit(small())


def test_what_moves_and_what_does_not() -> None:
    found = audited()
    for name in ("hessian_spectral", "hessian_trace", "hessian_frobenius"):
        row = found[name]
        assert row.moved
        assert row.factor > 1e3
        assert row.text == f"moved x {row.factor:.3g} with identical predictions"
        assert list(row.values) == ["here", "balanced", "moved", "sharpened"]
    for name in ("loss", "fisher_rao", "adaptive_spectral", "orbit_trace", "orbit_spectral"):
        assert found[name].text == "invariant"
        assert found[name].factor == pytest.approx(1.0, abs=5e-3)
    assert all(c.verdict == "exact" for c in found.certificates.values())
    assert found.worst <= 1e-12
    assert float(found["hessian_spectral"].values["sharpened"]) >= 1e6 * (1 - 1e-3)


def test_values_are_those_of_the_points() -> None:
    objective, found = small(), audited()
    twin = found.group.apply(objective, found.group.random(0, 1.0))
    top = float(torch.linalg.eigvalsh(sl.hessian(twin).dense()).abs().max())
    assert float(found["hessian_spectral"].values["moved"]) == pytest.approx(top, rel=2e-3)
    theta = objective.vector
    norm = float((theta @ fisher(objective, "true").dense() @ theta).sqrt())  # cross-entropy
    assert float(found["fisher_rao"].here) == pytest.approx(norm, rel=1e-9)
    scaled = theta.abs()[:, None] * sl.hessian(objective).dense() * theta.abs()[None, :]
    adaptive = float(torch.linalg.eigvalsh(scaled).abs().max())
    assert float(found["adaptive_spectral"].here) == pytest.approx(adaptive, rel=2e-3)


def test_the_same_seed_gives_the_same_audit() -> None:
    again, first = sl.audit(small()).to_dict(), audited().to_dict()
    for report in (again, first):
        report["provenance"].pop("seconds")
        for row in report["rows"]:
            for value in row["values"].values():
                value.pop("seconds")
    assert again == first


def test_it_prints_and_writes_itself(tmp_path: Path) -> None:
    text = str(audited())
    assert "one network: predictions are" in text
    assert "13 rescalings (13 hidden)" in text
    assert "spectral norm" in text
    audited().to_json(tmp_path / "audit.json")
    data = json.loads((tmp_path / "audit.json").read_text())
    assert data["schema"] == 1
    assert data["group"]["dim"] == 13
    assert {row["name"] for row in data["rows"]} == set(module.DEFAULT)
    with pytest.raises(sl.SpiritlevelError, match="no row 'x'; there are: loss"):
        audited()["x"]


def test_a_measure_that_lies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    liar = Measure(lambda i: Estimate(float(i.objective.vector.norm())), "liar", invariant=True)
    monkeypatch.setitem(MEASURES, "liar", liar)
    row = sl.audit(small(), ["liar"])["liar"]
    assert row.text == "declared invariant but moved: a bug"
    honest = replace(liar, invariant=False)
    monkeypatch.setitem(MEASURES, "liar", honest)
    assert sl.audit(small(), ["liar"])["liar"].text.startswith("moved x ")


def test_a_wrong_symmetry_stops_the_audit() -> None:
    group = sl.symmetries(small())
    forms = group.forms.copy()
    forms.data[0] *= 1.1
    with pytest.raises(sl.SpiritlevelError, match="the predictions are not the same: refuted"):
        sl.audit(small(), ["loss"], group=replace(group, forms=forms))


def test_a_network_without_symmetries_has_nothing_to_move() -> None:
    data = (randn(12, 64), labels(12, classes=10))
    objective = sl.Objective(randomized(mlp(nn.GELU)), data, F.cross_entropy)
    found = sl.audit(objective, ["loss", "hessian_spectral"])
    assert found["hessian_spectral"].text == "did not move here"
    assert "no rescaling that keeps its predictions" in str(found)
    assert "gelu in 1" in str(found)


def test_what_an_objective_does_not_have_is_said() -> None:
    """A loss of the whole model has no outputs, so no Gauss-Newton matrix; the rest is audited."""

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    objective = sl.Objective(randomized(net()), (randn(30, 6), labels(30)), loss)
    found = sl.audit(objective)
    assert [row.name for row in found.rows] == [
        "loss", "hessian_spectral", "hessian_trace", "hessian_frobenius", "adaptive_spectral",
    ]  # fmt: skip
    assert list(found["loss"].values) == ["here", "moved", "sharpened"]
    notes = [note.split(":")[0] for note in found.provenance["notes"]]
    assert notes == ["not balanced", "no fisher_rao", "no orbit_trace", "no orbit_spectral"]
    assert "no orbit_trace: the exact diagonal needs a loss" in " ".join(str(found).split())


def test_a_promise_is_held_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a percent is no rounding: a measure that creeps is a liar too."""
    creeping = Measure(
        lambda i: Estimate(
            i.objective.value() * (1 + 1e-3 * float(i.objective.vector.norm().log()))
        ),
        "creeping",
        invariant=True,
    )
    monkeypatch.setitem(MEASURES, "creeping", creeping)
    row = sl.audit(small(), ["creeping"])["creeping"]
    assert row.factor < 1.02
    assert row.text == "declared invariant but moved: a bug"


def test_bad_arguments() -> None:
    with pytest.raises(sl.SpiritlevelError, match="unknown measure 'sharp'; there are: loss"):
        sl.audit(small(), ["sharp"])
    with pytest.raises(sl.SpiritlevelError, match="strength=0: give a positive number"):
        sl.audit(small(), strength=0)
    with pytest.raises(sl.SpiritlevelError, match="layer_traces is several numbers"):
        sl.audit(small(), ["layer_traces"])
