"""The audit: what it says of measures that move, of those that do not, and of those that lie."""

from __future__ import annotations

import csv
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from architectures import mlp, randomized
from cases import labels, randn
from spiritlevel.audits import audit as module
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.spoken import at_most, digits, share, share_at_least, times
from spiritlevel.curvature import fisher
from spiritlevel.measures.base import Measure
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results.audit import Row
from spiritlevel.results.verdicts import Infimum, Outcome


def flat(text: str) -> str:
    return " ".join(text.split())


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))


@functools.cache
def small() -> sl.Objective:
    data = (randn(30, 6), labels(30))
    return sl.Objective(randomized(net()), data, F.cross_entropy)


@functools.cache
def audited() -> sl.Audit:
    return sl.audit(small(), way=False)


def test_what_moves_and_what_does_not() -> None:
    found = audited()
    for name in ("hessian_spectral", "hessian_trace", "hessian_frobenius", "keskar"):
        row = found[name]
        assert row.moved
        assert row.factor > 100
        assert row.text == f"moved x {times(row.factor)} on purpose with identical predictions"
        assert row.largest_at == "sharpened"
        assert {"here", "balanced", "sharpened"} <= set(row.values)
        assert row.infimum.value <= row.here.value <= row.largest
    still = ("loss", "fisher_rao", "adaptive_spectral", "path_norm", "orbit_trace")
    for name in (*still, "orbit_spectral"):
        assert found[name].text == "invariant"
        assert "moved" in found[name].values
        assert found[name].factor == pytest.approx(1.0, abs=5e-3)
    layer = found["layer_minimum"]
    assert layer.text == f"moved x {times(layer.factor)} by units, not by layers"
    assert layer.values["sharpened"].value == pytest.approx(layer.here.value, rel=1e-9)
    assert all(c.verdict == "exact" for c in found.certificates.values())
    assert found.worst <= 1e-12
    assert float(found["hessian_spectral"].values["sharpened"]) >= 1e6 * (1 - 1e-3)


def test_factors_in_words() -> None:
    assert [times(f) for f in (1.5, 15.04, 435.9, 43596.0, 2.29e6)] == [
        "1.5", "15", "436", "43596", "2.3e6",
    ]  # fmt: skip
    assert [digits(v) for v in (2.0483, 3.103e6, 4e-9, 0.0)] == ["2.05", "3.10e6", "4.00e-9", "0.0"]
    assert [share(p) for p in (0.335, 0.5, 0.18, 0.66, 0.999)] == [
        "a third", "half", "18%", "two thirds", "nearly all",
    ]  # fmt: skip
    assert [share_at_least(p) for p in (0.335, 0.33169, 0.2339, 0.654, 0.29, 0.19999, 0.999)] == [
        "a third", "33%", "23%", "65%", "29%", "19%", "99%",
    ]  # fmt: skip


def test_an_error_here_leaves_less_that_was_surely_coordinates() -> None:
    """10 +- 1 here and 4 +- 0.5 at another point: 1 - 5 / 8 at least, which is "at most 5.00"."""
    here, there = Estimate(10.0, stderr=1.0), Estimate(4.0, stderr=0.5)
    infimum = Infimum(4.0, None, False, "hessian", "balanced")
    values = {"here": here, "balanced": there, "sharpened": Estimate(1e6)}
    row = Row("mine", "trace", "curvature", values, infimum, False, Outcome.MOVED)
    head = replace(audited(), rows=(row,)).head
    assert head is not None
    assert head.part == pytest.approx(3 / 8)
    assert head.left.endswith("taken away: at least 37% of it was coordinates")
    assert head.left.startswith("at most 5.00 when")
    assert row.cells()[2] == "≤ 5.00"  # as the sentence says
    proved = replace(row, infimum=replace(infimum, proved=True, lower_bound=4.0))
    head = replace(audited(), rows=(proved,)).head
    assert head is not None
    assert head.left.startswith("4.00 when")
    assert head.left.endswith("taken away: 60% of it was coordinates")


def test_values_are_those_of_the_points() -> None:
    objective, found = small(), audited()
    for point in ("balanced", "flattest", "sharpened"):
        twin = found.points.group.apply(objective, found.points.elements[point])
        values = torch.linalg.eigvalsh(sl.hessian(twin).dense())
        top = float(values.abs().max())
        assert float(found["hessian_spectral"].values[point]) == pytest.approx(top, rel=2e-2)
        if point != "flattest":
            trace = found["hessian_trace"].values[point]
            assert trace.status is Status.EXACT
            assert trace.value == pytest.approx(float(values.sum()), rel=1e-9)
    dense = sl.ggn(objective).dense()
    least = found["hessian_trace"].infimum
    assert least.proved
    assert least.lower_bound == pytest.approx(least.value, rel=1e-9)
    assert least.value < float(dense.trace())  # of a rectified net, the trace of the Hessian too
    theta = objective.vector
    norm = float((theta @ fisher(objective, "true").dense() @ theta).sqrt())  # cross-entropy
    assert float(found["fisher_rao"].here) == pytest.approx(norm, rel=1e-9)
    scaled = theta.abs()[:, None] * sl.hessian(objective).dense() * theta.abs()[None, :]
    adaptive = float(torch.linalg.eigvalsh(scaled).abs().max())
    assert float(found["adaptive_spectral"].here) == pytest.approx(adaptive, rel=2e-3)


def test_the_same_seed_gives_the_same_audit() -> None:
    again, first = sl.audit(small(), way=False).to_dict(), audited().to_dict()
    for report in (again, first):
        report["provenance"].pop("seconds")
        report["provenance"].pop("seconds_for_points")
        for row in report["rows"]:
            for value in row["values"].values():
                value.pop("seconds")
    assert again == first


def test_it_prints_and_writes_itself(tmp_path: Path) -> None:
    text = str(audited())
    assert "on 30 examples and on random inputs, at 5 points along 13 rescalings" in flat(text)
    assert flat(text).startswith("Not at rest: a Newton step lowers the loss by")
    assert "one of them sharpened on purpose to an eigenvalue of 1e6" in flat(text)
    audited().to_json(tmp_path / "audit.json")
    data = json.loads((tmp_path / "audit.json").read_text())
    assert data["schema"] == 4
    assert data["group"]["dim"] == 13
    assert data["rest"]["standing"] == "not at rest"
    assert {row["name"]: row["infimum"]["matrix"] for row in data["rows"]} == {
        "loss": None, "hessian_spectral": "hessian", "hessian_trace": "hessian",
        "hessian_frobenius": "hessian", "keskar": None, "expected_sharpness": None,
        "layer_minimum": "ggn", "adaptive_spectral": None, "fisher_rao": None, "path_norm": None,
        "orbit_trace": "ggn", "orbit_spectral": "ggn",
    }  # fmt: skip
    with (tmp_path / "audit.csv").open("w") as file:
        file.write(audited().to_csv())
    with (tmp_path / "audit.csv").open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(module.DEFAULT)
    assert float(rows["hessian_spectral"]["here"]) == audited()["hessian_spectral"].here.value
    assert rows["orbit_trace"]["verdict"] == "invariant"
    assert rows["orbit_trace"]["proved"] == "True"
    assert rows["orbit_trace"]["matrix"] == "ggn"
    assert {row["name"] for row in data["rows"]} == set(module.DEFAULT)
    with pytest.raises(sl.SpiritlevelError, match="no row 'x'; there are: loss"):
        audited()["x"]


def test_the_headline_is_what_a_reader_can_use() -> None:
    """Both numbers are of the Hessian, measured at two points of the orbit: by hand, densely."""
    found, head = audited(), audited().head
    assert head is not None
    tops = {
        point: float(torch.linalg.eigvalsh(sl.hessian(twin).dense()).abs().max())
        for point, twin in [
            ("here", small()),
            *((p, found.points.group.apply(small(), t)) for p, t in found.points.elements.items()),
        ]
    }
    assert head.here == pytest.approx(tops["here"], rel=2e-3)
    assert head.least == pytest.approx(min(tops.values()), rel=2e-2)
    assert head.least >= min(tops.values()) * (1 - 1e-9)  # "at most" holds
    part = 1 - min(tops.values()) / tops["here"]
    assert head.part <= part  # "at least" holds
    assert head.most == at_most(head.least, 3)
    assert found.headline == (
        f"Sharpness (spectral norm of the Hessian): {digits(tops['here'])} as trained, at most "
        f"{head.most} when 13 rescalings are taken away: at least {share_at_least(head.part)} of "
        "it was coordinates."
    )
    assert "e+0" not in str(found)


def test_what_is_least_is_never_above_the_value_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vague value at another point is no smaller one."""

    def vague(instruments: Any) -> Estimate:
        here = torch.equal(instruments.objective.vector, small().vector)
        return Estimate(1.0, stderr=0.3) if here else Estimate(1.2, stderr=0.001)

    monkeypatch.setitem(MEASURES, "vague", Measure(vague, "vague"))
    names = ["vague", "hessian_trace", "hessian_frobenius", "expected_sharpness"]
    for seed in range(3):
        rows = sl.audit(small(), names, seed=seed, way=False).rows
        assert [row.name for row in rows] == names
        for row in rows:
            assert row.infimum.value <= row.here.value


def test_a_value_below_a_bound_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are used twice, taken for piecewise linear ones: the proof is none."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(0.5 * torch.randn(3, 6))
            self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(self.b(self.a(F.linear(x, self.w)).relu()), self.w.T)

    torch.manual_seed(6)
    model = Tied().double()
    with torch.no_grad():
        model.a.weight.mul_(2)
    x = randn(40, 6)
    objective = sl.Objective(model, (x, 3 * x), F.mse_loss)
    monkeypatch.setattr(Instruments, "multilinear", True)
    found = sl.audit(objective, ["loss", "hessian_trace", "orbit_trace"], way=False)
    row = found["hessian_trace"]
    assert row.outcome is Outcome.REFUTED
    assert not row.infimum.proved
    assert row.infimum.refuted in row.values
    twin = found.points.group.apply(objective, found.points.elements["balanced"])
    assert row.infimum.lower_bound is not None
    assert float(sl.hessian(twin).dense().trace()) < row.infimum.lower_bound
    assert "below its proved bound" in str(found)
    assert "an error of spiritlevel's" in found.headline
    assert any("please report it" in note for note in found.provenance["notes"])


def test_a_norm_of_a_matrix_is_no_more_than_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of the least norm above the least trace, or a trace that is none, is an error."""
    for value in (1e-9, float("nan")):
        real = Instruments.least_trace.func  # type: ignore[attr-defined]
        fake = property(lambda self, real=real, value=value: replace(real(self), value=value))
        with monkeypatch.context() as patch:
            patch.setattr(Instruments, "least_trace", fake)
            row = sl.audit(small(), ["orbit_spectral"], way=False)["orbit_spectral"]
        assert row.outcome is Outcome.REFUTED
        assert not row.infimum.proved


def test_a_bound_that_chance_undercuts_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wild draw is no refutation: the second measurement decides."""
    entry, calls = MEASURES["hessian_trace"], []

    def unlucky(instruments: Any) -> Estimate:
        calls.append(instruments)
        found = entry.function(instruments)
        assert isinstance(found, Estimate)
        return replace(found, value=0.1, stderr=1e-3) if len(calls) == 2 else found

    monkeypatch.setitem(MEASURES, "hessian_trace", replace(entry, function=unlucky))
    row = sl.audit(small(), ["hessian_trace"], way=False)["hessian_trace"]
    assert len(calls) == len(row.values) + 1
    assert row.infimum.proved
    assert not row.bug


def test_a_trace_that_changes_sign_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that it moved by an infinite factor."""
    signed = Measure(lambda i: Estimate(1 - float(i.objective.vector.norm()) / 8), "signed")
    monkeypatch.setitem(MEASURES, "signed", signed)
    found = sl.audit(small(), ["signed"], way=False)
    low, high = (f(e.value for e in found["signed"].values.values()) for f in (min, max))
    assert low < 0 < high
    assert found["signed"].text == (
        f"changed sign, from {digits(low)} to {digits(high)} with identical predictions"
    )
    assert "inf" not in str(found)


def test_a_measure_that_lies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    liar = Measure(
        lambda i: Estimate(float(i.objective.vector.norm())), "liar", invariances=("unit",)
    )
    monkeypatch.setitem(MEASURES, "liar", liar)
    row = sl.audit(small(), ["liar"], way=False)["liar"]
    assert row.text == "declared invariant but moved: a bug"
    honest = replace(liar, invariances=())
    monkeypatch.setitem(MEASURES, "liar", honest)
    assert sl.audit(small(), ["liar"], way=False)["liar"].text.startswith("moved x ")
    by_layers = replace(liar, invariances=("layer",))
    monkeypatch.setitem(MEASURES, "liar", by_layers)
    found = sl.audit(small(), ["liar"], way=False)
    assert found["liar"].text == "declared invariant by layers but moved: a bug"
    assert found.headline == "A measure that promises to be invariant moved: a bug."


def test_a_wrong_symmetry_stops_the_audit() -> None:
    group = sl.symmetries(small())
    forms = group.forms.copy()
    forms.data[0] *= 1.1
    with pytest.raises(sl.SpiritlevelError, match="this element changes the predictions"):
        sl.audit(small(), ["loss"], group=replace(group, forms=forms), way=False)


def test_a_network_without_symmetries_has_nothing_to_move() -> None:
    data = (randn(12, 64), labels(12, classes=10))
    objective = sl.Objective(randomized(mlp(nn.GELU)), data, F.cross_entropy)
    found = sl.audit(objective, ["loss", "hessian_spectral"], way=False)
    assert found["hessian_spectral"].text == "did not move here"
    assert "No rescaling keeps the predictions of this network" in str(found)
    assert "gelu in 1" in str(found)
    whole = sl.Objective(randomized(nn.Linear(6, 3)), (randn(12, 6), labels(12)), F.cross_entropy)
    found = sl.audit(whole, ["loss"], way=False)  # every parameter is chosen, and none blocked
    assert "(Each rescaling of the parameters that are chosen would change an output.)" in flat(
        str(found)
    )


def test_a_promise_is_held_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a percent is no rounding: a measure that creeps is a liar too."""
    creeping = Measure(
        lambda i: Estimate(
            i.objective.value() * (1 + 1e-3 * float(i.objective.vector.norm().log()))
        ),
        "creeping",
        invariances=("unit",),
    )
    monkeypatch.setitem(MEASURES, "creeping", creeping)
    row = sl.audit(small(), ["creeping"], way=False)["creeping"]
    assert row.factor < 1.02
    assert row.text == "declared invariant but moved: a bug"


def test_bad_arguments() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"'sharp'; give one of sl\.MEASURES"):
        sl.audit(small(), ["sharp"], way=False)
    with pytest.raises(sl.SpiritlevelError, match="strength=0: give a positive number"):
        sl.audit(small(), strength=0, way=False)
    with pytest.raises(sl.SpiritlevelError, match="layer_traces is several numbers"):
        sl.audit(small(), ["layer_traces"], way=False)


def test_what_an_eps_breaks_is_approximately_invariant() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).double()
    objective = sl.Objective(net, (randn(30, 6), labels(30)), F.cross_entropy)
    group = sl.symmetries(objective, eps="approximate")
    assert group.norms
    found = sl.audit(objective, ["loss", "hessian_spectral"], group=group, strength=0.3, way=False)
    assert any(c.verdict == "approximate" for c in found.certificates.values())
    text = found["loss"].text
    assert text.startswith("approximately invariant (eps of norms, ")


def test_the_way_along_the_orbit() -> None:
    found = sl.audit(small(), ["loss"]).way
    assert found is not None
    assert [s.label for s in found.stops if s.label] == ["balanced", "here", "sharpened"]
    here = next(s for s in found.stops if s.label == "here")
    values = torch.linalg.eigvalsh(sl.hessian(small()).dense()).flip(0)
    assert here.eigenvalues == pytest.approx(values[:8].tolist(), rel=2e-2)
    assert here.slice[len(here.slice) // 2] == pytest.approx(small().value(), rel=1e-12)
    probabilities = small().predictions().softmax(1)
    for stop in found.stops:
        assert stop.change < 1e-12
        assert torch.allclose(torch.tensor(stop.predictions).double(), probabilities[:5])
    assert found.stops[-1].eigenvalues[0] >= 1e6 * (1 - 1e-2)
    assert found.stops[0].eigenvalues[0] < found.stops[-1].eigenvalues[0]


def test_the_report_is_written(tmp_path: Path) -> None:
    page = sl.write_report(audited(), tmp_path / "report.html").read_text()
    assert audited().headline in page
    assert "Along the orbit" in page
    data = (randn(12, 64), labels(12, classes=10))
    still = sl.Objective(randomized(mlp(nn.GELU)), data, F.cross_entropy)
    page = sl.write_report(sl.audit(still, ["loss"]), tmp_path / "still.html").read_text()
    assert "there is nothing to move" in page
