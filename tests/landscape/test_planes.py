"""Planes and lines: values of a plain loop, closed forms, and what keeps them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn
from quadratics import quadratic
from spiritlevel.landscape import points
from spiritlevel.landscape.directions import aimed
from spiritlevel.landscape.passes import Passes, passes
from spiritlevel.landscape.points import Way, evaluate
from zoo import trained


def net(seed: int = 0, dtype: torch.dtype = torch.float64, n: int = 40) -> sl.Objective:
    """A rectified network with biases, away from a minimum."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3))
    return sl.Objective(layers.to(dtype), (randn(n, 6), labels(n)), F.cross_entropy)


def table(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loop(objective: sl.Objective, d: Tensor, e: Tensor, axis: tuple[float, ...]) -> Tensor:
    """What anybody would write: a model, new parameters, the mean loss."""
    model = copy.deepcopy(objective.module).eval()
    x, y = (torch.cat([b[i] for b in objective.batches]) for i in (0, 1))
    rows = []
    for b in axis:
        for a in axis:
            nn.utils.vector_to_parameters(objective.vector + a * d + b * e, model.parameters())
            with torch.no_grad():
                rows.append(F.cross_entropy(model(x), y))
    return torch.stack(rows).reshape(len(axis), len(axis))


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", ["net", "convolutional"])
def test_values_are_those_of_a_plain_loop(name: str, dtype: torch.dtype, tol: float) -> None:
    objective = net(dtype=dtype) if name == "net" else trained(name).objective(dtype=dtype)
    surface = sl.landscape.plane(objective, steps=5, span=0.5, seed=1)
    d, e = aimed(objective, ["filter", "filter"], seed=1).directions
    truth = loop(objective, d, e, surface.x)
    torch.testing.assert_close(table(surface.losses), truth.double(), rtol=tol, atol=tol / 100)
    assert surface.centre() == objective.value()


@pytest.mark.parametrize("way", [Way("stacked", 8), Way("compiled")])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_every_way_says_the_same(way: Way, dtype: torch.dtype, tol: float) -> None:
    objective = net(dtype=dtype)
    these = passes(objective, aimed(objective, ["filter", "filter"]).directions)
    places = [(a / 4, b / 4) for a in range(-2, 3) for b in range(-2, 3)]
    plain = evaluate(these, places, way=Way())
    found = evaluate(these, places, way=way)
    assert found.way == way
    for a, b in zip(found.scores, plain.scores, strict=True):
        assert a is not None
        assert b is not None
        assert a.loss == pytest.approx(b.loss, rel=tol)
        assert a.accuracy == b.accuracy


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_batches_do_not_matter(cut: int) -> None:
    whole = net()
    parts = whole.on([tuple(t[i : i + cut] for t in whole.batches[0]) for i in range(0, 40, cut)])
    one, other = (sl.landscape.plane(o, steps=3) for o in (whole, parts))
    torch.testing.assert_close(table(one.losses), table(other.losses), rtol=1e-12, atol=0)
    assert one.sheets[0].accuracies == other.sheets[0].accuracies


def test_a_quadratic_is_its_closed_form() -> None:
    curves = torch.tensor([0.2, 1.0, 3.0, 0.7, 0.05]).double()
    start, least = randn(5, seed=1), randn(5, seed=2)
    objective = quadratic(start, least, base=0.3, curvatures=curves)
    d, e = randn(5, seed=3), randn(5, seed=4)
    surface = sl.landscape.plane(objective, directions=[d, e], steps=5, span=2.0)
    for j, b in enumerate(surface.y):
        for i, a in enumerate(surface.x):
            point = start + a * d + b * e
            truth = 0.3 + 0.5 * float((curves * (point - least) ** 2).sum())
            assert surface.losses[j][i] == pytest.approx(truth, rel=1e-13)
    assert surface.sheets[0].accuracies is None
    drawn = sl.landscape.line(objective, directions=[d], steps=5, span=2.0, rise=1.0)
    assert drawn.curves[0].losses[2] == objective.value()


# The orbit ---------------------------------------------------------------------------------------


def scaled(objective: sl.Objective, factors: Callable[[int], Tensor]) -> sl.Objective:
    """The first hidden layer times factors, and the second over them."""
    p = objective.params
    s = factors(len(p["0.bias"])).double()
    moved = {
        "0.weight": p["0.weight"] * s[:, None],
        "0.bias": p["0.bias"] * s,
        "2.weight": p["2.weight"] / s,
    }
    return objective.at(moved)


def by_layer(n: int) -> Tensor:
    return torch.full((n,), 7.0)


def by_unit(n: int) -> Tensor:
    return torch.linspace(-1.5, 1.5, n).exp()


def surface_of(objective: sl.Objective, kind: str) -> Tensor:
    return table(sl.landscape.plane(objective, kind, steps=7, seed=2).losses)


@pytest.mark.parametrize("biases", ["zero", "scale"])
def test_filter_normalization_follows_layers(biases: Any) -> None:
    objective = net()
    one, other = (
        table(sl.landscape.plane(o, steps=7, biases=biases).losses)
        for o in (objective, scaled(objective, by_layer))
    )
    torch.testing.assert_close(one, other, rtol=1e-10, atol=0)


def test_filter_normalization_does_not_follow_units() -> None:
    objective = net()
    one, other = surface_of(objective, "filter"), surface_of(scaled(objective, by_unit), "filter")
    assert float((one / other).log().abs().max()) > 0.3
    assert one[3, 3] == pytest.approx(float(other[3, 3]), rel=1e-12)


@pytest.mark.parametrize("factors", [by_layer, by_unit])
def test_orbit_normalization_follows_both(factors: Callable[[int], Tensor]) -> None:
    objective = net()
    one, other = surface_of(objective, "orbit"), surface_of(scaled(objective, factors), "orbit")
    torch.testing.assert_close(one, other, rtol=1e-10, atol=0)
    assert float((one - surface_of(objective, "filter")).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["convolutional", "residual"])
def test_orbit_normalization_of_other_networks(name: str) -> None:
    objective = trained(name).objective()
    group = sl.symmetries(objective)
    twin = group.apply(objective, group.random(3, 1.0))
    one, other = surface_of(objective, "orbit"), surface_of(twin, "orbit")
    torch.testing.assert_close(one, other, rtol=1e-9, atol=0)


def test_sheets_along_the_orbit_are_proved() -> None:
    objective = net()
    surface = sl.landscape.plane(objective, steps=5, orbit=2, strength=1.5, seed=4)
    names = ["as given", "rescaled, 50%", "rescaled, 100%"]
    assert [sheet.name for sheet in surface] == names
    group = sl.symmetries(objective)
    twin = group.apply(objective, group.random(4, 1.5))
    last = table(surface.sheets[-1].values)
    d, e = aimed(twin, ["filter", "filter"], seed=4).directions
    torch.testing.assert_close(last, loop(twin, d, e, surface.x), rtol=1e-12, atol=0)
    assert surface.sheets[0].certificate is None
    for sheet in surface.sheets[1:]:
        assert sheet.certificate is not None
        assert sheet.certificate.verdict == "exact"
    assert surface.directions[0].norm == pytest.approx(
        float(aimed(objective, ["filter"], seed=4).directions[0].norm())
    )
    same = sl.landscape.plane(objective, "orbit", steps=5, orbit=2, seed=4)
    first, *others = (table(sheet.values) for sheet in same)
    for other in others:
        torch.testing.assert_close(first, other, rtol=1e-9, atol=0)
    with pytest.raises(sl.SpiritlevelError, match="this network has none: orbit=0"):
        sl.landscape.plane(BY_NAME["mlp"].objective(), orbit=1)


# Refinement, edges -------------------------------------------------------------------------------


def test_a_line_is_refined_where_it_bends() -> None:
    """A smooth step at 0.3: its intervals are halved, and the others are not."""

    class Wall(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1).double())

    def loss(model: Any, batch: Any) -> Tensor:
        return 1 + torch.sigmoid(60 * (model.w - 0.3)).sum() + 0 * batch[0].sum()

    objective = sl.Objective(Wall(), (randn(2, 1), labels(2)), loss)
    line = sl.landscape.line(objective, directions=[torch.ones(1)], steps=11, refine=3)
    curve = line.curves[0]
    near = [a for a in curve.axis if 0.1 <= a <= 0.5]
    assert len(curve.axis) > 14
    assert len(near) >= 8
    assert sum(a < -0.1 for a in curve.axis) == 5
    for a, found in zip(curve.axis, curve.losses, strict=True):
        assert found == pytest.approx(1 + 1 / (1 + math.exp(-60 * (a - 0.3))), rel=1e-13)


def test_a_plane_is_refined_on_both_axes() -> None:
    surface = sl.landscape.plane(net(), steps=5, refine=1, orbit=1)
    assert (len(surface.x), len(surface.y)) == (6, 6)
    assert sorted(surface.x) == list(surface.x)
    assert all(len(sheet.values) == 6 for sheet in surface)
    assert all(value is not None for sheet in surface for row in sheet.values for value in row)


def test_losses_that_are_no_numbers_are_kept() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        return torch.log(model.weight.sum()) + 0 * batch[0].sum()

    module = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(module.weight)
    objective = sl.Objective(module, (randn(2, 1), labels(2)), loss)
    line = sl.landscape.line(objective, directions=[torch.ones(1)], steps=5, span=2.0)
    found = line.curves[0].losses
    assert found[0] is not None
    assert math.isnan(found[0])
    assert found[1] == -math.inf
    assert found[2:] == (0.0, pytest.approx(math.log(2)), pytest.approx(math.log(3)))
    assert sl.Line.from_dict(line.to_dict()) == line
    assert "not finite" not in str(line)


@pytest.mark.parametrize("steps", [4, 1, 0, 2.5])
def test_the_centre_is_a_step(steps: Any) -> None:
    with pytest.raises(sl.SpiritlevelError, match="steps="):
        sl.landscape.plane(net(), steps=steps)


def test_decisions_are_counted() -> None:
    objective = net()
    x, y = objective.batches[0]
    share = float((objective.predictions().argmax(1) == y).double().mean())
    surface = sl.landscape.plane(objective, steps=3)
    assert surface.sheets[0].accuracies is not None
    assert surface.sheets[0].accuracies[1][1] == pytest.approx(share)
    regression = sl.Objective(nn.Linear(6, 3).double(), (x, randn(len(x), 3)), F.mse_loss)
    assert sl.landscape.plane(regression, steps=3).sheets[0].accuracies is None


# The ways ----------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Control flow that vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(self.a.weight.detach().sum()) > 0 else self.b(x)


def test_where_points_cannot_be_stacked_they_come_one_by_one() -> None:
    objective = sl.Objective(Branches(), (randn(8, 3), labels(8)), F.cross_entropy)
    surface = sl.landscape.plane(objective, steps=5)
    d, e = aimed(objective, ["filter", "filter"]).directions
    truth = loop(objective, d, e, surface.x)
    torch.testing.assert_close(table(surface.losses), truth, rtol=1e-12, atol=0)
    assert surface.provenance["engine"] == "one by one"
    assert any(note.startswith("not 25 at a time: ") for note in surface.provenance["notes"])


def test_a_way_that_is_wrong_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Passes.stacked

    def wrong(self: Passes, places: Any) -> Any:
        return [s._replace(loss=1.001 * s.loss) for s in right(self, places)]

    objective = net()
    truth = sl.landscape.plane(objective, steps=5)
    monkeypatch.setattr(Passes, "stacked", wrong)
    found = sl.landscape.plane(objective, steps=5)
    assert found.provenance["engine"] == "one by one"
    assert "not 25 at a time: it differed from plain passes by 1e-03" in found.provenance["notes"]
    torch.testing.assert_close(table(found.losses), table(truth.losses), rtol=1e-12, atol=0)


def test_a_way_is_not_judged_by_the_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose loss is known: wrong everywhere else, a way has to be seen, also on a line from 0."""
    right = Passes.stacked

    def wrong(self: Passes, places: Any) -> Any:
        scores = zip(right(self, places), places, strict=True)
        return [s._replace(loss=1.001 * s.loss) if any(p) and p != (1.0,) else s for s, p in scores]

    a, b = net(), net(seed=1)
    monkeypatch.setattr(Passes, "stacked", wrong)
    found = sl.landscape.interpolate(a, b.vector, steps=9)
    assert found.provenance["engine"] == "one by one"


def test_batches_of_another_size_are_not_compiled() -> None:
    objective = net()
    parts = objective.on([tuple(t[i : i + 16] for t in objective.batches[0]) for i in (0, 16, 32)])
    these = passes(parts, aimed(parts, ["filter"]).directions)
    assert these.fast((0.3,)).loss == pytest.approx(these.one((0.3,)).loss, rel=1e-12)
    assert len(these.compiled) == 1


def test_small_passes_are_stacked_and_large_ones_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = net(dtype=torch.float32)
    small = sl.landscape.plane(objective, steps=9)
    assert small.provenance["engine"] == "64 at a time"
    monkeypatch.setitem(points.SMALL, "cpu", 0)
    plain = sl.landscape.plane(objective, steps=9)
    assert plain.provenance["engine"] == "one by one"
    monkeypatch.setitem(points.COMPILING, "cpu", 0.0)
    compiled = sl.landscape.plane(objective, steps=9)
    assert compiled.provenance["engine"] == "one by one, compiled"
    for found in (small, compiled):
        assert 0 <= found.provenance["check"] <= 2e-6
        torch.testing.assert_close(table(found.losses), table(plain.losses), rtol=2e-6, atol=0)


# Running statistics ------------------------------------------------------------------------------


def test_statistics_are_those_of_every_place() -> None:
    objective = trained("convolutional").objective()
    surface = sl.landscape.plane(objective, steps=3, span=0.3, statistics="recomputed")
    d, e = aimed(objective, ["filter", "filter"]).directions
    for j, b in enumerate(surface.y):
        for i, a in enumerate(surface.x):
            model = copy.deepcopy(objective.module)
            nn.utils.vector_to_parameters(objective.vector + a * d + b * e, model.parameters())
            torch.optim.swa_utils.update_bn([batch[0] for batch in objective.batches], model)
            model.eval()
            with torch.no_grad():
                sums = sum(
                    F.cross_entropy(model(x), y, reduction="sum") for x, y in objective.batches
                )
            truth = float(sums) / objective.examples
            assert surface.losses[j][i] == pytest.approx(truth, rel=1e-12)
    frozen = sl.landscape.plane(objective, steps=3, span=0.3)
    assert frozen.losses[0][0] != pytest.approx(surface.losses[0][0], rel=1e-3)
    assert frozen.provenance["statistics"] == "frozen"
    with pytest.raises(sl.SpiritlevelError, match="needs BatchNorm with running statistics"):
        sl.landscape.plane(net(), statistics="recomputed")


def test_nothing_of_the_user_is_touched() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    model.train()
    before = copy.deepcopy(model.state_dict())
    data = (randn(12, 4).float(), labels(12))
    objective = sl.Objective(model, data, F.cross_entropy)
    inside = copy.deepcopy(dict(objective.buffers))
    state = torch.get_rng_state()
    for statistics in ("frozen", "recomputed"):
        sl.landscape.plane(objective, steps=3, statistics=statistics, orbit=1)
        sl.landscape.line(objective, "hessian", steps=3, statistics=statistics)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    for name, tensor in objective.buffers.items():
        assert torch.equal(tensor, inside[name])
