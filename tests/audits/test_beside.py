"""What is interrupted, fails or is not there in an audit costs itself alone."""

from __future__ import annotations

import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from architectures import mlp, randomized
from cases import labels, randn, small_net
from spiritlevel.audits import audit as module
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.spoken import digits
from spiritlevel.measures.base import Measure
from spiritlevel.measures.registry import MEASURES
from spiritlevel.report.audit import audit_words


def test_what_an_objective_does_not_have_is_said() -> None:
    """A loss of the whole model has no outputs, so no Gauss-Newton matrix; the rest is audited."""

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    objective = sl.Objective(randomized(mlp(nn.ReLU)), (randn(30, 64), labels(30)), loss)
    found = sl.audit(objective, way=False)
    missing = {"layer_minimum", "fisher_rao", "orbit_trace", "orbit_spectral"}
    assert {row.name for row in found.rows} == set(module.DEFAULT) - missing
    assert list(found["loss"].values) == ["here", "moved", "sharpened"]
    notes = {note.split(":")[0] for note in found.provenance["notes"]}
    assert notes == {"not balanced, flattest"}
    assert set(found.provenance["refused"]) == missing
    said = " ".join(str(found).split())
    assert "no layer_minimum, orbit_trace, orbit_spectral: the Gauss-Newton diagonal needs" in said
    assert "least: over all rescalings" not in said  # nothing was searched for
    assert not found["hessian_trace"].infimum.proved
    top = digits(found["hessian_spectral"].here.value)
    assert found["hessian_spectral"].cells()[2] == ""
    assert found.headline.startswith(
        f"Sharpness (spectral norm of the Hessian): {top} as trained, and no least value was "
        "searched for: the Gauss-Newton diagonal needs a loss that is a sum over examples"
    )
    [_, key, *_] = audit_words(found)["keys"]
    assert key["note"] == "no least value was searched for"


def test_an_interruption_keeps_the_rows_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: object) -> Estimate:
        raise KeyboardInterrupt

    monkeypatch.setitem(MEASURES, "stop", Measure(stop, "stop"))
    found = sl.audit(small_net(), ["loss", "path_norm", "stop", "fisher_rao"], way=False)
    assert [row.name for row in found.rows] == ["loss", "path_norm"]
    assert found.provenance["interrupted"] == "2 of 4 measures were done"
    assert "interrupted: 2 of 4 measures were done" in str(found)
    with pytest.raises(KeyboardInterrupt):
        sl.audit(small_net(), ["stop", "loss"], way=False)


EXTRAS = {"rest": "step downhill", "way_along": "figure", "left": "other freedoms"}


@pytest.mark.parametrize("place", EXTRAS)
def test_ctrl_c_beside_the_rows_keeps_them_all(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, place, lambda *_: signal.raise_signal(signal.SIGINT))
    found = sl.audit(small_net(), ["loss", "path_norm"])
    assert [row.name for row in found.rows] == ["loss", "path_norm"]
    lost = list(EXTRAS.values())[list(EXTRAS).index(place) :]
    said = f"all that was asked for is done, but {', '.join(f'no {name}' for name in lost)}"
    assert found.provenance["interrupted"] == said
    assert (found.way is None) == (place != "left")


@pytest.mark.parametrize("place", EXTRAS)
def test_what_fails_beside_the_rows_costs_itself_and_a_note(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sl.SpiritlevelError("products differ")

    monkeypatch.setattr(module, place, fail)
    found = sl.audit(small_net(), ["loss"])
    assert [row.name for row in found.rows] == ["loss"]
    assert f"no {EXTRAS[place]}: products differ" in str(found)
    assert not found.provenance["interrupted"]
    assert (found.way is None) == (place == "way_along")


def test_of_what_was_not_measured_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: object) -> Estimate:
        raise KeyboardInterrupt

    monkeypatch.setitem(MEASURES, "stop", Measure(stop, "stop"))
    cut, whole = (sl.audit(small_net(), ["loss", *more], way=False) for more in (["stop"], []))
    assert cut.headline == "The audit was interrupted: nothing follows for what was not measured."
    assert whole.headline.startswith("Nothing that was measured moves")


@pytest.mark.parametrize("error", [IndexError, TypeError, ValueError, ZeroDivisionError])
def test_a_measure_that_raises_costs_its_row(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(_: object) -> Estimate:
        raise error("mine")

    monkeypatch.setitem(MEASURES, "raising", Measure(raising, "raising"))
    nets = {"a": small_net(), "b": small_net()}
    for found in (
        sl.audit(small_net(), ["raising", "loss"], way=False),
        sl.measure(small_net(), ["raising", "loss"]),
        sl.compare(nets, ["raising", "loss"]),
    ):
        assert found.provenance["refused"] == {"raising": f"{error.__name__}: mine"}
        assert "loss" in str(found)
    for alone in (
        lambda: sl.audit(small_net(), ["raising"]),
        lambda: sl.measure(small_net(), ["raising"]),
        lambda: sl.compare(nets, ["raising"]),
    ):
        with pytest.raises(error, match="mine"):
            alone()
