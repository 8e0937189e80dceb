"""Two networks aligned: what was planted is found, and nothing gets worse."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import spiritlevel as sl
from architectures import ResNet, objective_of
from cases import labels, randn
from spiritlevel.landscape.alignment import aligned
from spiritlevel.symmetry import permutations
from zoo import trained


class Stream(nn.Module):
    """Units on one stream: one matrix has them on both of its axes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, width), nn.Linear(width, 3)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        return self.head(h + torch.tanh(self.mix(h)))


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.RNN(3, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def fresh(
    make: Callable[[], nn.Module], *shape: int, seed: int = 0, **options: Any
) -> sl.Objective:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make().double()
    return sl.Objective(net, (randn(20, *shape), labels(20)), F.cross_entropy, **options)


def two_layers(seed: int, width: int = 4, **options: Any) -> sl.Objective:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))

    return fresh(make, 5, seed=seed, **options)


def planted(objective: sl.Objective, group: sl.Group, seed: int = 1) -> sl.Objective:
    """The same network with other scales, its units in other places."""
    found = group.apply(objective, group.random(seed, 1.0)) if group.dim else objective
    for number, units in enumerate(permutations(objective)):
        found = units.apply(found, units.random(seed + number))
    return found


MAKERS: dict[str, tuple[Callable[[], sl.Objective], int]] = {
    "mlp": (lambda: trained("mlp").objective(), 13),
    "convolutional": (lambda: trained("convolutional").objective(), 6),
    "residual": (lambda: trained("residual").objective(), 14),
    "transformer": (lambda: trained("transformer").objective(), 14),
    "ResNet": (lambda: objective_of(ResNet((4, 8), 1, "B"), 3, 8, 8), 24),
    "stream": (lambda: fresh(lambda: Stream(8), 3), 8),
    "recurrent": (lambda: fresh(Loop, 4, 3), 5),
}


@functools.cache
def made(name: str) -> sl.Objective:
    return MAKERS[name][0]()


@pytest.mark.parametrize("name", MAKERS)
def test_a_planted_twin_is_recovered(name: str) -> None:
    objective = made(name)
    twin = planted(objective, sl.symmetries(objective))
    before = [v.clone() for v in (objective.vector, twin.vector)]
    found = aligned(objective, twin)
    size = float(objective.vector.norm())
    assert found.distance_before == pytest.approx(float((before[0] - before[1]).norm()))
    assert found.distance_before > 0.1 * size
    assert found.distance_after <= 1e-12 * size
    assert found.units == MAKERS[name][1]
    assert 0 < found.moved <= found.units
    assert len(found.certificates) == 3
    assert all(c.verdict == "exact" for c in found.certificates)
    assert sl.verify(twin, found.second).holds
    for buffer, ours in found.first.buffers.items():
        torch.testing.assert_close(found.second.buffers[buffer], ours, rtol=1e-12, atol=1e-12)
    assert torch.equal(objective.vector, before[0])
    assert torch.equal(twin.vector, before[1])


def test_statistics_that_move_along() -> None:
    objective = made("convolutional")
    group = sl.symmetries(objective, statistics="free")
    twin = planted(objective, group)
    mean = "1.running_mean"
    assert float((twin.buffers[mean] - objective.buffers[mean]).abs().max()) > 0.01
    found = aligned(objective, twin, group=group)
    assert found.distance_after <= 1e-12
    torch.testing.assert_close(
        found.second.buffers[mean], found.first.buffers[mean], rtol=1e-12, atol=1e-12
    )
    assert aligned(objective, twin).distance_after > 0.1  # of these scales it does not know


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_four_units_is_better(seed: int) -> None:
    one, other = two_layers(seed), two_layers(seed + 100)
    found = aligned(one, other, seed=seed)
    (units,) = permutations(found.second)
    ours = found.first.vector
    every = [
        float((units.apply(found.second, torch.tensor(order)).vector - ours).norm())
        for order in itertools.permutations(range(4))
    ]
    assert found.distance_after == pytest.approx(min(every), rel=1e-12)
    assert max(every) > 1.05 * min(every)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [lambda: Stream(6), Loop], ids=["stream", "recurrent"])
def test_matching_never_increases_the_distance(make: Callable[[], nn.Module], seed: int) -> None:
    """Where units lie on both axes of a matrix, the assignment is an approximation."""
    shape = (3,) if make().__class__ is Stream else (4, 3)
    one, other = fresh(make, *shape, seed=seed), fresh(make, *shape, seed=seed + 50)
    found = aligned(one, other, seed=seed)
    assert found.distance_after < found.distance_rescaled
    more = aligned(one, other, seed=seed, starts=12)
    assert more.distance_after <= found.distance_after * (1 + 1e-12)
    assert sl.verify(other, found.second).holds


def test_sorted_weights_find_what_the_given_order_does_not() -> None:
    def narrow() -> nn.Module:
        widths = [2, 6, 6, 6, 6, 3]
        layers = [[nn.Linear(*pair), nn.Tanh()] for pair in itertools.pairwise(widths)]
        return nn.Sequential(*itertools.chain(*layers))

    objective = fresh(narrow, 2, seed=1)
    twin = planted(objective, sl.symmetries(objective), seed=7)
    assert aligned(objective, twin, starts=1).distance_after > 1
    assert aligned(objective, twin, starts=2).distance_after == 0


def test_no_set_alone_can_do_better() -> None:
    one = trained("mlp").objective()
    found = aligned(one, one.at(randn(one.size, seed=5)))
    assert found.distance_after < 0.95 * found.distance_rescaled
    for units in permutations(found.second):
        products = torch.zeros(units.size, units.size).double()
        for (name, axis), places in units.places.items():
            ours, theirs = (
                o.params[name].movedim(axis, 0)[places[:, 0]].reshape(units.size, -1)
                for o in (found.first, found.second)
            )
            products += ours @ theirs.T
        best = products[linear_sum_assignment(-products.numpy())].sum()
        assert float(products.trace()) == pytest.approx(float(best), rel=1e-12)


def test_the_same_again_and_no_trace_in_random_numbers() -> None:
    one, other = two_layers(0, 30), two_layers(1, 30)
    state = torch.get_rng_state()
    found, again = (aligned(one, other, seed=3) for _ in range(2))
    assert torch.equal(found.second.vector, again.second.vector)
    assert found.distance_after == again.distance_after
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_and_itself() -> None:
    objective = made("residual")
    found = aligned(objective, objective)
    assert found.moved == 0
    assert found.distance_after == found.distance_rescaled == found.distance_before == 0


def test_single_precision() -> None:
    one, other = (two_layers(s, dtype=torch.float32) for s in (0, 1))
    exact = aligned(*(o.to(torch.float64) for o in (one, other)))
    found = aligned(one, other)
    assert found.second.dtype == torch.float32
    assert found.distance_after == pytest.approx(exact.distance_after, rel=1e-6)
    assert found.certificate.holds


def test_the_weakest_proof_is_the_one_that_is_told() -> None:
    found = aligned(two_layers(0), two_layers(1))
    assert found.certificate in found.certificates
    assert found.certificate.relative == max(c.relative for c in found.certificates)


def test_what_cannot_be_aligned() -> None:
    one = two_layers(0)
    with pytest.raises(
        sl.SpiritlevelError, match=r"'0.weight' has the shape \(4, 5\) in a and \(6"
    ):
        aligned(one, two_layers(0, 6))
    deeper = fresh(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3, False)), 5)
    with pytest.raises(sl.SpiritlevelError, match=r"'2.bias' has the shape \(3,\) in a and none"):
        aligned(one, deeper)
    with pytest.raises(sl.SpiritlevelError, match="give two of one architecture"):
        aligned(one, two_layers(0, params="0.*"))
    with pytest.raises(sl.SpiritlevelError, match="give an Objective, not a Linear"):
        aligned(one, nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="starts=0: give a whole number of at least 1"):
        aligned(one, one, starts=0)
    with pytest.raises(sl.SpiritlevelError, match="seed='x': give a whole number"):
        aligned(one, one, seed="x")  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="group is a int; give a Group"):
        aligned(one, one, group=3)  # type: ignore[arg-type]
