"""Every bound of a network side by side: which it has, which it has not, and why."""

from __future__ import annotations

import functools
import signal
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fits import by_adam
from spiritlevel import Objective, SpiritlevelError
from spiritlevel.bounds import norms
from spiritlevel.bounds.architecture import chain
from spiritlevel.bounds.capacity import vc, vc_dimension
from spiritlevel.bounds.survey import BOUNDS, survey
from spiritlevel.orbit import representative
from spiritlevel.results.bound import Bounds

QUICK: dict[str, Any] = {"epochs": 2, "draws": 50}
CHEAP = ["path", "spectral_frobenius", "spectral_margin", "vc", "occam"]


def clouds(classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(120) % classes
    x = 0.3 * torch.randn(120, 4, generator=draws, dtype=torch.float64) + 2 * F.one_hot(y, 4)
    return x, y


@functools.cache
def start() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()


@functools.cache
def net() -> Objective:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    x, y = clouds()
    by_adam(model, x, y)
    return Objective(model, (x, y), F.cross_entropy)


@functools.cache
def whole() -> Bounds:
    return survey(net(), init=start(), **QUICK)


def values(found: Bounds, name: str) -> dict[str, float]:
    return {row.point: row.bound.value for row in found if row.name == name}


def test_a_chain_of_two_classes_has_them_all() -> None:
    found = whole()
    there = {row.name for row in found}
    assert {"maurer", *CHEAP, "expected_sharpness", "flat_box"} <= there
    assert found.provenance["refused"] == {}
    assert found.origin is not None
    assert found.rows[0].name == "maurer"
    assert any("by itself, not all" in note for note in found.provenance["notes"])
    assert {row.bound.delta for row in found} == {0.05}


def test_each_is_that_of_its_own_function_at_its_own_point() -> None:
    found, o = whole(), net()
    twin = representative(o).objective
    init = torch.cat([p.detach().reshape(-1) for p in start().parameters()])
    for name, bound in (
        ("spectral_margin", norms.spectral_margin),
        ("spectral_frobenius", norms.spectral_frobenius),
    ):
        there = values(found, name)
        assert there["here"] == bound(chain(o, init)).value
        assert there["balanced"] == bound(chain(twin, init)).value
        assert there["here"] != there["balanced"]
    assert values(found, "path") == {"here": norms.path(o, chain(o, init)).value}
    layers = [(25, 5), (6, 1)]
    size = min(vc_dimension(layers), vc_dimension(layers, "units"))
    wrong = float((o.predictions().argmax(1) != o.batches[0][1]).double().mean())
    assert values(found, "vc") == {"here": vc(error=wrong, dimension=size, m=120).value}


def test_what_cannot_be_had_is_left_out_with_the_reason() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)
    o = Objective(nn.Sequential(*layers).double(), clouds(3), F.cross_entropy)
    found = survey(o, init=nn.Sequential(*layers).double(), draws=20, epochs=1)
    refused = found.provenance["refused"]
    assert "batch_norm" in refused["spectral_margin"]
    assert "tanh is nothing of that kind" in refused["vc"]
    assert "running statistics" in refused["occam"]
    assert "running statistics" in refused["expected_sharpness"]
    assert {row.name for row in found} >= {"maurer"}
    with pytest.raises(SpiritlevelError, match="tanh is nothing of that kind"):
        survey(o, only="vc")


def test_where_no_bound_can_be_had_every_reason_is_given() -> None:
    """The last of them helps: with the weights before training there is one."""
    torch.manual_seed(0)
    layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)
    o = Objective(nn.Sequential(*layers).double(), clouds(3), F.cross_entropy)
    with pytest.raises(SpiritlevelError, match=r"flat_box, pac_bayes: .* give init=") as refused:
        survey(o, **QUICK)
    said = str(refused.value)
    assert said.startswith("path, spectral_frobenius, spectral_margin: norm bounds are those of")
    assert said.count("the running statistics") == 2


def test_three_classes_have_no_vc_bound() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    o = Objective(model, clouds(3), F.cross_entropy)
    found = survey(o, only=["vc", "path"])
    assert "two classes; this network has 3 outputs" in found.provenance["refused"]["vc"]
    assert [row.name for row in found] == ["path"]


def test_one_output_is_the_same_decision_as_two() -> None:
    """f and (0, f) have the same margins, norms and decisions."""
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    two = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    with torch.no_grad():
        for name, p in one.named_parameters():
            two.get_parameter(name)[-len(p) :] = p
        two.get_parameter("2.weight")[0] = 0.0
        two.get_parameter("2.bias")[0] = 0.0
    x, y = clouds()
    first = Objective(one, (x, y[:, None].double()), F.binary_cross_entropy_with_logits)
    second = Objective(two, (x, y), F.cross_entropy)
    some = {"only": ["vc", "spectral_margin", "spectral_frobenius"], "orbit": False}
    found, other = survey(first, **some), survey(second, **some)
    for row, again in zip(found, other, strict=True):
        assert row.bound.value == pytest.approx(again.bound.value, rel=1e-12)


def test_without_the_orbit_there_is_one_point() -> None:
    found = survey(net(), only=CHEAP, orbit=False)
    assert {row.point for row in found} == {"here"}


def test_a_network_without_rescalings_says_so() -> None:
    o = Objective(nn.Linear(4, 2, bias=False).double(), clouds(), F.cross_entropy)
    found = survey(o, only=["spectral_margin", "vc"])
    assert {row.point for row in found} == {"here"}
    assert any("no rescaling" in note for note in found.provenance["notes"])


def test_an_interruption_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(asked: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setitem(BOUNDS, "vc", pressed)
    found = survey(net(), orbit=False, **QUICK)
    assert {row.name for row in found} == {"path", "spectral_margin", "spectral_frobenius"}
    assert found.provenance["interrupted"] == "3 of 8 bounds were done"


def test_the_same_seed_gives_the_same_and_nothing_is_touched() -> None:
    o, state = net(), torch.get_rng_state()
    before = o.vector.clone()
    one, other = (survey(o, only="expected_sharpness", orbit=False, seed=3) for _ in range(2))
    assert [row.bound.value for row in one] == [row.bound.value for row in other]
    assert torch.equal(o.vector, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"delta": 0.0}, r"delta=0.0: give a positive number"),
        ({"delta": 1.5}, r"delta=1.5: give a probability"),
        ({"only": "pac"}, "only='pac' is not known; choose one of 'path'"),
        ({"only": "maurer"}, "only='maurer': maurer, .* are made together; give 'pac_bayes'"),
        ({"only": 3}, "only=3: give a name"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"radius": -1.0}, r"radius=-1.0: give a positive number"),
        ({"orbit": "yes"}, "orbit='yes' is not known"),
        ({"init": torch.zeros(3)}, "init has the shape"),
    ],
)
def test_what_cannot_be_asked_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SpiritlevelError, match=why):
        survey(net(), **options)


def test_a_module_is_no_objective() -> None:
    with pytest.raises(SpiritlevelError, match="give an Objective"):
        survey(start())  # type: ignore[arg-type]
