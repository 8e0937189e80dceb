"""Networks in a stack end where each would have ended alone."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fits import same
from spiritlevel import SpiritlevelError
from spiritlevel.training import SAM, fit, fit_many
from spiritlevel.training.feeding import shuffled
from spiritlevel.training.rules import SGD

RATES = [0.05, 0.02, 0.1]
RULES: dict[str, tuple[Any, Any]] = {
    "sgd": (
        lambda m, lr: torch.optim.SGD(m.parameters(), lr=lr, momentum=0.9, weight_decay=0.01),
        {"momentum": 0.9, "weight_decay": 0.01},
    ),
    "sam": (
        lambda m, lr: SAM(m.parameters(), rho=0.1, lr=lr, momentum=0.9),
        {"momentum": 0.9, "rho": 0.1},
    ),
    "adam": (
        lambda m, lr: torch.optim.Adam(m.parameters(), lr=lr, weight_decay=0.1),
        {"weight_decay": 0.1},
    ),
}


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def images(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3, 3)),
    ).double()


def data() -> tuple[Tensor, list[Tensor]]:
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(22, 4, generator=draws, dtype=torch.float64)
    return x, [torch.randint(0, 3, (22,), generator=draws) for _ in range(3)]


def apart(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


@pytest.mark.parametrize("make", [net, images])
@pytest.mark.parametrize("optimizer", sorted(RULES))
def test_a_stack_ends_where_each_alone_ends(optimizer: str, make: Any) -> None:
    """Other rates, labels and orders, and each stops for itself; the last batch is smaller."""
    alone, options = RULES[optimizer]
    x, labels = data()
    models = [make(seed) for seed in range(3)]
    others = copy.deepcopy(models)
    seeds = [3, 4, 5]
    how: dict[str, Any] = {"epochs": 15, "stop": 0.9, "batch_size": 8}
    found = fit_many(
        models, (x, labels), F.cross_entropy, optimizer, lr=RATES, seeds=seeds, **how, **options
    )
    for i, other in enumerate(others):
        history = fit(
            *(other, (x, labels[i]), F.cross_entropy, alone(other, RATES[i])),
            **{**how, "seed": seeds[i]},
        )
        assert apart(models[i], other) < 1e-13
        assert len(found[i].epochs) == len(history.epochs)
        for a, b in zip(found[i].epochs, history.epochs, strict=True):
            assert (a.number, a.step, a.rate) == (b.number, b.step, b.rate)
            assert (a.loss, a.full) == pytest.approx((b.loss, b.full), abs=1e-13)
        ended = "at a training loss of" in history.provenance["stopped"]
        assert ended == ("at a training loss of" in found[i].provenance["stopped"])
    assert len({len(history.epochs) for history in found}) > 1


def test_one_that_diverges_ends_alone() -> None:
    x, labels = data()
    models, others = [net(0), net(1)], [net(0), net(1)]
    square = lambda outputs, y: (outputs - y[:, None]).square().mean()  # noqa: E731
    found = fit_many(models, (x, labels[:2]), square, lr=[1e3, 0.01], epochs=60)
    assert found[0].provenance["stopped"].startswith("diverged: the loss is")
    assert len(found[0].epochs) < len(found[1].epochs) == 60
    fit(
        *(others[1], (x, labels[1]), square, torch.optim.SGD(others[1].parameters(), 0.01), 60),
        seed=1,
    )
    assert apart(models[1], others[1]) < 1e-13


def test_what_a_stack_leaves_as_it_was() -> None:
    x, labels = data()
    models = [net(0).eval(), net(1)]
    kept, state = (x.clone(), [y.clone() for y in labels]), torch.get_rng_state()
    with torch.no_grad():
        fit_many(models, (x, labels[0]), F.cross_entropy, lr=0.1, epochs=2)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept[0])
    assert all(map(torch.equal, labels, kept[1]))
    assert [part.training for m in models for part in m.modules()] == [False] * 4 + [True] * 4
    assert all(p.requires_grad and p.grad is None for m in models for p in m.parameters())
    assert not same(models[0], net(0))


def test_what_cannot_be_stacked_is_refused() -> None:
    x, labels = data()
    ok: dict[str, Any] = {"lr": 0.1, "epochs": 1}
    wrong: list[tuple[str, Any, dict[str, Any]]] = [
        ("not of one architecture", [net(0), images(0)], ok),
        ("at least one", [], ok),
        ("have buffers", [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()], ok),
        ("drop out", [nn.Sequential(nn.Linear(4, 3), nn.Dropout()).double()], ok),
        ("lr has 2 numbers for 1 models", [net(0)], {**ok, "lr": [0.1, 0.2]}),
        ("seeds has 2 numbers for 1 models", [net(0)], {**ok, "seeds": [0, 1]}),
        ("optimizer='lbfgs' is not known", [net(0)], {**ok, "optimizer": "lbfgs"}),
        ("the option of adam='momentum'", [net(0)], {**ok, "optimizer": "adam", "momentum": 0.9}),
        ("share parameters", [net(0)] * 2, ok),
    ]
    for match, models, given in wrong:
        with pytest.raises(SpiritlevelError, match=match):
            fit_many(models, (x, labels[0]), F.cross_entropy, **given)

    class Times(nn.Linear):
        factor = 1.0

        def forward(self, input: Tensor) -> Tensor:
            return self.factor * super().forward(input)

    twins = [Times(4, 3).double(), Times(4, 3).double()]
    twins[1].factor = 2.0
    with pytest.raises(SpiritlevelError, match="models 0 and 1 are not of one architecture"):
        fit_many(twins, (x, labels[0]), F.cross_entropy, **ok)
    frozen = net(0)
    frozen[0].weight.requires_grad_(False)
    for match, models, given in [
        ("frozen parameters", [frozen], (x, labels[0])),
        ("labels for 3 of 1 models", [net(0)], (x, labels)),
        ("as many rows", [net(0)], (x, labels[0][:5])),
        (r"is to be \(x, y\)", [net(0)], x),
    ]:
        with pytest.raises(SpiritlevelError, match=match):
            fit_many(models, given, F.cross_entropy, **ok)  # type: ignore[arg-type]


class Turned(torch.autograd.Function):
    """The identity, whose gradient is multiplied."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return ctx.factor * slopes[0], None


class Own(nn.Module):
    """What it does hangs on attributes that neither its text nor its parameters show."""

    def __init__(
        self, top: Any = 9.0, turn: float = 1.0, name: str = "", act: Any = F.relu
    ) -> None:
        super().__init__()
        self.layer, self.top, self.turn, self.act = nn.Linear(4, 3), top, turn, act
        self.name, self.kept, self.calls = name, None, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.arange(4.0) ** 2
        self.calls += 1
        top = self.top if isinstance(self.top, float) else self.top(x)
        return Turned.apply(self.act(self.layer((x - self.kept).clamp(max=top))), self.turn)


@pytest.mark.parametrize(
    "other",
    [
        {"top": 1.5},
        {"turn": -1.0},
        {"act": torch.tanh},
        {"act": lambda x: F.relu(x).clamp(max=50)},
        {"top": lambda x: torch.tensor(9.0)},
    ],
)
def test_functions_are_told_apart_where_no_example_shows_it(other: dict[str, Any]) -> None:
    x, y = torch.zeros(22, 4).float(), data()[1][0]
    given: Any = {"lr": 0.1, "epochs": 1}
    with pytest.raises(SpiritlevelError, match="models 0 and 2 are not of one architecture: at"):
        fit_many([Own(), Own(), Own(**other)], (x, y), F.cross_entropy, **given)
    constants = [Own(lambda x: torch.tensor(9.0)), Own(lambda x: torch.tensor(8.0))]
    with pytest.raises(SpiritlevelError, match="models 0 and 1 are not of one architecture: at"):
        fit_many(constants, (x, y), F.cross_entropy, **given)


def test_what_no_function_hangs_on_may_differ() -> None:
    """A name, a cache that one of them has already, and how often it was called."""
    x, y = torch.randn(22, 4, generator=torch.Generator().manual_seed(0)), data()[1][0]
    models = [Own(name="first"), Own(name="second"), Own(lambda x: 9.0)]
    models[1](x)
    fit_many(models, (x, y), F.cross_entropy, lr=0.1, epochs=1)
    assert [model.calls for model in models] == [0, 1, 0]


class Odd(nn.Module):
    """A number that is learned, a layer that the loss does not see, and outputs with names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unseen = nn.Linear(4, 3), nn.Linear(4, 3)
        self.times = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.last = self.layer(x)  # as hooks and caches keep it
        return {"logits": self.times * self.last}


def odd(seed: int) -> Odd:
    torch.manual_seed(seed)
    return Odd().double()


@pytest.mark.parametrize("optimizer", sorted(RULES))
def test_what_the_loss_does_not_see_stays_as_it_was(optimizer: str) -> None:
    """Weight decay too is for what has a gradient; and no tensor of the stack is left inside."""
    alone, options = RULES[optimizer]
    x, labels = data()
    models, others = [odd(0), odd(1)], [odd(0), odd(1)]
    seen = lambda outputs, y: F.cross_entropy(outputs["logits"], y)  # noqa: E731
    fit_many(models, (x, labels[0]), seen, optimizer, lr=0.1, epochs=5, **options)
    for seed, (model, other) in enumerate(zip(models, others, strict=True)):
        fit(other, (x, labels[0]), seen, alone(other, 0.1), 5, seed=seed)
        assert apart(model, other) < 1e-13
        assert torch.equal(model.unseen.weight, odd(seed).unseen.weight)
        assert not torch.equal(model.times, odd(seed).times)
        assert not hasattr(model, "last"), "nor is one of a pass that the user did not make"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", sorted(RULES))
def test_a_stack_counts_and_rates_as_finely_as_each_alone(
    optimizer: str, dtype: torch.dtype
) -> None:
    """Steps and rates in bfloat16 would be others: 0.999^t is 1 there, and 257 is 256."""
    alone, options = RULES[optimizer]
    x, labels = data()
    model, other = net(0).to(dtype), net(0).to(dtype)
    fit_many([model], (x, labels[0]), F.cross_entropy, optimizer, lr=1e-3, epochs=100, **options)
    fit(other, (x, labels[0]), F.cross_entropy, alone(other, 1e-3), 100)
    assert apart(model, other) < (1e-6 if dtype is torch.float32 else 0.02)


@pytest.mark.parametrize("slope", [0.0, 1e-30])
def test_sam_climbs_by_rho_however_small_the_gradient_is(slope: float) -> None:
    """Squares of 1e-30 are zero in float32; the curved part shows how far it climbed."""
    start = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(start.weight)
    x, y = torch.ones(8, 4), torch.zeros(8)
    curved = lambda outputs, y: (outputs.square() + slope * outputs).mean()  # noqa: E731
    models = [copy.deepcopy(start)]
    fit_many(models, (x, y), curved, "sam", lr=0.1, epochs=1, rho=10.0)
    other = copy.deepcopy(start)
    fit(other, (x, y), curved, SAM(other.parameters(), rho=10.0, lr=0.1), 1)
    assert apart(models[0], other) < 1e-6
    assert (apart(models[0], start) > 1) == (slope > 0)


def test_weights_that_the_last_step_lost_are_told() -> None:
    x, labels = data()
    models = [net(0), net(1)]
    steep = lambda outputs, y: 1e200 * outputs.mean()  # noqa: E731
    found = fit_many(
        *(models, (x, labels[0]), steep), lr=[1e200, 1e-200], epochs=1, batch_size=len(x)
    )
    assert found[0].provenance["stopped"] == "diverged: weights are not finite"
    assert found[1].provenance["stopped"] == "after 1 epochs"


@pytest.mark.parametrize("at", [1, 2, 7])
def test_ctrl_c_leaves_whole_steps(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """In the middle of a step: it is done, and those of all networks are what fit would have."""
    x, labels = data()
    models, others = [net(0), net(1)], [net(0), net(1)]
    descend, made = SGD.descend, []

    def interrupted(*given: Any) -> None:
        made.append(1)
        if len(made) == at:
            os.kill(os.getpid(), signal.SIGINT)
        descend(*given)

    monkeypatch.setattr(SGD, "descend", interrupted)
    how: dict[str, Any] = {"batch_size": 8}
    found = fit_many(models, (x, labels[0]), F.cross_entropy, lr=0.1, epochs=9, **how)
    monkeypatch.undo()
    assert len(made) == at
    epochs, place = divmod(at, 3)
    for seed, (model, other) in enumerate(zip(models, others, strict=True)):
        batches = [b for e in range(1, 5) for b in shuffled(22, seed, e).split(8)][:at]
        for chosen in batches:
            optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
            F.cross_entropy(other(x[chosen]), labels[0][chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert apart(model, other) < 1e-14
        told = found[seed].provenance
        assert told["interrupted"].startswith(f"{epochs} of 9 epochs and {place} batches")
        assert told["stopped"] == "by Ctrl-C"
        assert len(found[seed].epochs) == epochs


def test_what_torch_would_refuse_in_its_own_words() -> None:
    x, labels = data()

    class Random(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return F.dropout(super().forward(input), 0.5, self.training)

    class Asking(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            found = super().forward(input)
            return found if found.sum() > 0 else -found

    each = lambda outputs, y: F.cross_entropy(outputs, y, reduction="none")  # noqa: E731
    ok: dict[str, Any] = {"lr": 0.1, "epochs": 1}
    wrong: list[tuple[str, nn.Module, Any, dict[str, Any]]] = [
        ("models cannot be stacked .*random", Random(4, 3).double(), F.cross_entropy, {}),
        ("models cannot be stacked .*control flow", Asking(4, 3).double(), F.cross_entropy, {}),
        (r"loss returned \(8,\); give one that returns a mean", net(0), each, {}),
        ("loss returned float; give one", net(0), lambda outputs, y: 1.0, {}),
        ("lr=None: give a number", net(0), F.cross_entropy, {"lr": None}),
        ("seeds=3: give a list", net(0), F.cross_entropy, {"seeds": 3}),
        ("beta2=1: give a number below 1", net(0), F.cross_entropy, {"beta2": 1}),
    ]
    for match, model, loss, given in wrong:
        optimizer = "adam" if "beta2" in given else "sgd"
        with pytest.raises(SpiritlevelError, match=match):
            fit_many([model], (x, labels[0]), loss, optimizer, **{**ok, **given})
    with pytest.raises(SpiritlevelError, match="labels of several shapes or kinds"):
        fit_many([net(0), net(1)], (x, [labels[0], x]), F.cross_entropy, **ok)
