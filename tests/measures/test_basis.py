"""Curvature in path values: the paths, the Hessian against a chart by autograd, what is unseen."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, randn
from spiritlevel.measures.basis import Basis, basis_of, in_values, path_flatness
from spiritlevel.measures.instruments import Instruments


def deep() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.LeakyReLU(0.2), nn.Linear(3, 2)),
        *(nn.ReLU(), nn.Linear(2, 3)),
    )


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))


def images() -> nn.Module:
    """Channels are units; the linear layer sees each at four places."""
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU(), nn.AvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(12, 3)),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "deep": (deep, (3,), 9),
    "plain": (plain, (4,), 5),
    "images": (images, (1, 5, 5), 5),
    "no hidden units": (lambda: nn.Sequential(nn.Linear(4, 3)), (4,), 0),
}


@functools.cache
def objective(name: str) -> sl.Objective:
    make, shape, _ = NETS[name]
    return sl.Objective(
        randomized(make()).double(), (randn(12, *shape), labels(12)), F.cross_entropy
    )


def paths(point: sl.Objective) -> Basis:
    return basis_of(point, sl.symmetries(point))


def exponents(basis: Basis, theta: Tensor) -> Tensor:
    """P of v_j = prod_i theta_i^P_ij, by autograd: (paths, weights)."""
    slopes = torch.func.jacrev(basis.values)(theta)
    return slopes * theta / basis.values(theta)[:, None]


def value(point: sl.Objective) -> float:
    return path_flatness(Instruments(point, tol=1e-8, budget=400)).value


# The paths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_there_are_as_many_paths_as_freedoms_are_left(name: str) -> None:
    """n - m of them, each through one weight of each layer or from a bias on, independent."""
    point, units = objective(name), NETS[name][2]
    table = exponents(paths(point), point.vector)
    assert table.shape == (point.size - units, point.size)
    torch.testing.assert_close(table, table.round())
    assert set(table.round().unique().tolist()) <= {0.0, 1.0}
    assert int(torch.linalg.matrix_rank(table)) == point.size - units
    scales = torch.from_numpy(sl.symmetries(point).matrix(point.shapes).toarray())
    assert float((table @ scales).abs().max() if units else 0.0) < 1e-12
    layers = [n for n in point.params if n.endswith("weight")]
    for row in table.round():
        met = [n for n, span in point.spans.items() for _ in range(int(row[span].sum()))]
        start = layers.index(met[0].replace("bias", "weight"))  # a bias stands for its layer
        assert met == [met[0], *layers[start + 1 :]]
        assert start == 0 or met[0].endswith("bias")


def test_a_path_is_one_through_the_units() -> None:
    """Where weights are told apart by their primes, v is a product of what hangs together."""
    point = objective("plain")
    basis, n = paths(point), point.size
    rows = exponents(basis, point.vector).round()
    first = torch.arange(20).reshape(5, 4)
    second = 20 + torch.arange(15).reshape(3, 5)
    for row in rows:
        inside, outside = row.nonzero()[:, 0].tolist()
        unit = int((first == inside).nonzero()[0, 0])
        assert outside in second[:, unit].tolist()
    assert n == 35


@pytest.mark.parametrize("seed", range(5))
def test_skeletons_that_share_weights_give_a_basis_too(seed: int) -> None:
    """The largest weight out of one unit is often the largest into the next."""
    point = objective("deep")
    there = point.at(randn(point.size, seed=seed))
    basis = basis_of(there, sl.symmetries(point))
    assert len({*basis.first.tolist(), *basis.last.tolist()}) < 2 * 9
    assert int(torch.linalg.matrix_rank(exponents(basis, there.vector))) == point.size - 9


# The number -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_the_hessian_is_that_of_a_chart(name: str) -> None:
    """theta(v) = theta_0 exp(pinv(P) log(v / v_0)), another gauge, through autograd."""
    point = objective(name)
    basis, theta = paths(point), point.vector
    back = torch.linalg.pinv(exponents(basis, theta))
    v = basis.values(theta)

    def loss(moved: Tensor) -> Tensor:
        there = theta * torch.exp(back @ (moved / v).log())
        total, count = point.total(point.named(there), point.batches[0])
        return total / count

    expected = torch.func.hessian(loss)(v)
    operator = in_values(sl.hessian(point), basis, theta, point.gradient())
    assert operator.size == len(v)
    apart = float((operator.dense() - expected).norm())
    assert apart < 1e-9 * float(expected.norm())
    assert value(point) == pytest.approx(float(torch.linalg.eigvalsh(expected)[-1]), rel=1e-7)
    without = in_values(sl.hessian(point), basis, theta, torch.zeros_like(theta)).dense()
    if name != "no hidden units":  # there is a slope, and it counts
        assert float((without - expected).norm()) > 1e-3 * float(expected.norm())


@pytest.mark.parametrize("name", ["deep", "plain", "images"])
@pytest.mark.parametrize("seed", range(3))
def test_neither_rescalings_nor_the_order_of_units_are_seen(name: str, seed: int) -> None:
    point = objective(name)
    group, here = sl.symmetries(point), value(point)
    twin = group.apply(point, group.random(seed, 2.0))
    assert value(twin) == pytest.approx(here, rel=1e-7)
    for units in sl.symmetry.permutations(point):
        twin = units.apply(twin, units.random(seed))
    assert not torch.equal(twin.vector.abs().argsort(), point.vector.abs().argsort())
    assert value(twin) == pytest.approx(here, rel=1e-7)


def test_weights_that_are_zero_have_paths_too() -> None:
    """A path of value zero is a coordinate like any other, against finite differences of it."""
    point = objective("plain")
    weight = point.params["0.weight"].clone()
    weight[1, 2] = weight[3, 0] = 0.0
    thin = point.at({"0.weight": weight})
    near = point.at({"0.weight": torch.where(weight == 0, 1e-7, weight)})
    assert value(thin) == pytest.approx(value(near), rel=1e-5)


# Where it is not defined ----------------------------------------------------------------------


class Twice(nn.Module):
    """The same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x).relu()).relu())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "tanh is nothing of that"),
        (nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), "norms"),
        (Twice(), "shared weights"),
    ],
)
def test_other_networks_are_refused(model: nn.Module, message: str) -> None:
    point = sl.Objective(randomized(model).double(), (randn(9, 4), labels(9)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match=message):
        value(point)
    table = sl.measure(point, ["loss", "path_flatness"])
    assert [row.name for row in table.rows] == ["loss"]


def test_a_dead_unit_is_refused() -> None:
    point = objective("plain")
    weight = point.params["2.weight"].clone()
    weight[:, 1] = 0.0
    with pytest.raises(sl.SpiritlevelError, match=r"all out of it.*prune it"):
        value(point.at({"2.weight": weight}))


def test_a_penalty_on_the_weights_is_refused() -> None:
    """The loss is no function of path values then."""

    def penalized(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        size = sum(p.square().sum() for p in model.parameters())
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum") + size, len(batch[1])

    point = sl.Objective(randomized(plain()).double(), (randn(9, 4), labels(9)), penalized)
    with pytest.raises(sl.SpiritlevelError, match="units are blocked"):
        value(point)


def test_some_parameters_are_not_enough() -> None:
    data = randn(9, 4), labels(9)
    point = sl.Objective(randomized(plain()).double(), data, F.cross_entropy, params="2.*")
    with pytest.raises(sl.SpiritlevelError, match=r"0.weight is not among the chosen parameters"):
        value(point)
