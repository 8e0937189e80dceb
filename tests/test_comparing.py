"""Comparisons: the verdicts on cases that are built to have them."""

from __future__ import annotations

import functools
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.comparing import Comparison
from spiritlevel.default import digits
from spiritlevel.estimate import Estimate
from spiritlevel.measures.base import Measure


@functools.cache
def net(batch: int, width: int = 8) -> sl.Objective:
    """A small digits net trained with batches of some size."""
    (x, y), _ = digits()
    x, y = x[:300], y[:300]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        for chosen in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    return sl.Objective(model.double(), (x.double(), y), F.cross_entropy)


@functools.cache
def by_batch() -> Comparison:
    return sl.compare({"small": net(16), "large": net(300)})


@functools.cache
def with_twin() -> Comparison:
    twin = sl.sharpen(net(16), target=1e4).objective
    return sl.compare({"net": net(16), "twin": twin})


def test_a_difference_that_survives() -> None:
    """The net that was trained less is sharper by every count, at the bottom of the orbits too."""
    for name in ("hessian_spectral", "hessian_trace", "orbit_spectral", "orbit_trace"):
        pair = by_batch()[name]
        assert (pair.sharper, pair.other) == ("large", "small")
        assert pair.text == "large is sharper, and it survives"
        assert pair.ratio > 2
    pair = by_batch()["hessian_spectral"]
    assert pair.least is not None
    assert pair.least[0][0] > pair.least[1][1]
    assert by_batch()["loss"].text == "large is larger, and it survives"


def test_the_order_can_be_turned_around_all_the_same() -> None:
    pair = by_batch()["hessian_spectral"]
    assert pair.turned is not None
    assert pair.turned.outcome == "reached"
    assert pair.turned.certificate is not None
    assert pair.turned.certificate.verdict == "exact"
    assert pair.turned.objective is not None
    top = sl.eigenvalues(sl.hessian(pair.turned.objective))[0].value
    assert top > pair.values[0].value
    same = torch.allclose(pair.turned.objective.predictions(), net(16).predictions(), rtol=1e-9)
    assert same
    assert "Turned around by a network with identical predictions: spectral norm" in str(by_batch())


def test_a_twin_is_sharper_only_in_these_coordinates() -> None:
    for name in ("hessian_spectral", "hessian_trace", "expected_sharpness"):
        pair = with_twin()[name]
        assert pair.text == "twin is sharper only in these coordinates"
        assert pair.ratio > 100
    for name in ("loss", "orbit_trace", "orbit_spectral", "adaptive_spectral"):
        assert with_twin()[name].text == "equal"


def test_what_cannot_be_told_apart_is_undecided() -> None:
    """Two nets whose traces are known to a tenth and differ by less."""
    near = net(16).at(net(16).vector * 1.0005)
    found = sl.compare({"a": net(16), "b": near}, ["hessian_trace", "expected_sharpness"])
    assert {pair.text for pair in found.pairs} == {"undecided at this accuracy"}
    assert found["hessian_trace"].turned is None


def test_what_is_left_of_a_frobenius_norm_is_known() -> None:
    found = sl.compare({"small": net(16), "large": net(300)}, ["hessian_frobenius", "keskar"])
    assert found["hessian_frobenius"].text == "large is sharper, and it survives"
    unknown = found["keskar"]
    assert unknown.turned is not None
    assert unknown.text == "undecided: what is left is unknown"


def test_two_lower_bounds_do_not_tell_maxima_apart() -> None:
    """The same network with its units in another order: searches differ, networks do not."""
    objective = net(16)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    p = objective.params
    permuted = objective.at(
        {"0.weight": p["0.weight"][order], "0.bias": p["0.bias"][order],
         "2.weight": p["2.weight"][:, order]}
    )  # fmt: skip
    found = sl.compare({"net": objective, "permuted": permuted}, ["adaptive_worst", "keskar"])
    assert {pair.answer for pair in found.pairs} <= {"undecided", "equal"}


def test_an_interruption_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: object) -> Estimate:
        raise KeyboardInterrupt

    monkeypatch.setitem(sl.MEASURES, "stop", Measure(stop, "stop"))
    found = sl.compare({"a": net(16), "b": net(300)}, ["loss", "stop", "path_norm"])
    assert list(found.values) == ["loss"]
    assert "interrupted: 1 of 3 measures were done" in str(found)


def test_three_networks_of_two_architectures() -> None:
    nets = {"a": net(16), "b": net(300), "c": net(16, 5)}
    found = sl.compare(nets, ["orbit_trace"])
    assert len(found.pairs) == 3
    assert found["orbit_trace", "b", "a"].sharper == "b"
    least = {n: float(sl.orbit.minimum(o, norm="trace").value) for n, o in nets.items()}
    for pair in found.pairs:
        assert least[pair.sharper] > least[pair.other]
        assert pair.values[0].value == pytest.approx(least[pair.sharper], rel=1e-9)


def test_it_writes_itself() -> None:
    data = json.loads(by_batch().to_json())
    assert data["names"] == ["small", "large"]
    row = next(p for p in data["pairs"] if p["name"] == "hessian_spectral")
    assert row["answer"] == "survives"
    assert row["turned"] == "reached"
    lines = by_batch().to_csv().splitlines()
    assert lines[0].startswith("name,sharper,other,value_sharper")
    assert len(lines) == 1 + len(by_batch().pairs)


def test_bad_arguments() -> None:
    with pytest.raises(sl.SpiritlevelError, match="at least two networks"):
        sl.compare({"a": net(16)})
    with pytest.raises(sl.SpiritlevelError, match="give an Objective, not a Sequential"):
        sl.compare({"a": net(16), "b": nn.Sequential()})  # type: ignore[dict-item]
    with pytest.raises(sl.SpiritlevelError, match="unknown measure 'x'; there are: loss"):
        sl.compare({"a": net(16), "b": net(300)}, ["x"])
    with pytest.raises(sl.SpiritlevelError, match="no comparison 'x'; there are: loss"):
        by_batch()["x"]
