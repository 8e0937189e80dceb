"""Noise on all the data corrected by noise on the part that is moved most."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, randn
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.measures import noise
from spiritlevel.objective.telling import hardest

N = 60


def net() -> nn.Module:
    return randomized(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))


def fitted(**options: object) -> sl.Objective:
    """Most examples are fitted, and a few of them say most."""
    model, x = net(), randn(N, 4)
    with torch.no_grad():
        model[-1].weight *= 8  # type: ignore[index,operator]
        y = model(x).argmax(1)
    return sl.Objective(model, (x, y), F.cross_entropy, **options)  # type: ignore[arg-type]


@pytest.fixture
def small_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "WORTH", 0)
    monkeypatch.setattr(noise, "FEWEST", 0)


@pytest.mark.parametrize("microbatch", [None, 7])
def test_the_hardest_examples_are_those_with_the_largest_slopes(microbatch: int | None) -> None:
    objective = fitted(microbatch=microbatch)
    part = hardest(objective, 0.2)
    assert part is not None
    (x, y) = fitted().batches[0]
    logits = objective.outputs(objective.params, (x, y))
    pulls = (logits.softmax(1) - F.one_hot(y, 3)).norm(dim=1)
    chosen = pulls.topk(12).indices.sort().values
    assert part.examples == 12
    assert torch.equal(torch.cat([batch[0] for batch in part.batches]), x[chosen])
    losses = F.cross_entropy(logits, y, reduction="none")
    assert part.value() == pytest.approx(float(losses[chosen].sum()) / N, rel=1e-12)


def test_what_cannot_be_told_apart_has_no_hardest_part() -> None:
    def own(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[0])

    data = randn(N, 4), labels(N)
    assert hardest(sl.Objective(net(), data, own), 0.2) is None
    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    assert hardest(sl.Objective(normed, data, F.cross_entropy, mode="train"), 0.2) is None


@pytest.mark.usefixtures("small_enough")
def test_the_standard_error_holds_the_truth() -> None:
    """The truth is that of very many pairs; two standard errors hold it about 95 times in 100."""
    objective = fitted()
    spread = torch.full_like(objective.vector, 0.05)
    many = noise._Rises(objective, spread, 10_000)
    for _ in range(3000):
        many.draw()
    rises = torch.tensor(many.both, dtype=torch.float64)[:, 0]
    truth, unsure = float(rises.mean()), float(rises.std()) / len(rises) ** 0.5
    found = [noise.mean_rise(objective, spread, rtol=0.1, seed=seed) for seed in range(100)]
    assert all(e.status is sl.Status.CONVERGED for e in found)
    held = sum(abs(e.value - truth) <= 2 * math.hypot(e.error, unsure) for e in found)
    assert 86 <= held <= 100
    middle = sum(e.value for e in found) / len(found)
    width = sum(e.error**2 for e in found) ** 0.5 / len(found)
    assert abs(middle - truth) <= 4 * math.hypot(width, unsure)


@pytest.mark.usefixtures("small_enough")
def test_fewer_passes_for_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = fitted()
    spread = torch.full_like(objective.vector, 0.05)
    parts = [noise.mean_rise(objective, spread, rtol=0.08, seed=seed) for seed in range(10)]
    monkeypatch.setattr(noise, "WORTH", math.inf)
    plain = [noise.mean_rise(objective, spread, rtol=0.08, seed=seed) for seed in range(10)]
    assert all(e.error <= 0.08 * e.value for e in parts + plain)
    assert sum(e.matvecs for e in parts) < 0.7 * sum(e.matvecs for e in plain)


@pytest.mark.usefixtures("small_enough")
def test_draws_of_the_part_stand_beside_those_of_all_the_data() -> None:
    """Also after more of the part were made: both rises of a pair are of the same noise."""
    objective = fitted()
    rises = noise._Rises(objective, torch.full_like(objective.vector, 0.05), 0)
    for whole in (True, False, True, False, False, True):
        rises.draw(whole)
    assert len(rises.both) == 3
    assert len(rises.more) == 3
    again = noise._Rises(objective, torch.full_like(objective.vector, 0.05), 0)
    for _ in range(6):
        again.draw()
    assert rises.both == [again.both[i] for i in (0, 2, 5)]
    assert rises.more == [again.both[i][1] for i in (1, 3, 4)]
    assert rises.passes == pytest.approx(1 + 2 * 12 / N + 2 * (3 + 6 * 12 / N))


@pytest.mark.usefixtures("small_enough")
def test_of_a_part_that_does_not_move_no_more_draws_are_wanted() -> None:
    objective = fitted()
    rises = noise._Rises(objective, torch.full_like(objective.vector, 0.05), 0)
    rises.both = [(1.0 + 0.1 * i, 0.0) for i in range(8)]
    value, error, spared = rises.found()
    plain = torch.tensor(rises.both, dtype=torch.float64)[:, 0]
    assert value == pytest.approx(1.35, rel=1e-6)
    assert spared == 0
    assert error >= float(plain.std()) / 8**0.5
    assert rises.missing(0.01) == math.inf


@pytest.mark.usefixtures("small_enough")
def test_a_part_that_says_little_is_let_go() -> None:
    """Where labels are random every example says something else."""
    objective = sl.Objective(net(), (randn(N, 4), labels(N)), F.cross_entropy)
    spread = torch.full_like(objective.vector, 0.05)
    rises = noise._Rises(objective, spread, 0)
    for _ in range(8):
        rises.draw()
    paid = rises.passes
    rises.judge()
    assert rises.part is None
    rises.draw()
    assert rises.passes == paid + 2
    plain = torch.tensor(rises.both, dtype=torch.float64)[:, 0]
    assert rises.found()[0] == pytest.approx(float(plain.mean()), rel=1e-6)


@pytest.mark.usefixtures("small_enough")
def test_a_loss_of_steps_has_no_slopes_to_choose_by() -> None:
    def mistakes(out: Tensor, y: Tensor) -> Tensor:
        return (out.argmax(1) != y).double().mean()

    objective = sl.Objective(net(), (randn(N, 4), labels(N)), mistakes)
    part = hardest(objective, 0.2)
    assert part is None or part.examples == 12
    spread = torch.full_like(objective.vector, 0.3)
    found = noise.mean_rise(objective, spread, rtol=1.0, seed=0)
    assert found.value == pytest.approx(_by_hand(objective, spread, pairs=8), rel=1e-9)


def _by_hand(objective: sl.Objective, spread: Tensor, pairs: int) -> float:
    draws, theta = generator(0), objective.vector
    steps = [spread * gaussian(len(theta), draws, theta) for _ in range(pairs)]
    values = [objective.at(theta + sign * s).value() for s in steps for sign in (1, -1)]
    return sum(values) / len(values) - objective.value()


@pytest.mark.usefixtures("small_enough")
def test_a_loss_that_writes_into_the_outputs() -> None:
    def clamped(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.clamp_(-5, 5), y)

    plain = fitted()
    objective = sl.Objective(net(), plain.batches[0], clamped).at(plain.params)
    part, alike = hardest(objective, 0.2), hardest(plain, 0.2)
    assert part is not None
    assert alike is not None
    assert part.examples == alike.examples
    spread = torch.full_like(objective.vector, 0.05)
    found = noise.mean_rise(objective, spread, rtol=0.2, seed=0)
    assert 0 < found.value < 1


def test_a_batch_of_one_may_be_left_over() -> None:
    part = hardest(fitted(microbatch=59), 0.2)
    alike = hardest(fitted(), 0.2)
    assert part is not None
    assert alike is not None
    assert part.value() == pytest.approx(alike.value(), rel=1e-12)
