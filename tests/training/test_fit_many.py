"""Networks in a stack end where each would have ended alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fits import same
from spiritlevel import SpiritlevelError
from spiritlevel.training import SAM, fit, fit_many

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
    with pytest.raises(SpiritlevelError, match="not of one architecture"):
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
