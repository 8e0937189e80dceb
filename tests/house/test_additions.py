"""One of each from outside of the package: a measure, an operation, a norm, a claim, a command.

None of them edits a file of it, and each is used as those that come with it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

import conformance
import spiritlevel as sl
from cases import labels, randn
from spiritlevel.orbit import Problem, Solution, operator_of
from spiritlevel.results import result
from spiritlevel.symmetry.tracing import rules

# A measure ---------------------------------------------------------------------------------------


@pytest.fixture
def product_of_norms() -> Iterator[str]:
    """|W_1| |W_2|: whole layers cannot change it, units can."""
    name = "product_of_norms"

    @sl.register(name, family="norm", invariances=["layer"], is_sharpness=False)
    def measured(objective: sl.Objective, power: float = 1.0) -> float:
        weights = [p for p in objective.params.values() if p.ndim > 1]
        return float(torch.stack([w.norm() for w in weights]).prod()) ** power

    yield name
    del sl.MEASURES[name]


def bare() -> sl.Objective:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    return sl.Objective(net.double(), (randn(30, 6), labels(30)), F.cross_entropy)


def test_a_measure(product_of_norms: str, tmp_path: Path) -> None:
    objective = bare()
    one, two = (p.norm() for p in objective.params.values())
    expected = float(one * two)
    table = sl.measure(objective, ["loss", product_of_norms])
    assert table[product_of_norms].value == pytest.approx(expected, rel=1e-12)
    assert sl.MEASURES[product_of_norms](objective, power=2.0).value == pytest.approx(expected**2)
    audit = sl.audit(objective, [product_of_norms], way=False)
    assert "by units, not by layers" in audit[product_of_norms].text
    audit.to_json(tmp_path / "audit.json")
    page = sl.write_report(sl.load(tmp_path / "audit.json"), tmp_path / "audit.html")
    assert "product of norms" in page.read_text(encoding="utf-8")
    twin = sl.sharpen(objective, target=1e3).objective
    pair = sl.compare({"net": objective, "twin": twin}, [product_of_norms])[product_of_norms]
    assert pair.text in ("equal", "undecided: what is left is unknown")


# An operation ------------------------------------------------------------------------------------


@torch.library.custom_op("additions::softened", mutates_args=())
def softened(x: Tensor) -> Tensor:
    """|x|: homogeneous, which nobody knows of it."""
    return x.abs()


softened.register_fake(torch.empty_like)
softened.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].sign(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Softened(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return softened(x)


def test_an_operation() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), Softened(), nn.Linear(5, 3)).double()
    objective = sl.Objective(net, (randn(20, 4), labels(20)), F.cross_entropy)
    assert sl.symmetries(objective).dim == 0
    known = sl.symmetry.Operation(scales=rules.rectifies)
    sl.symmetry.register_operation("additions::softened", known)
    try:
        group = sl.symmetries(objective)
        twin = group.apply(objective, group.random(0))
    finally:
        sl.symmetry.unregister_operation("additions::softened")
    assert group.dim == 5
    assert group.verify(objective, twin).verdict == "exact"
    assert sl.symmetries(objective).dim == 0


# A norm ------------------------------------------------------------------------------------------


def schatten_four(problem: Problem, tol: float, seed: int) -> Solution:
    """min over t of (tr (D A D)^4)^(1/4), from the whole matrix."""
    dense, grid = operator_of(problem).dense().double(), problem.cells
    like = torch.zeros(len(dense), dtype=torch.float64)

    def value(t: np.ndarray) -> float:
        d = grid.spread(np.exp(-grid.log_scales(t)), like)
        return float(torch.linalg.eigvalsh(d[:, None] * dense * d).pow(4).sum()) ** 0.25

    found = minimize(value, problem.start.t, method="L-BFGS-B", options={"maxfun": 20000})
    here = value(np.zeros_like(problem.start.t))
    return Solution(found.fun, here, None, float(abs(found.jac).max()), found.x, len(dense), True)


def test_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the spectral norm and the Frobenius norm, at their bottoms too."""
    monkeypatch.setitem(sl.orbit.NORMS, "schatten four", schatten_four)
    objective = conformance.objective()
    group = sl.symmetries(objective)
    least = {
        norm: sl.orbit.minimum(objective, group, norm=norm)
        for norm in ("spectral", "schatten four", "frobenius")
    }
    values = torch.linalg.eigvalsh(sl.ggn(objective).dense())
    assert least["schatten four"].before == pytest.approx(float(values.norm(p=4)), rel=1e-9)
    there = torch.linalg.eigvalsh(sl.ggn(least["schatten four"].objective).dense())
    assert least["schatten four"].value == pytest.approx(float(there.norm(p=4)), rel=1e-6)
    sizes = [found.value for found in least.values()]
    assert sizes == sorted(sizes)
    with pytest.raises(sl.SpiritlevelError, match=r"choose one of .*'schatten four'"):
        sl.orbit.minimum(objective, group, norm="nuclear")


def test_a_matrix_of_ones_own() -> None:
    """The Fisher matrix as an operator: for cross-entropy it is that of Gauss and Newton."""
    objective = conformance.objective()
    group = sl.symmetries(objective)
    fisher = sl.fisher(objective)
    assert fisher.psd
    assert not sl.hessian(objective).psd
    for norm in ("trace", "spectral", "frobenius"):
        own = sl.orbit.minimum(objective, group, norm=norm, operator=fisher)
        plain = sl.orbit.minimum(objective, group, norm=norm)
        assert own.value == pytest.approx(plain.value, rel=1e-2 if norm == "spectral" else 1e-4)
        assert own.before == pytest.approx(plain.before, rel=1e-3)
        assert own.operator == "true fisher"
        if plain.lower_bound is not None:
            assert own.lower_bound is not None
            assert own.lower_bound <= plain.value * (1 + 1e-9)
    unknown = functools.partial(sl.orbit.minimum, objective, group, operator=sl.hessian(objective))
    assert unknown(norm="spectral").lower_bound is None
    with pytest.raises(sl.SpiritlevelError, match="needs its diagonal"):
        unknown(norm="trace")
    negative = replace(sl.from_matrix(-torch.eye(objective.size).double()), psd=True)
    with pytest.raises(sl.SpiritlevelError, match="says psd=True, and its diagonal reaches -1"):
        sl.orbit.minimum(objective, group, operator=negative)
    with pytest.raises(sl.SpiritlevelError, match="operator has the size 3; give one of the"):
        sl.orbit.minimum(objective, group, operator=sl.from_matrix(torch.eye(3)))


# A claim -----------------------------------------------------------------------------------------


def broken_by(factor: float) -> sl.Claim:
    def build(setting: Any) -> dict[str, Any]:
        group = setting.group
        twin = group.apply(setting.objective, factor * group.random(seed=1))
        return {"one": setting.objective, "other": twin}

    def check(one: sl.Objective, other: sl.Objective) -> sl.Finding:
        gap = abs(one.value() - other.value())
        return sl.Finding(f"the loss moves by {gap:.0e}", {"gap": gap}, gap < 1e-9)

    return sl.Claim("A rescaling leaves the loss.", "mine", "a random twin", build, check)


def test_a_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sl.CLAIMS, "loss_stays", broken_by(1.0))
    found = sl.claims(conformance.objective(), ["loss_stays", "any_labels"])
    assert found["loss_stays"].verdict == "holds"
    assert found["loss_stays"].finding is not None
    assert found["loss_stays"].finding.numbers["gap"] < 1e-9
    page = sl.write_report(found, tmp_path / "claims.html").read_text(encoding="utf-8")
    assert "A rescaling leaves the loss." in page
    found.to_json(tmp_path / "claims.json")
    assert sl.load(tmp_path / "claims.json") == found


# A command ---------------------------------------------------------------------------------------

COMMAND = '''
import dataclasses

import typer

from spiritlevel.results import Result
from spiritlevel.results.grid import Column, Grid, cells
from spiritlevel.results.provenance import Provenance, provenance


@dataclasses.dataclass(frozen=True, eq=False)
class Greeting(Result, kind="greeting", schema=1):
    name: str
    provenance: Provenance
    title = "A greeting"

    def grid(self):
        return Grid((Column("who"),), (cells(self.name),))

    def records(self):
        return [{"name": self.name}]


def greet(name: str = typer.Option("you"), json: str = typer.Option(None)) -> None:
    """Say hello."""
    found = Greeting(name, provenance(0.0))
    print(f"hello, {found.name}")
    if json:
        found.to_json(json)


'''


def test_a_command(tmp_path: Path) -> None:
    """Of another package, by its entry point; one that cannot be loaded is named and left out."""
    info = tmp_path / "greetings-1.0.dist-info"
    info.mkdir()
    (tmp_path / "greetings.py").write_text(COMMAND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[spiritlevel.commands]\ngreet = greetings:greet\nlost = greetings:nothing\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "spiritlevel.cli", *words],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

    done = run("greet", "--name", "Dinh", "--json", str(tmp_path / "g.json"))
    assert done.stdout == "hello, Dinh\n"
    assert "spiritlevel: the command lost cannot be had: " in done.stderr
    listed = run("--help").stdout
    assert "Say hello." in listed
    assert "measure" in listed
    again = run("report", str(tmp_path / "g.json"), "-o", str(tmp_path / "g.html"))
    assert again.returncode == 0, again.stderr
    assert "Dinh" in (tmp_path / "g.html").read_text(encoding="utf-8")
    with pytest.raises(sl.SpiritlevelError, match="unknown kind 'greeting'; there are: "):
        sl.load(tmp_path / "g.json")
    assert "greeting" not in result.KINDS
