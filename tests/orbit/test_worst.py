"""The worst case in a ball that no rescaling avoids: closed forms, brute force, its own witness."""

from __future__ import annotations

import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
import zoo
from brute import TINY, product, tiny
from cases import BY_NAME, labels, randn
from spiritlevel.base.operator import Operator
from spiritlevel.orbit.classes import classes_of
from spiritlevel.orbit.probing import Probed, Tally, Ways, noise_of, reach_of


@pytest.mark.parametrize("radius", [0.05, 0.5, 1.5])
@pytest.mark.parametrize("a", [1.0, 2.0**-12, 2.0**7])
def test_one_unit_in_closed_form(a: float, radius: float) -> None:
    """The least is at a = b, and there (1 + rho / 2^(1/2))^2 the worst product: both ends meet."""
    found = sl.orbit.worst_case(product(a), radius=radius)
    exact = 1.75 * ((1 + radius / 2**0.5) ** 2 - 1) ** 2
    assert found.lower == pytest.approx(exact, rel=1e-9)
    assert found.lower <= exact * (1 + 1e-12)
    assert found.searched == pytest.approx(exact, rel=1e-9)
    assert found.upper is not None
    assert found.upper >= exact


def test_without_rescalings_it_is_the_worst_case_of_the_ball() -> None:
    """Everything is what nothing moves: rho^2 lambda_max / 2 of a linear regression."""
    net, x = nn.Linear(3, 1).double(), randn(30, 3)
    objective = sl.Objective(net, (x, net(x).detach() + 1.0), F.mse_loss)
    params = {name: p.clone() for name, p in objective.params.items()}
    params["bias"] += 1.0
    found = sl.orbit.worst_case(objective.at(params), radius=0.3)
    rows = torch.cat([x, torch.ones(30, 1, dtype=torch.float64)], 1)
    exact = 0.3**2 * float(torch.linalg.eigvalsh(rows.T @ rows / 30)[-1])
    assert found.group.dim == 0
    assert found.lower == pytest.approx(exact, rel=1e-4)
    assert found.lower <= exact * (1 + 1e-9)


def test_an_output_bias_is_the_same_everywhere() -> None:
    """Of y = relu(x a) b + c only c is still, and the loss is the mean of its square."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1e-3)
    x = -torch.ones(4, 1, dtype=torch.float64)  # the unit never fires
    found = sl.orbit.worst_case(sl.Objective(net, (x, 0 * x + 1e-3), F.mse_loss), radius=0.2)
    assert found.lower == pytest.approx(0.2**2, rel=1e-6)


PLACES = 40 if os.environ.get("SPIRITLEVEL_LONG") == "1" else 6


def dense(objective: sl.Objective, radius: float) -> float:
    """The rise that many searches in one ball meet."""
    draws = torch.Generator().manual_seed(5)
    ways = torch.randn(objective.size, 2, generator=draws, dtype=torch.float64)
    axes = torch.linalg.eigh(sl.hessian(objective, compile=False).dense())[1][:, -2:]
    many = torch.cat([ways, axes], 1)
    return sl.worst_in_ball(objective, radius, starts=many, steps=30).rise


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("radius", [0.05, 0.6])
@pytest.mark.parametrize("name", TINY)
def test_no_point_of_the_orbit_is_below_the_bound(name: str, radius: float, layers: bool) -> None:
    """Random places, each nearer to the one where least was met: never less than the bound."""
    objective = TINY[name]()
    group = sl.symmetries(objective)
    group = group.layerwise() if layers else group
    found = sl.orbit.worst_case(objective, group, radius=radius)
    assert found.lower > 0
    draws, best, low = torch.Generator().manual_seed(0), group.identity(), math.inf
    for k in range(PLACES):
        step = torch.randn(group.dim, generator=draws, dtype=torch.float64) * (k > 0) * 0.8**k
        there = dense(group.apply(found.home, best + step), radius)
        assert there >= found.lower * (1 - 1e-6)
        if there < low:
            best, low = best + step, there


class Gated(nn.Module):
    """Squares of units, and units that two maps multiply: exponents other than 1 and -1."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.gate, self.up = (nn.Linear(3, 3) for _ in range(3))
        self.down, self.out = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gated = self.gate(x).relu() * self.up(x)
        return self.down(gated) + self.out(self.square(x).relu() ** 2)


def gated() -> sl.Objective:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Gated().double()
    return sl.Objective(net, (randn(20, 3), labels(20, classes=2)), F.cross_entropy)


def holds(
    objective: sl.Objective, radius: float, places: int, rel: float, group: sl.Group | None = None
) -> None:
    """At random log-scales, up to far ones: inside the ball, and no lower than was said."""
    found = sl.orbit.worst_case(objective, group, radius=radius)
    assert found.proof is not None
    assert found.proof.holds(radius)
    for seed in range(places):
        t = found.group.random(seed, 0.5 * seed)
        twin, step = found.group.apply(found.home, t), found.witness(t)
        assert float(step.double().norm()) <= radius * (1 + 1e-9)
        rise = twin.at(twin.vector + step).value() - twin.value()
        assert rise >= found.lower * (1 - rel)


@pytest.mark.parametrize("radius", [0.05, 0.6, 4.0])
@pytest.mark.parametrize("name", [*TINY, *zoo.SHAPES, "gated"])
def test_the_witness_is_there_wherever_one_is(name: str, radius: float) -> None:
    if name in zoo.SHAPES:
        objective = zoo.trained(name).objective()
    else:
        objective = gated() if name == "gated" else TINY[name]()
    holds(objective, radius, 6, 1e-6)


@pytest.mark.parametrize("name", ["embedding", "TransformerEncoderLayer", "Llama"])
def test_the_witness_of_larger_networks(name: str) -> None:
    """Their norms have an eps that does not move along."""
    holds(BY_NAME[name].objective(), 0.1, 4, 1e-4)


@pytest.mark.parametrize("radius", [1e-9, 1e-12])
def test_a_tiny_witness_is_inside_too(radius: float) -> None:
    """1 + x, and 1 taken off again, leaves 7 digits of x = 1e-9."""
    objective = sl.orbit.representative(tiny((3, 4, 3))).objective
    group = sl.symmetries(objective)
    reach = reach_of(objective, group, classes_of(group, objective))
    x = torch.ones(reach.size).double()
    x = x * (radius * (1 - 2.0**-40) / float(x.norm()))
    for seed in range(4):
        t = group.random(seed, float(seed))
        step = reach.elsewhere(reach.step(x), t, group.apply(objective, t).vector)
        assert float(step.norm()) <= radius


@pytest.mark.parametrize("units", [1, 3])
def test_factors_of_units_stay_inside_where_sides_differ(units: int) -> None:
    """Both sides for small factors, one side to take a unit away: the two ways meet at 0.17."""
    objective = tiny((2, units, 2), 7)
    group = sl.symmetries(objective)
    reach = reach_of(objective, group, classes_of(group, objective))
    for share in (-1.0, -0.6, -0.58, -0.3, 0.2, 3.0):
        x = torch.cat([torch.zeros(reach.free).double(), share * reach.scale])
        proof, rises = reach.proof(x, 1.0), []
        for shift in (-6.0, -0.5, 0.0, 2.0, 9.0):
            t = torch.full((units,), shift).double()
            twin = group.apply(objective, t)
            step = reach.elsewhere(reach.step(x), t, twin.vector)
            assert float(step.norm()) <= proof.length * (1 + 1e-12)
            rises.append(twin.at(twin.vector + step).value())
        assert rises == pytest.approx(rises[:1] * 5, rel=1e-9)


def test_rounding_is_no_proof() -> None:
    """A loss of a million is known to a tenth in float32, and rises by 1.5e-4 within 0.01."""
    x, noise = randn(50, 3, seed=1).float(), 1e3 * randn(50, 1, seed=2).float()
    y = x @ torch.tensor([[1.0], [2.0], [3.0]]) + noise
    wide = torch.cat([x, torch.ones(50, 1)], 1).double()
    best = torch.linalg.lstsq(wide, y.double()).solution.float()
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.weight.copy_(best[:3].T)
        net.bias.copy_(best[3])
    found = sl.orbit.worst_case(sl.Objective(net, (x, y), F.mse_loss), radius=0.01)
    exact = 1e-4 * float(torch.linalg.eigvalsh(wide.T @ wide / 50)[-1])
    assert found.base > 1e5
    assert 0 <= found.lower <= exact * (1 + 1e-3) + 1e-4  # off the minimum by rounding


def test_an_upper_end_in_single_precision_is_that_in_double() -> None:
    """Both losses of the rise are in float64: one in float32 is off by more than such a rise."""
    objective = tiny((2, 3, 2)).to(torch.float32)
    wide = sl.orbit.worst_case(objective.to(torch.float64), radius=1e-8).upper
    found = sl.orbit.worst_case(objective, radius=1e-8).upper
    assert found is not None
    assert found == pytest.approx(wide, rel=1e-3)


def test_an_upper_end_is_no_less_than_what_was_met() -> None:
    objective = tiny((2, 3, 2)).to(torch.float32)
    for radius in (1e-10, 1e-7, 1e-3):
        found = sl.orbit.worst_case(objective, radius=radius)
        assert found.upper is None or found.upper >= max(found.searched, 0.0)


class Jumps(nn.Module):
    """A unit whose sign is read as well: what it does leads to zero smoothly, and jumps there."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h) + 10.0 * (h > 0)


def test_a_loss_that_jumps_where_a_unit_is_zero() -> None:
    net, x = Jumps().double(), torch.linspace(0.5, 1.5, 10).double()[:, None]
    with torch.no_grad():
        net.a.weight.fill_(0.6)
        net.b.weight.fill_(0.6)
    holds(sl.Objective(net, (x, net(x).detach()), F.mse_loss), 1.0, 6, 1e-6)


@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_statistics_of_norms_that_move_along(radius: float) -> None:
    """Factors of a unit would leave them behind."""
    net = nn.Sequential(
        nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False), nn.ReLU(), nn.Linear(1, 1)
    )
    net = net.double().eval()
    x = torch.linspace(1, 3, 20).double()[:, None]
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
        for buffer, value in ((net[1].running_mean, 1.5), (net[1].running_var, 0.5)):
            assert isinstance(buffer, Tensor)
            buffer.fill_(value)
    objective = sl.Objective(net, (x, net(x).detach()), F.mse_loss)
    group = sl.symmetries(objective, statistics="free")
    assert group.buffers
    holds(objective, radius, 6, 1e-6, group)


@pytest.mark.parametrize("name", ["four units", "two layers"])
def test_the_given_point_does_not_matter(name: str) -> None:
    objective = TINY[name]()
    group = sl.symmetries(objective)
    here = sl.orbit.worst_case(objective, group, radius=0.3)
    for seed in range(3):
        twin = group.apply(objective, group.random(seed, 2.0))
        there = sl.orbit.worst_case(twin, group, radius=0.3)
        assert there.lower == pytest.approx(here.lower, rel=5e-3)  # of a search
        assert there.searched == pytest.approx(here.searched, rel=1e-3)


def test_lengths_that_are_one_but_for_rounding() -> None:
    """The better of two probes counts, whichever rounding makes the shorter."""
    point, step = tiny((3, 2, 2)), torch.ones(1).double()
    for first, second in ((1.0, 1 + 1e-15), (1 + 1e-15, 1.0)):
        way = Ways(point, torch.tensor([0]), Tally())
        way.probed += [Probed(first, 2.0, step), Probed(second, 1.0, step)]
        way.probed.append(Probed(2.0, 3.0, step))
        assert way.expected(2.0) == pytest.approx(1.0, rel=1e-12)
        assert way.expected(1.5) == pytest.approx(0.75**0.5, rel=1e-12)


def test_a_unit_that_is_dead_is_no_obstacle() -> None:
    objective = tiny((3, 3, 2), 6)
    params = {name: p.clone() for name, p in objective.params.items()}
    params["0.weight"][1] = 0
    params["0.bias"][1] = 0
    found = sl.orbit.worst_case(objective.at(params), radius=0.3)
    assert 0 < found.lower <= found.searched


@pytest.mark.parametrize("radius", [0.05, 1.0])
def test_a_part_of_the_hessian_that_is_rounding_alone_is_no_obstacle(radius: float) -> None:
    """Of a saturated net some blocks are 1e-47 beside 1: their products are what cancels."""
    torch.manual_seed(0)
    first, top = (nn.Linear(*sizes, dtype=torch.float64) for sizes in ((5, 6), (6, 3)))
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = (x, torch.zeros(40).long())
    objective = sl.Objective(nn.Sequential(first, nn.ReLU(), top), data, F.cross_entropy)
    params = objective.params
    objective = objective.at({"2.weight": 1e4 * params["2.weight"]})
    found = sl.orbit.worst_case(objective, radius=radius)
    assert 0 < found.lower <= found.searched
    assert found.holds()
    t = found.group.random(1, 1.0)
    twin, step = found.group.apply(found.home, t), found.witness(t)
    assert float(step.norm()) <= radius
    assert twin.at(twin.vector + step).value() - twin.value() >= found.lower


def test_parts_that_are_more_than_rounding_are_still_held_to_symmetry() -> None:
    skew = torch.randn(20, 20, generator=torch.Generator().manual_seed(0)).double()
    operator = Operator(20, torch.float64, torch.device("cpu"), lambda v: skew @ v, name="hessian")
    objective, tally = tiny((3, 4, 1)), Tally()
    way = Ways(objective, torch.arange(8), tally, noise_of(operator, 0, tally))
    with pytest.raises(sl.SpiritlevelError, match="this hessian of a class is not symmetric"):
        way.begin(operator, 0.1, 0)


def test_it_says_what_it_is() -> None:
    found = sl.orbit.worst_case(product(), radius=0.05)
    assert "within 0.05 of every point of the orbit the loss rises by at least 0.00906" in str(
        found
    )
    assert found.certificate.verdict == "exact"
    with pytest.raises(sl.SpiritlevelError, match="radius=-1: give a positive number"):
        sl.orbit.worst_case(product(), radius=-1)
