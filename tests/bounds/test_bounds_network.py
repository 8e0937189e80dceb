"""`pac_bayes` on the digits: what it guarantees, what it refuses, and Ctrl-C in the middle."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.binary import kl_inverse
from spiritlevel.bounds.network import pac_bayes
from spiritlevel.bounds.pacbayes import grid_share
from spiritlevel.bounds.posterior import Recipe
from spiritlevel.bounds.priors import LARGEST, PRECISION, divided, undisturbed
from spiritlevel.objective.default import digits
from spiritlevel.results.bound import Bounds

FAST = Recipe(epochs=60, rate=3e-2, spread_rate=1e-1)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))


def halves(random: bool = False) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """0-4 against 5-9, or coins."""
    (x, y), (x_test, y_test) = digits()
    if random:
        y = torch.randint(0, 10, y.shape, generator=torch.Generator().manual_seed(0))
    return (x, (y > 4).long()), (x_test, (y_test > 4).long())


@pytest.fixture(scope="module")
def fitted() -> sl.Objective:
    train, _ = halves()
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    sl.training.fit(model, train, F.cross_entropy, optimizer, 10)
    return sl.Objective(model, train, F.cross_entropy)


@pytest.fixture(scope="module")
def bounds(fitted: sl.Objective) -> Bounds:
    options: dict[str, Any] = {"draws": 600, "test": halves()[1], "recipe": FAST}
    return pac_bayes(fitted, init=net(), orbit=True, **options)


def test_the_digits_have_a_bound_that_says_something(bounds: Bounds) -> None:
    best = bounds["maurer"]
    assert best.value < 0.45
    assert not best.vacuous
    assert not bounds.provenance["notes"]
    origin = bounds.origin
    assert origin is not None
    assert origin.test is not None
    assert origin.error.error < origin.error.above < best.value
    assert origin.test.error < best.value
    assert origin.error.above - origin.error.error < 0.015
    for name in ("mcallester", "quadratic", "thiemann"):
        assert best.value <= bounds[name].value


def test_the_bound_is_maurers_at_the_numbers_that_it_tells(bounds: Bounds) -> None:
    best, origin = bounds.rows[0].bound, bounds.origin
    assert (best.name, bounds.rows[0].point) == ("maurer", "here")
    assert origin is not None
    index = -PRECISION * math.log(origin.prior_scale**2 / LARGEST)
    assert index == pytest.approx(round(index), abs=1e-3)
    share = grid_share(0.8 * 0.05, round(index))
    m = origin.examples
    budget = (origin.kl + math.log(2 * math.sqrt(m) / share)) / m
    assert best.value == pytest.approx(kl_inverse(origin.error.above, budget), rel=1e-9)
    assert best.delta == 0.05
    assert origin.error.delta == pytest.approx(0.01)
    assert sum(part.kl for part in origin.parts) == pytest.approx(origin.kl, rel=1e-9)
    assert sum(part.parameters for part in origin.parts) == 2146
    assert any("600 networks" in said for said in best.assumptions)
    posterior = bounds.posterior
    moved = posterior.mean.double() - torch.cat([p.flatten() for p in net().state_dict().values()])
    square, scale = posterior.spread.double().square() + moved.square(), origin.prior_scale**2
    dense = (square / scale - 1 + math.log(scale)).sum() / 2 - posterior.spread.log().sum()
    assert origin.kl == pytest.approx(float(dense), rel=1e-5)


def test_the_orbit_never_loosens(bounds: Bounds) -> None:
    origin = bounds.origin
    assert origin is not None
    assert origin.least is not None
    assert origin.lower_bound is not None
    assert origin.lower_bound <= origin.least <= origin.kl
    least = sum(part.least or 0.0 for part in origin.parts)
    assert least == pytest.approx(origin.least, rel=1e-9)
    here, orbit = ([r.bound for r in bounds if r.point == at] for at in ("here", "orbit"))
    for plain, moved in zip(here, orbit, strict=True):
        assert moved.value <= plain.value


def test_twins_start_alike_on_the_orbit(fitted: sl.Objective) -> None:
    group = sl.symmetries(fitted)
    twin = group.apply(fitted, group.random(3, scale=2.0))
    recipe = Recipe(epochs=1, batch=500)

    def first(objective: sl.Objective, orbit: bool) -> tuple[float, float]:
        found = pac_bayes(objective, init=net(), orbit=orbit, draws=2, recipe=recipe)
        assert found.origin is not None
        return found.origin.steps[0].surrogate, found.origin.kl

    assert first(twin, True) == pytest.approx(first(fitted, True), rel=0.02)
    assert first(twin, False)[1] > 1.3 * first(fitted, False)[1]


def test_coins_have_a_bound_that_says_nothing() -> None:
    train, _ = halves(random=True)
    objective = sl.Objective(net(), train, F.cross_entropy)
    found = pac_bayes(objective, init=net(), draws=200, recipe=replace(FAST, epochs=40))
    assert found["maurer"].value > 0.5
    assert any("commonest class" in note for note in found.provenance["notes"])


# A prior that some of the examples trained --------------------------------------------------------


def test_the_rest_says_nothing_to_a_prior_that_a_share_trained() -> None:
    (x, y), _ = halves()
    x, y = x[:300], y[:300]
    still = Recipe(epochs=30, batch=32, informed_rate=0.0, spread_rate=0.0)
    objective = sl.Objective(net(), (x, y), F.cross_entropy)
    few, rest = divided(objective, 0.4, 7)
    assert (few.examples, rest.examples) == (120, 180)
    seen = {tuple(row.tolist()) for batch in few.batches for row in batch[0]}
    hidden = torch.tensor([tuple(row.tolist()) not in seen for row in x])
    assert int(hidden.sum()) == 180
    options: dict[str, Any] = {"share": 0.4, "draws": 50, "seed": 7, "recipe": still}
    found = pac_bayes(objective, init=net(), **options)
    other = sl.Objective(net(), (x, torch.where(hidden, 1 - y, y)), F.cross_entropy)
    turned = pac_bayes(other, init=net(), **options)
    assert torch.equal(found.posterior.mean, turned.posterior.mean)
    assert not torch.equal(found.posterior.mean, objective.vector)
    for one in (found, turned):
        assert one.origin is not None
        assert one.origin.kl == pytest.approx(0.0, abs=1e-6)
        assert one.origin.examples == 180
    assert found["maurer"].value < turned["maurer"].value


def test_running_statistics_are_those_of_the_prior() -> None:
    (x, y), _ = halves()
    fresh = nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    trained = nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    trained(x)
    objective = sl.Objective(trained, (x, y), F.cross_entropy)
    kept = undisturbed(objective, fresh)
    assert torch.equal(kept.buffers["1.running_mean"], torch.zeros(4))
    assert not torch.equal(objective.buffers["1.running_mean"], torch.zeros(4))
    with pytest.raises(SpiritlevelError, match=r"statistics '1.running_mean' were made of the ex"):
        pac_bayes(objective, init=dict(fresh.named_parameters()))


# Ctrl-C -------------------------------------------------------------------------------------------


CHECKS = 2  # passes before the training: the labels are read, and what tells networks apart


class Pressing(nn.Module):
    """Presses Ctrl-C when it is passed for the n-th time; copies count together."""

    left = -1

    def forward(self, x: Tensor) -> Tensor:
        Pressing.left -= 1
        if Pressing.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return x


@pytest.mark.parametrize("press", [3, 9])
def test_an_interrupted_bound_goes_on_bit_for_bit(press: int, tmp_path: Path) -> None:
    (x, y), _ = halves()
    model = net().append(Pressing())
    objective = sl.Objective(model, (x[:300], y[:300]), F.cross_entropy)
    path = tmp_path / "bound.safetensors"
    recipe = Recipe(epochs=4, batch=64)
    options: dict[str, Any] = {"init": net(), "draws": 70, "recipe": recipe}
    whole = pac_bayes(objective, **options)
    Pressing.left = press + CHECKS
    part = pac_bayes(objective, checkpoint=path, **options)
    assert f"{(press - 1) // 5} of 4 epochs" in part.provenance["interrupted"]
    assert part.origin is not None
    assert part.origin.steps == whole.origin.steps[: len(part.origin.steps)]  # type: ignore[union-attr]
    again = pac_bayes(objective, checkpoint=path, **options)
    assert not again.provenance["interrupted"]
    assert again.origin == whole.origin
    assert again.rows == whole.rows
    assert torch.equal(again.posterior.mean, whole.posterior.mean)
    assert pac_bayes(objective, checkpoint=path, **options).rows == whole.rows
    with pytest.raises(SpiritlevelError, match="of another run: seed is 0 there and 1 here"):
        pac_bayes(objective, checkpoint=path, seed=1, **options)
    path.write_bytes(b"no such thing")
    with pytest.raises(SpiritlevelError, match="is no checkpoint of pac_bayes"):
        pac_bayes(objective, checkpoint=path, **options)


def test_networks_that_were_drawn_before_ctrl_c_have_a_bound(tmp_path: Path) -> None:
    (x, y), _ = halves()
    objective = sl.Objective(net().append(Pressing()), (x[:300], y[:300]), F.cross_entropy)
    recipe = Recipe(epochs=1, batch=300)
    options: dict[str, Any] = {"init": net(), "draws": 150, "recipe": recipe}
    whole = pac_bayes(objective, **options)
    path = tmp_path / "bound.safetensors"
    Pressing.left = CHECKS + 8  # one step, five checks of the drawing, the second group of 64
    part = pac_bayes(objective, checkpoint=path, **options)
    assert part.provenance["interrupted"] == "64 of 150 networks were drawn"
    assert part.origin is not None
    assert part.origin.error.draws == 64
    assert part["maurer"].value > whole["maurer"].value
    assert pac_bayes(objective, checkpoint=path, **options).rows == whole.rows


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"init": None}, 'prior="init" is centred at the weights before training: give init='),
        ({"prior": "one"}, "prior='one' is not known"),
        ({"share": 0.5, "init": None}, "share trains the prior's mean from the weights before"),
        ({"share": 1.0}, "leaves no example for the bound"),
        ({"share": 1e-9}, "of 1437 examples leaves 0 for the prior"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.0}, "delta=1.0: give a probability"),
        ({"draws": 0}, "draws=0"),
        ({"epochs": -1}, "epochs=-1"),
        ({"orbit": "yes"}, "orbit='yes' is not known"),
        ({"init": nn.Linear(3, 2)}, "init has no '0.weight'"),
    ],
)
def test_one_clear_error(asked: dict[str, Any], said: str, fitted: sl.Objective) -> None:
    with pytest.raises(SpiritlevelError, match=said):
        pac_bayes(fitted, **{"init": net(), **asked})


def test_what_is_no_classifier_of_single_examples_is_refused() -> None:
    x = torch.randn(6, 3)
    regression = sl.Objective(nn.Linear(3, 1), (x, x[:, :1]), F.mse_loss)
    with pytest.raises(SpiritlevelError, match="margins are those of a classifier"):
        pac_bayes(regression, prior="zero")
    tokens = torch.randn(6, 5, 3), torch.randint(0, 2, (6, 5))
    model = nn.Sequential(nn.Flatten(), nn.Linear(15, 10), nn.Unflatten(1, (2, 5)))
    several = sl.Objective(model, tokens, F.cross_entropy)
    with pytest.raises(SpiritlevelError, match="there are 30 for 6"):
        pac_bayes(several, prior="zero")
    one = sl.Objective(nn.Linear(3, 2), (x[:1], torch.tensor([1])), F.cross_entropy)
    with pytest.raises(SpiritlevelError, match="the number of examples=1"):
        pac_bayes(one, prior="zero")
