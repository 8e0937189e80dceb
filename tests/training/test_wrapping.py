"""A wrapped optimizer of torch: the same groups, one state that can be saved and taken up."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, mlp, randn
from spiritlevel.training.entropy import EntropySGD
from spiritlevel.training.langevin import SGLD
from spiritlevel.training.replicas import ReplicatedSGD
from spiritlevel.training.sam import SAM
from spiritlevel.training.wrapping import Wrapping

Make = Callable[[Any], Wrapping]
BASES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
}
MAKES: dict[str, Make] = {
    "SAM": lambda p: SAM(p, torch.optim.Adam, lr=0.01, every=2),
    "entropy": lambda p: EntropySGD(p, version="released", inner=3, lr=0.1, momentum=0.9),
    "langevin": lambda p: SGLD(p, lr=1e-3),
    "replicas": lambda p: ReplicatedSGD(p, torch.optim.Adam, coupling=(0.1, 1.1), lr=0.01),
}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return mlp(nn.ReLU).double()


class Batches:
    """A closure that draws from its own place in the data."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, start: int = 0) -> None:
        self.model, self.optimizer, self.place = model, optimizer, start
        self.x, self.y = randn(24, 4), labels(24)

    def __call__(self) -> Tensor:
        chosen = torch.arange(self.place, self.place + 5) % 24
        self.place += 5
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.x[chosen]), self.y[chosen])
        loss.backward()
        return loss


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("base", BASES)
def test_without_a_climb_it_is_the_base(base: str) -> None:
    kind, options = BASES[base]
    ours, theirs = net(), net()
    wrapped = SAM(ours.parameters(), kind, rho=0.0, **options)
    plain = kind(theirs.parameters(), **options)
    for place in range(4):  # the second pass is the one that counts
        wrapped.step(Batches(ours, wrapped, start=place))
        again = Batches(theirs, plain, start=place)
        again()
        again()
        plain.step()
    assert torch.equal(flat(ours), flat(theirs))


@pytest.mark.parametrize("name", MAKES)
def test_a_round_trip_in_the_middle_changes_no_bit(name: str) -> None:
    model = net()
    optimizer = MAKES[name](model.parameters())
    closure = Batches(model, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other = net(seed=1)
    other.load_state_dict(weights)
    resumed = MAKES[name](other.parameters())
    resumed.load_state_dict(state)
    later = Batches(other, resumed, closure.place)
    for _ in range(3):
        optimizer.step(closure)
        resumed.step(later)
        assert torch.equal(flat(model), flat(other))
    assert resumed.state_dict().keys() == optimizer.state_dict().keys()


@pytest.mark.parametrize("through", ["pickle", "copy"])
@pytest.mark.parametrize("name", MAKES)
def test_pickled_and_copied_ones_go_on_alike(name: str, through: str) -> None:
    model = net()
    optimizer = MAKES[name](model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # replaces the step of the instance
    closure = Batches(model, optimizer)
    optimizer.step(closure)
    pair = (model, optimizer)
    twin, other = pickle.loads(pickle.dumps(pair)) if through == "pickle" else copy.deepcopy(pair)
    assert other.param_groups is other.base.param_groups
    assert other.state is other.base.state
    later = Batches(twin, other, closure.place)
    for _ in range(2):
        optimizer.step(closure)
        other.step(later)
    assert torch.equal(flat(model), flat(twin))


@pytest.mark.parametrize("name", MAKES)
def test_the_global_generator_is_left_alone(name: str) -> None:
    model = net()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    optimizer = MAKES[name](model.parameters())
    optimizer.step(Batches(model, optimizer))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_scheduler_governs_the_base() -> None:
    w = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = SAM([w], rho=0.0, lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = w.sum()
        loss.backward()
        return loss

    for rate in (0.5, 0.05, 0.005):
        before = w.detach().clone()
        optimizer.step(closure)
        scheduler.step()
        torch.testing.assert_close(before - w, torch.full_like(w, rate), rtol=0, atol=1e-15)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)  # makes new groups: the base has to see them
    before = w.detach().clone()
    optimizer.param_groups[0]["lr"] = 3.0
    optimizer.step(closure)
    torch.testing.assert_close(before - w, torch.full_like(w, 3.0), rtol=0, atol=1e-15)


def test_groups_have_options_of_their_own_also_later_ones() -> None:
    a, b, c = (nn.Parameter(torch.full((2,), v, dtype=torch.float64)) for v in (1.0, 2.0, 3.0))
    optimizer = SAM([{"params": [a], "lr": 0.1}, {"params": b, "rho": 0.2}], rho=0.1, lr=0.01)
    optimizer.add_param_group({"params": [c], "lr": 1.0, "rho": 0.0})
    seen: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (a.square().sum() + b.square().sum() + c.square().sum()) / 2
        loss.backward()
        seen.append(torch.cat([a, b, c]).detach().clone())
        return loss

    optimizer.step(closure)
    norm = (2 * (1 + 4 + 9)) ** 0.5
    start = torch.tensor([1.0, 1, 2, 2, 3, 3], dtype=torch.float64)
    rho = torch.tensor([0.1, 0.1, 0.2, 0.2, 0.0, 0.0], dtype=torch.float64)
    rate = torch.tensor([0.1, 0.1, 0.01, 0.01, 1.0, 1.0], dtype=torch.float64)
    top = start * (1 + rho / norm)
    torch.testing.assert_close(seen[1], top, rtol=1e-14, atol=0)
    found = torch.cat([a, b, c]).detach()
    torch.testing.assert_close(found, start - rate * top, rtol=1e-14, atol=1e-15)
    assert [g["lr"] for g in optimizer.base.param_groups] == [0.1, 0.01, 1.0]
    with pytest.raises(sl.SpiritlevelError, match=r"rho=-1: give a number of at least 0"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "rho": -1})
    assert len(optimizer.param_groups) == 3


def test_names_of_parameters_are_kept() -> None:
    optimizer = SAM(net().named_parameters(), lr=0.1)
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == names


LINEAR = nn.Linear(2, 2)
WRONG: list[tuple[Any, Any, dict[str, Any], str]] = [
    ([], torch.optim.SGD, {}, "params is empty; give parameters"),
    (LINEAR.weight, torch.optim.SGD, {}, "params is a Parameter; give parameters, such as"),
    (3, torch.optim.SGD, {}, "params is a int; give parameters"),
    ([{"weights": []}], torch.optim.SGD, {}, r"params holds .*; give groups such as"),
    (["x"], torch.optim.SGD, {}, "SGD refuses its params or options: optimizer can only optimize"),
    (
        LINEAR.parameters(),
        torch.optim.SGD(LINEAR.parameters(), lr=0.1),
        {},
        r"base is an instance of SGD; give the class and its options: SAM\(params, torch.optim.SGD",
    ),
    (LINEAR.parameters(), "SGD", {}, "base='SGD': give a class of optimizers"),
    (LINEAR.parameters(), nn.Linear, {}, "base=.*: give a class of optimizers"),
    (LINEAR.parameters(), torch.optim.LBFGS, {}, "base=LBFGS calls closures itself; give one"),
    (LINEAR.parameters(), SAM, {}, "base=SAM calls closures itself"),
    (
        LINEAR.parameters(),
        torch.optim.SGD,
        {"rh": 1, "mom": 2},
        "rh, mom: no option of SAM or SGD; there are: rho, adaptive, .*momentum",
    ),
    (LINEAR.parameters(), torch.optim.SGD, {"lr": -1.0}, "lr=-1.0: give a number of at least 0"),
    (LINEAR.parameters(), torch.optim.SGD, {"rho": -0.1}, "rho=-0.1: give a number of at least 0"),
    (LINEAR.parameters(), torch.optim.SGD, {"rho": float("nan")}, "rho=nan: give a number"),
    (LINEAR.parameters(), torch.optim.SGD, {"eta": -1}, "eta=-1: give a number of at least 0"),
    (LINEAR.parameters(), torch.optim.SGD, {"adaptive": "row"}, "adaptive='row' is not known"),
    (LINEAR.parameters(), torch.optim.SGD, {"norm": 1}, "norm=1.0 is not known; choose one of 2.0"),
    (
        LINEAR.parameters(),
        torch.optim.SGD,
        {"every": 0},
        "every=0: give a whole number of at least",
    ),
    (
        LINEAR.parameters(),
        torch.optim.SGD,
        {"model": 3},
        "model is a int; give the torch.nn.Module",
    ),
    (LINEAR.parameters(), torch.optim.SGD, {"sync": False}, "sync=False needs processes"),
    (LINEAR.parameters(), torch.optim.SGD, {"adaptive": "orbit"}, "needs orbit=, a Group"),
]


@pytest.mark.parametrize(("params", "base", "options", "message"), WRONG, ids=[w[3] for w in WRONG])
def test_what_cannot_be_used_is_refused(
    params: Any, base: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        SAM(params, base, **options)


def test_states_of_another_kind_are_refused() -> None:
    model = net()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = SAM(model.parameters(), lr=0.1)
    with pytest.raises(sl.SpiritlevelError, match="state_dict is not that of SAM: its entry"):
        optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(sl.SpiritlevelError, match="should hold draws, steps, version; give what"):
        MAKES["entropy"](model.parameters()).load_state_dict(optimizer.state_dict())


def test_closures_that_cannot_be_called_are_refused() -> None:
    optimizer = SAM(net().parameters(), lr=0.1)
    for wrong in (3, [], [lambda: None, 3]):
        with pytest.raises(sl.SpiritlevelError, match=r"closure=.*: give a function that clears"):
            optimizer.step(wrong)  # type: ignore[arg-type]
