"""A flat box as a posterior: its widths, its divergence, and what is guaranteed of it."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import nn

import spiritlevel as sl
from spiritlevel.bounds.binary import kl_inverse
from spiritlevel.bounds.box import FlatBox, box_divergence, flat_box, half_widths, uniform
from spiritlevel.bounds.gaussian import Gaussian
from spiritlevel.bounds.priors import scales
from spiritlevel.measures.description import minus_log_box, output_squares
from spiritlevel.objective.default import digits


@functools.cache
def problem() -> tuple[sl.Objective, dict[str, torch.Tensor], sl.Objective]:
    """Zeros against ones, half of them to be tested on; a unit is dead."""
    (x, y), _ = digits()
    x, y = x.reshape(len(x), -1)[y < 2].double(), y[y < 2]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        weight = net.get_parameter("0.weight")
        weight[0] = -weight[0].abs()
        net.get_parameter("0.bias")[0] = -1.0
    init = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(net(x[:200]), y[:200]).backward()
        optimizer.step()
    train, test = (
        sl.Objective(net, data, F.cross_entropy)
        for data in ((x[:200], y[:200]), (x[200:], y[200:]))
    )
    return train, init, test


@functools.cache
def found(orbit: bool = False, prior: str = "init") -> FlatBox:
    objective, init, _ = problem()
    return flat_box(objective, init=init, prior=prior, orbit=orbit, draws=200)  # type: ignore[arg-type]


def test_the_widths_are_those_of_the_flat_minimum_search() -> None:
    objective, _, _ = problem()
    squares = output_squares(objective)
    widths = half_widths(squares, 0.01)
    seen = squares.sum(0) > 0
    assert widths[seen].log().sum() == pytest.approx(-float(minus_log_box(squares[:, seen], 0.01)))
    assert (widths[~seen] == torch.inf).all()
    named = objective.named(seen.double())
    assert not named["0.weight"][0].any()  # of the dead unit
    assert not named["2.weight"][:, 0].any()
    assert named["0.bias"].tolist()[:2] == [0, 1]


def test_outputs_change_by_eps_at_most_to_first_order() -> None:
    """|sum_i J_ki d_i| <= sum_i J_ki h_i, whose squares sum to eps: worst corner, linear net."""
    torch.manual_seed(0)
    net = nn.Linear(5, 3, bias=False).double()
    x, y = torch.randn(1, 5).double(), torch.tensor([0])
    objective = sl.Objective(net, (x, y), F.cross_entropy)
    widths = half_widths(output_squares(objective), 0.3)
    corner = objective.vector + widths * (x.sign().expand(3, 5).reshape(-1))
    moved = objective.at(corner).predictions() - objective.predictions()
    assert float(moved.square().sum()) == pytest.approx(0.3, rel=1e-9)


def test_the_divergence_is_that_of_the_densities() -> None:
    for w, h, w0, p in ((0.3, 0.2, 0.1, 0.5), (1.0, 3.0, -1.0, 0.7)):
        density = 1 / (2 * h)
        kl, _ = integrate.quad(
            lambda v, d=density, m=w0, s=p: d * (math.log(d) - stats.norm.logpdf(v, m, s)),
            w - h,
            w + h,
        )
        inside, prior = (
            Gaussian(*(torch.tensor([v], dtype=torch.float64) for v in (m, s)))
            for m, s in ((w, h / math.sqrt(3)), (w0, p))
        )
        assert box_divergence(inside, prior) == pytest.approx(kl, rel=1e-9)


def test_networks_are_drawn_from_the_whole_box_and_no_further() -> None:
    objective, _, _ = problem()
    spread = torch.rand(objective.size, dtype=torch.float64) + 0.1
    network = uniform(objective, Gaussian(objective.vector, spread), 0)
    held: list[torch.Tensor] = []
    object.__setattr__(network, "errors", lambda points: held.append(points) or [0.0])
    object.__setattr__(network, "error", lambda point: held.append(point[None]) or 0.0)
    for number in range(20):
        network.group(number, network.together)
    units = (torch.cat(held) - objective.vector) / (math.sqrt(3) * spread)
    assert float(units.abs().max()) <= 1
    share = stats.kstest(units.flatten().numpy(), stats.uniform(-1, 2).cdf)
    assert share.pvalue > 1e-3


def test_the_bound_is_that_of_maurer_and_holds_on_new_data() -> None:
    box, (objective, _, test) = found(), problem()
    m, share = objective.examples, 0.8 * 0.05
    place = int(np.argmin(abs(np.array(scales()) - float(box.prior.spread[0])))) + 1
    nats = math.log(2 * math.sqrt(m) / share) + math.log((math.pi * place) ** 2 / 6)
    assert box.bound.value == pytest.approx(kl_inverse(box.drawn.above, (box.kl + nats) / m))
    assert box.drawn.error <= box.drawn.above <= box.bound.value < 1
    inside = Gaussian(objective.vector, box.half_widths / math.sqrt(3))
    assert box.kl == box_divergence(inside, box.prior)
    error = np.mean(uniform(test, inside, 5).group(0, 64))
    assert error <= box.bound.value
    assert box.bound.name == "flat_box"
    assert "uniformly from a box" in " ".join(box.bound.assumptions)


def test_no_width_costs_more_than_its_half() -> None:
    """sqrt(3) p is where a width costs least: weights that no output sees have it."""
    box, squares = found(), output_squares(problem()[0])
    dead = squares.sum(0) == 0
    largest = math.sqrt(3) * float(box.prior.spread[0])
    assert box.half_widths.max() == pytest.approx(largest, rel=0.01)
    assert box.half_widths[dead] == pytest.approx(largest, rel=0.01)


@pytest.mark.parametrize("prior", ["init", "zero"])
def test_the_orbit_never_loosens_it(prior: str) -> None:
    box = found(orbit=True, prior=prior)
    here, there = (row.bound for row in box.rows)
    assert [row.point for row in box.rows] == ["here", "orbit"]
    assert there.value <= here.value
    assert box.least is not None
    assert box.least.kl < box.least.plain


def test_chosen_eps_is_no_worse_than_theirs() -> None:
    objective, init, _ = problem()
    theirs = flat_box(objective, init=init, eps=0.01, draws=200)
    assert theirs.eps == 0.01
    assert found().bound.value <= theirs.bound.value


def test_what_is_refused() -> None:
    objective, init, _ = problem()
    with pytest.raises(sl.SpiritlevelError, match="eps=0: give a positive number"):
        flat_box(objective, init=init, eps=0)
    with pytest.raises(sl.SpiritlevelError, match="delta=2: give a probability"):
        flat_box(objective, init=init, delta=2)
    with pytest.raises(sl.SpiritlevelError, match='prior="init" is centred at the weights'):
        flat_box(objective)
    one = sl.Objective(nn.Linear(3, 2), (torch.randn(1, 3), torch.tensor([1])), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="the number of examples=1"):
        flat_box(one, prior="zero")
