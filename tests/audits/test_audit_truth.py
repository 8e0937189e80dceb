"""What an audit must not say: proofs that are none, bugs that are none, invariance by vagueness."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conformance
import spiritlevel as sl
from cases import labels, randn
from spiritlevel.base.estimate import Estimate
from spiritlevel.curvature.diagonals import ggn_diagonal
from spiritlevel.measures.base import Invariance, Measure
from spiritlevel.symmetry.tracing.degree import multilinear

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"


def trained(net: nn.Module, steps: int = 60, loss: Any = F.cross_entropy) -> sl.Objective:
    x, y = randn(40, 6), labels(40)
    optimizer = torch.optim.Adam(net.double().parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    return sl.Objective(net, (x, y), loss)


@functools.cache
def before_a_norm() -> tuple[sl.Objective, sl.Group]:
    torch.manual_seed(0)
    norm = nn.LayerNorm(4, eps=0)
    layers = (nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), norm, nn.ReLU(), nn.Linear(4, 3))
    objective = trained(nn.Sequential(*layers))
    return objective, sl.symmetries(objective)


@functools.cache
def pruned() -> tuple[sl.Objective, sl.Group]:
    """Units with outgoing weights of zero: their rescaling has mass on one side."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    objective = trained(net)
    weight = objective.params["2.weight"].clone()
    weight[:, :2] = 0
    objective = objective.at({"2.weight": weight})
    return objective, sl.symmetries(objective)


@functools.cache
def before_free_statistics() -> tuple[sl.Objective, sl.Group]:
    """Rescalings that run away together only: none is one-sided by itself."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    layers = (nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), norm, nn.ReLU(), nn.Linear(4, 3))
    objective = trained(nn.Sequential(*layers).eval())
    return objective, sl.symmetries(objective, statistics="free", eps="approximate")


ONE_SIDED = {f.__name__: f for f in (before_a_norm, pruned, before_free_statistics)}


@pytest.mark.parametrize("norm", ["trace", "spectral", "frobenius"])
@pytest.mark.parametrize("name", ONE_SIDED)
def test_one_sided_rescalings_are_divided_out_wherever_one_starts(name: str, norm: Any) -> None:
    objective, group = ONE_SIDED[name]()
    found = sl.orbit.minimum(objective, group, norm=norm)
    assert found.divided_out
    assert found.status is sl.Status.CONVERGED
    accuracy = 5e-3 if norm == "spectral" else 1e-4  # eps of the BatchNorm
    for seed in range(4 if LONG else 2):
        twin = group.apply(objective, group.random(seed, 1.0))
        again = sl.orbit.minimum(twin, group, norm=norm)
        assert again.value == pytest.approx(found.value, rel=accuracy)


@pytest.mark.parametrize("name", ["before_a_norm", "pruned"])
def test_no_bug_is_reported_and_nothing_is_proved_there(name: str) -> None:
    objective, group = ONE_SIDED[name]()
    names = ["loss", "hessian_trace", "layer_minimum", "orbit_trace", "orbit_spectral"]
    found = sl.audit(objective, names, group=group, way=False)
    assert not any(row.bug for row in found.rows)
    assert found["orbit_trace"].text == found["orbit_spectral"].text == "invariant"
    for row in ("hessian_trace", "layer_minimum"):
        assert not found[row].infimum.proved


def test_a_trace_is_proved_for_piecewise_linear_networks_only() -> None:
    smooth = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    objective = trained(smooth, steps=5)
    assert not multilinear(objective)
    assert not sl.audit(objective, ["hessian_trace"], way=False)["hessian_trace"].infimum.proved
    assert multilinear(conformance.objective())
    proved = sl.audit(conformance.objective(), ["hessian_trace"], way=False)[
        "hessian_trace"
    ].infimum
    assert proved.proved

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.relu(self.first(F.relu(self.first(x)))))

    assert not multilinear(trained(Twice(), steps=1))
    with pytest.raises(sl.SpiritlevelError, match="not piecewise linear in each parameter"):
        sl.orbit.minimum(trained(Twice(), steps=1), norm="trace", operator="hessian")


def test_predictions_that_an_eps_changes_are_not_called_identical() -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(5)
    layers = (nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), norm, nn.ReLU(), nn.Linear(5, 3))
    objective = trained(nn.Sequential(*layers))
    group = sl.symmetries(objective, eps="approximate")
    found = sl.audit(objective, ["loss", "hessian_spectral"], group=group, strength=0.3, way=False)
    assert found.worst <= 1e-2
    assert not found["loss"].bug
    assert any(c.verdict == "approximate" for c in found.certificates.values())
    assert "identical predictions" not in found["hessian_spectral"].text
    far = sl.audit(objective, ["loss"], group=group, strength=6.0, way=False)
    assert any("the eps of norms changes predictions by" in n for n in far.provenance["notes"])
    assert far.worst <= 1e-2


def test_a_loss_that_is_not_convex_has_no_diagonal() -> None:
    def welsch(outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - torch.exp(-((outputs - targets) ** 2) / 2)).mean()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    objective = sl.Objective(net, (randn(20, 6), 3 * randn(20, 1, seed=4)), welsch)
    with pytest.raises(sl.SpiritlevelError, match="not convex in the outputs"):
        ggn_diagonal(objective)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_overflows_is_not_invariant(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    base = conformance.objective()

    def wild(instruments: Any) -> Estimate:
        here = torch.equal(instruments.objective.vector, base.vector)
        return Estimate(1.0 if here else value)

    promises: tuple[tuple[Invariance, ...], ...] = ((), ("unit",))
    for promise in promises:
        monkeypatch.setitem(sl.MEASURES, "wild", Measure(wild, "wild", invariances=promise))
        found = sl.audit(base, ["wild"], way=False)
        assert found["wild"].text.startswith("overflows at the point ")
        data = json.loads(found.to_json(), parse_constant=pytest.fail)
        assert data["rows"][0]["factor"] == "Infinity"
        assert "overflows" in str(found)


@pytest.mark.parametrize("layer", ["0.weight", "4.weight"])
def test_a_promise_by_layers_is_held_in_every_layer(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size(instruments: Any) -> Estimate:
        return Estimate(float(instruments.objective.params[layer].norm()))

    monkeypatch.setitem(sl.MEASURES, "liar", Measure(size, "liar", invariances=("layer",)))
    row = sl.audit(conformance.objective(), ["liar"], way=False)["liar"]
    assert row.text == "declared invariant by layers but moved: a bug"


def test_vagueness_is_not_invariance(monkeypatch: pytest.MonkeyPatch) -> None:
    def vague(instruments: Any) -> Estimate:
        value = float(instruments.objective.vector.norm())
        return Estimate(value, stderr=10 * value)

    monkeypatch.setitem(sl.MEASURES, "vague", Measure(vague, "vague", invariances=("unit",)))
    row = sl.audit(conformance.objective(), ["vague"], way=False)["vague"]
    assert row.text == "undecided: too uncertain"


def test_a_row_that_breaks_does_not_break_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Estimate:
        return Estimate(1 / 0)

    monkeypatch.setitem(sl.MEASURES, "broken", Measure(broken, "broken"))
    found = sl.audit(conformance.objective(), ["loss", "broken", "path_norm"], way=False)
    assert [row.name for row in found.rows] == ["loss", "path_norm"]
    assert found.provenance["refused"] == {"broken": "ZeroDivisionError: division by zero"}


def test_flat_networks_and_odd_parameters() -> None:
    """A loss of exactly zero; a scalar parameter; a single parameter."""
    torch.manual_seed(0)
    x = randn(10, 6)
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    objective = sl.Objective(net, (x, labels(10)), lambda out, y: 0.0 * out.square().mean())
    for norm in ("spectral", "frobenius"):
        assert sl.orbit.minimum(objective, norm=norm).value == 0.0  # type: ignore[arg-type]
    assert sl.orbit.minimum(objective, operator="hessian").value == 0.0
    assert sl.measure(objective).verdict == "Flat to rounding: neither slope nor curvature."

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = net, nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * self.scale

    scaled = sl.Objective(Scaled(), (x, labels(10)), F.cross_entropy)
    found = sl.audit(scaled, ["loss", "orbit_trace", "orbit_spectral"], way=False)
    assert {row.text for row in found.rows} == {"invariant"}

    one = sl.Objective(nn.Linear(1, 1, bias=False).double(), (x[:, :1], x[:, :1]), F.mse_loss)
    top = float(2 * x[:, :1].square().mean())
    error = float(one.vector[0] - 1)
    worst = top / 2 * ((abs(error) + 0.05) ** 2 - error**2) / (1 + one.value())
    assert sl.MEASURES["eps_sharpness"](one).value == pytest.approx(worst, rel=1e-9)


def halved(h: Tensor) -> Tensor:
    return h * torch.full((), 0.5, dtype=torch.float64)


@pytest.mark.parametrize(
    "change", [halved, lambda h: torch.add(h, h, alpha=0.5), lambda h: h - 3 * h, torch.square]
)
def test_a_path_norm_that_is_not_understood_is_refused(change: Callable[[Tensor], Tensor]) -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(change(F.relu(self.first(x))))

    objective = sl.Objective(Changed().double(), (randn(9, 6), labels(9)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="the path norm knows"):
        sl.MEASURES["path_norm"](objective)


def test_a_parametrized_weight_is_refused() -> None:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 3))
    objective = sl.Objective(net.double(), (randn(9, 6), labels(9)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="plain weights, not parametrized"):
        sl.MEASURES["path_norm"](objective)


def test_costs_are_those_of_the_rows() -> None:
    table = sl.measure(conformance.objective(), ["adaptive_spectral", "fisher_rao", "lambda_max"])
    paid = sum(row.estimate.matvecs for row in table if not row.shared)
    assert table.rest is not None
    assert table.provenance["products"] == paid + table.rest.products > 3


def test_masses_and_products_are_of_one_matrix() -> None:
    """What is divided out of the diagonal is divided out of the operator too."""
    for name, make in ONE_SIDED.items():
        objective, group = make()
        trace = sl.orbit.minimum(objective, group, norm="trace")
        top = sl.orbit.minimum(objective, group)
        assert top.value <= trace.value * (1 + 1e-9), name  # of one and the same psd matrix
        assert trace.value <= objective.size * top.value, name
        assert set(trace.divided_out) == set(top.divided_out), name
