"""Directions: as long as they say, and following what they promise to follow."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn, small_net
from spiritlevel.landscape.directions import aimed, given


def images() -> sl.Objective:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2),
        nn.Flatten(),
        nn.Linear(3 * 5 * 5, 3),
    ).double()
    return sl.Objective(net, (randn(6, 2, 6, 6), labels(6)), F.cross_entropy)


def test_filters_are_as_long_as_those_of_the_weights() -> None:
    objective = images()
    found = aimed(objective, ["filter", "filter"], seed=3)
    for vector, told in zip(found.directions, found.told, strict=True):
        d, w = objective.named(vector), objective.params
        for name, axes in {"0.weight": (1, 2, 3), "3.weight": (0, 2, 3), "5.weight": (1,)}.items():
            norms = [torch.linalg.vector_norm(t[name], dim=axes) for t in (d, w)]
            torch.testing.assert_close(*norms)
        for name in ("0.bias", "1.weight", "1.bias", "3.bias", "5.bias"):
            assert not d[name].any()
        assert told.norm == pytest.approx(float(vector.norm()))
        assert told.kind == "filter"
    first, second = found.directions
    assert abs(float(first @ second)) < 0.5 * float(first.norm() * second.norm())


def test_biases_can_move_too() -> None:
    objective = images()
    d = objective.named(aimed(objective, ["filter"], biases="scale").directions[0])
    for name in ("0.bias", "1.weight", "5.bias"):
        torch.testing.assert_close(d[name].norm(), objective.params[name].norm())


def test_whole_layers_and_whole_networks() -> None:
    objective = images()
    d = objective.named(aimed(objective, ["layer"]).directions[0])
    for name in ("0.weight", "3.weight", "5.weight"):
        torch.testing.assert_close(d[name].norm(), objective.params[name].norm())
    whole = aimed(objective, ["gaussian"]).directions[0]
    torch.testing.assert_close(whole.norm(), objective.vector.norm())
    assert bool(objective.named(whole)["0.bias"].all())


def test_eigenvectors_are_those_of_the_hessian() -> None:
    case = BY_NAME["mlp"]
    objective = case.objective()
    dense = case.dense_hessian()
    values, vectors = torch.linalg.eigh(dense)
    found = aimed(objective, ["hessian", "gradient", "hessian"])
    first, slope, second = found.directions
    for vector, place in ((first, -1), (second, -2)):
        assert float(vector.norm()) == pytest.approx(1, rel=1e-6)
        assert abs(float(vector @ vectors[:, place])) == pytest.approx(1, abs=1e-4)
        assert float(vector @ dense @ vector) == pytest.approx(float(values[place]), rel=1e-5)
    assert abs(float(first @ second)) < 1e-6
    torch.testing.assert_close(slope, -objective.gradient() / objective.gradient().norm())
    assert [one.name for one in found.told][::2] == [
        "eigenvector 1 of the Hessian",
        "eigenvector 2 of the Hessian",
    ]


def test_a_generator_is_a_tangent_of_the_orbit() -> None:
    objective = small_net()
    d = aimed(objective, ["generator"], seed=5).directions[0]
    group = sl.symmetries(objective)
    draws = torch.Generator().manual_seed(5)
    t = torch.randn(group.dim, generator=draws, dtype=torch.float64) / group.dim**0.5
    h = 1e-5
    ahead, behind = (group.apply(objective, s * h * t).vector for s in (1, -1))
    torch.testing.assert_close(d, (ahead - behind) / (2 * h), rtol=1e-8, atol=1e-9)
    slope = float(objective.gradient() @ d)
    assert abs(slope) < 1e-12 * float(objective.gradient().norm() * d.norm() + 1)


def test_given_directions_are_taken_as_they_are() -> None:
    objective = images()
    other = objective.at(objective.vector + 1)
    bias = {"5.bias": torch.tensor([1.0, 0, -1])}
    vector = randn(objective.size)
    found = given(objective, [other, bias, vector])
    torch.testing.assert_close(found.directions[0], torch.ones(objective.size).double())
    named = objective.named(found.directions[1])
    torch.testing.assert_close(named["5.bias"], bias["5.bias"].double())
    assert float(found.directions[1].norm()) == pytest.approx(2**0.5)
    assert torch.equal(found.directions[2], vector)


def test_the_same_seed_gives_the_same_directions() -> None:
    objective = images()
    one, two, three = (aimed(objective, ["filter"], seed=s).directions[0] for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_what_cannot_be_looked_along_is_refused() -> None:
    objective = images()
    with pytest.raises(sl.SpiritlevelError, match="kind='filters' is not known; choose one of"):
        sl.landscape.plane(objective, "filters")
    with pytest.raises(sl.SpiritlevelError, match="give it for all directions"):
        sl.landscape.plane(objective, ("orbit", "filter"))
    with pytest.raises(sl.SpiritlevelError, match="two directions, and kind names 3"):
        sl.landscape.plane(objective, ("filter", "filter", "filter"))
    with pytest.raises(sl.SpiritlevelError, match="two directions, and directions names 1"):
        sl.landscape.plane(objective, directions=[objective.vector])
    smooth = BY_NAME["mlp"].objective()
    with pytest.raises(sl.SpiritlevelError, match="this network has none"):
        sl.landscape.plane(smooth, "generator")
    with pytest.raises(sl.SpiritlevelError, match=r"has other parameters .*same architecture"):
        sl.landscape.plane(objective, directions=[smooth, objective.vector])
    rest = sl.Objective(nn.Linear(2, 1).double(), (randn(3, 2), torch.zeros(3, 1)), F.mse_loss)
    still = rest.at(torch.zeros(3))
    with pytest.raises(sl.SpiritlevelError, match="the gradient is zero here"):
        sl.landscape.line(still, "gradient")
