"""Comparisons: the verdicts on cases that are built to have them."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pairs
import spiritlevel as sl
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import Measure
from spiritlevel.measures.bottoms import Bottoms, bracket
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective.default import digits
from spiritlevel.results import Comparison
from spiritlevel.results.comparison import Answer


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
        assert pair.text == "large is sharper, and it survives rescaling"
        assert pair.ratio > 2
    pair = by_batch()["hessian_spectral"]
    assert pair.least is not None
    assert pair.least[0].low > pair.least[1].high
    assert pair.matrix == "hessian"
    assert set(pair.least_cells()) == {"large", "small"}
    assert "least, of H" in str(by_batch())
    assert by_batch()["loss"].text == "large is larger, and it survives rescaling"


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
    text = " ".join(str(by_batch()).split())
    assert "with identical predictions the smaller one was given the larger spectral norm" in text
    assert "Turned" not in text  # what survives and what can be turned are two statements


def test_a_twin_is_sharper_only_in_these_coordinates() -> None:
    for name, order in (("hessian_spectral", ""), ("hessian_trace", ""),
                        ("expected_sharpness", ", to second order")):  # fmt: skip
        pair = with_twin()[name]
        assert pair.text == f"twin is sharper only in these coordinates{order}"
        assert pair.ratio > 100
    for name in ("loss", "orbit_trace", "orbit_spectral", "adaptive_spectral"):
        assert with_twin()[name].text == "equal"


def test_what_cannot_be_told_apart_is_undecided() -> None:
    """Two nets whose norms are known to a tenth and differ by less."""
    near = net(16).at(net(16).vector * 1.0005)
    found = sl.compare({"a": net(16), "b": near}, ["hessian_frobenius", "expected_sharpness"])
    assert {pair.text for pair in found.pairs} == {"undecided at this accuracy"}
    assert found["hessian_frobenius"].turned is None


def test_what_is_left_of_a_frobenius_norm_is_known() -> None:
    found = sl.compare({"small": net(16), "large": net(300)}, ["hessian_frobenius", "keskar"])
    assert found["hessian_frobenius"].text == "large is sharper, and it survives rescaling"
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
    assert {pair.answer for pair in found.pairs} <= {Answer.UNDECIDED, Answer.EQUAL}


@functools.cache
def smooth(seed: int, factor: float, activation: type[nn.Module] = nn.GELU) -> sl.Objective:
    """A net without rescalings, unless it is given an activation that has some."""
    torch.manual_seed(seed)
    first, top = nn.Linear(5, 8), nn.Linear(8, 3)
    model = nn.Sequential(first, activation(), top).double()
    top.weight.data *= factor
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (60,), generator=generator)
    return sl.Objective(model, (x, y), F.cross_entropy)


def test_without_rescalings_values_decide() -> None:
    names = ["hessian_spectral", "hessian_trace", "expected_sharpness", "lambda_max", "keskar"]
    found = sl.compare({"a": smooth(0, 1.0), "b": smooth(1, 4.0)}, names)
    assert {pair.text for pair in found.pairs} == {"b is sharper, and it survives rescaling"}
    assert found.provenance["notes"] == []
    for pair in found.pairs:
        assert pair.least is None
        assert pair.turned is None


def test_the_least_value_of_a_net_without_rescalings_is_its_value() -> None:
    nets = {"relu": smooth(0, 1.0, nn.ReLU), "gelu": smooth(1, 4.0)}
    found = sl.compare(nets, ["hessian_spectral", "hessian_trace", "expected_sharpness"])
    for pair in found.pairs:
        assert pair.answer is Answer.SURVIVES
        assert pair.sharper == "gelu"
        assert pair.least is not None
        here, least = pair.values[0], pair.least[0]
        assert least.value == here.value
        assert least.high - here.value == pytest.approx(3 * here.error + 1e-6 * here.value)
        assert here.value - least.low == pytest.approx(3 * here.error + 1e-6 * here.value)
    assert found.provenance["notes"] == []


def shifted(scale: float, shift: float) -> sl.Objective:
    """A net whose errors are all one number, which the Gauss-Newton matrix does not see."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    x = torch.randn(40, 4).double()
    y = (model(x) + shift).detach()
    objective = sl.Objective(model, (x, y), F.mse_loss)
    return objective.at({"2.weight": scale * objective.params["2.weight"]})


def test_verdicts_about_the_hessian_come_from_it() -> None:
    """By its Gauss-Newton matrix the sharper one would be sharper in these coordinates only."""
    nets = {"far": shifted(1.0, 12.0), "fitted": shifted(1.3, 0.0)}
    least = {
        name: pairs.least(pairs.dense_hessian(net), pairs.exponents(net.module), "hessian_spectral")
        for name, net in nets.items()
    }
    assert least["far"].low > 2 * least["fitted"].high
    ggn = {name: sl.orbit.minimum(net).value for name, net in nets.items()}
    assert ggn["far"] < ggn["fitted"]
    found = sl.compare(nets, ["hessian_spectral", "eps_sharpness_quadratic", "orbit_spectral"])
    pair = found["hessian_spectral"]
    assert pair.text == "far is sharper, and it survives rescaling"
    assert pair.least is not None
    for name, interval in zip((pair.sharper, pair.other), pair.least, strict=True):
        assert interval.low <= least[name].high
        assert interval.high >= least[name].low
    assert found["orbit_spectral"].sharper == "fitted"
    # rho^2 lambda_max / (2 (1 + L)): the loss of the far one makes it the smaller one
    quadratic = found["eps_sharpness_quadratic"]
    assert quadratic.text == "fitted is sharper, and it survives rescaling"
    assert quadratic.least is not None
    for name, interval in zip((quadratic.sharper, quadratic.other), quadratic.least, strict=True):
        factor = 0.05**2 / 2 / (1 + nets[name].value())
        assert interval.low <= factor * least[name].high
        assert interval.high >= factor * least[name].low * (1 - 1e-9)


def test_not_everything_that_is_larger_is_sharper() -> None:
    """A larger smallest eigenvalue is a flatter saddle, a larger rank no sharpness."""
    near = ("loss", "curvature", "worst case", "noise", "orbit")
    found = {n for n, e in sl.MEASURES.items() if e.family in near and not e.is_sharpness}
    assert found == {
        "loss", "gradient_norm", "lambda_min", "layer_traces", "effective_rank", "log_determinant",
        "near_zero_share", "negative_share", "metric_trace",
    }  # fmt: skip
    of_capacity = ("norm", "margin", "count", "course")
    assert not any(e.is_sharpness for e in sl.MEASURES.values() if e.family in of_capacity)


def test_what_was_searched_for_has_no_known_bottom() -> None:
    """Away from a minimum its slope decides, which no second order tells of."""
    found = sl.compare({"a": net(16), "b": net(300)}, ["eps_sharpness"])["eps_sharpness"]
    assert found.answer is Answer.UNDECIDED
    assert found.least is None


def test_no_least_value_is_shown_above_the_value_here() -> None:
    """Random estimates of a norm may lie below its minimum, which is known better."""
    for name in ("hessian_spectral", "hessian_frobenius"):
        for seed in range(2):
            nets = {"far": shifted(1.0, 12.0), "fitted": shifted(1.3, 0.0)}
            pair = sl.compare(nets, [name], seed=seed)[name]
            shown = pair.least_cells().values()
            for least, value in zip(shown, pair.values, strict=True):
                assert float(least) <= value.value * (1 + 5e-3)  # three digits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lower_bound": float("nan")}, "not finite or lies above it"),
        ({"lower_bound": 1e9}, "not finite or lies above it"),
        ({"divided_out": ("0",)}, "one-sided rescalings send curvature to zero"),
        ({"value": 1e9, "lower_bound": 1e9}, "an error of spiritlevel's; please report it"),
    ],
)
def test_what_cannot_be_is_not_believed(change: dict[str, Any], message: str) -> None:
    """A least value above the value here, a bound that is none: no verdict rests on them."""
    bottoms = Bottoms(Instruments(net(16)))
    here = sl.MEASURES["hessian_trace"](net(16))
    bottom = sl.MEASURES["layer_minimum"].bottom
    assert bottom is not None
    assert bottoms.interval(bottom, here).high <= here.value + 3 * here.error
    key = ("trace", "ggn")
    bottoms.found[key] = replace(bottoms.found[key], **change)
    with pytest.raises(sl.SpiritlevelError, match=message):
        bottoms.interval(bottom, here)


def test_the_networks_at_the_bottom_are_proved_to_be_the_same() -> None:
    """What survives is said of points that were seen to predict the same, before it is said."""
    bottoms = Bottoms(Instruments(net(16)))
    for found in (
        bottoms.minimum("spectral", "ggn"),
        bottoms.minimum("trace", "ggn"),
        bottoms.minimum("spectral", "hessian"),
    ):
        assert found.seen is not None
        assert found.seen[1].verdict == "exact"


def test_a_bottom_that_predicts_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = sl.symmetries(net(16))

    def elsewhere(self: sl.Group, objective: sl.Objective, element: torch.Tensor) -> sl.Objective:
        return objective.at(1.01 * objective.vector)

    monkeypatch.setattr(sl.Group, "apply", elsewhere)
    with pytest.raises(sl.SpiritlevelError, match="predictions"):
        _ = Instruments(net(16), group=group).least_norm
    with pytest.raises(sl.SpiritlevelError, match="predictions"):
        sl.measure(net(16), ["orbit_trace"])


def test_a_search_that_did_not_end_bounds_from_above_only() -> None:
    found = sl.orbit.minimum(net(16), operator="hessian")
    whole = bracket(found, 0.0)
    assert 0 < whole.low < found.value < whole.high
    half = bracket(replace(found, status=sl.Status.BUDGET), 0.0)
    assert (half.low, half.high) == (0.0, whole.high)


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
    assert row["turned"]["outcome"] == "reached"
    lines = by_batch().to_csv().splitlines()
    assert lines[0].startswith("name,sharper,other,value_sharper")
    assert len(lines) == 1 + len(by_batch().pairs)


def test_bad_arguments() -> None:
    with pytest.raises(sl.SpiritlevelError, match="at least two networks"):
        sl.compare({"a": net(16)})
    with pytest.raises(sl.SpiritlevelError, match="give an Objective, not a Sequential"):
        sl.compare({"a": net(16), "b": nn.Sequential()})  # type: ignore[dict-item]
    with pytest.raises(sl.SpiritlevelError, match=r"unknown measure 'x'; give one of sl\.MEASURES"):
        sl.compare({"a": net(16), "b": net(300)}, ["x"])
    with pytest.raises(sl.SpiritlevelError, match="no comparison 'x'; there are: loss"):
        by_batch()["x"]


def test_two_bounds_put_no_networks_in_order() -> None:
    """What is proved of a deep network may lie far below the truth, and of a shallow one near."""
    low, high = net(16), net(300)
    found = sl.compare({"a": low, "b": high}, ["orbit_worst_case"])["orbit_worst_case"]
    assert found.ratio > 1
    assert found.text == "undecided at this accuracy"


def test_what_could_not_be_compared_says_why() -> None:
    x, y = torch.randn(8, 2), torch.randint(2, (8,))
    smooth = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    found = sl.compare(
        {"a": net(16), "b": sl.Objective(smooth, (x, y), F.cross_entropy)}, ["path_norm", "loss"]
    )
    with pytest.raises(sl.SpiritlevelError, match=r"no path_norm: .*sums and rectifiers"):
        found["path_norm"]
    assert found["loss"].name == "loss"
