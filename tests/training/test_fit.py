"""fit against a plain loop, its chance, its stops, its refusals."""

from __future__ import annotations

import copy
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, TensorDataset

import spiritlevel as sl
from fits import Watching, data, first_weight, net, order, same, sgd
from spiritlevel.training import fit

Optimizer = torch.optim.Optimizer


class Twice(torch.optim.SGD):
    """Calls its closure a second time, elsewhere: what is counted is the first call."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.add_(1.0)
        closure()
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.sub_(1.0)
        super().step()
        return loss


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.02),
        lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3),
        lambda p: Twice(p, lr=0.1),
    ],
    ids=["sgd", "adam", "lbfgs", "twice"],
)
def test_the_same_as_a_plain_loop(make: Callable[[Any], Optimizer]) -> None:
    x, y = data()
    mine, plain = net(), net()
    optimizer = make(plain.parameters())
    means = []
    for epoch in (1, 2):
        losses = []
        for chosen in order(epoch):

            def closure(chosen: Tensor = chosen) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(plain(x[chosen]), y[chosen])
                loss.backward()
                return loss

            with torch.no_grad():
                here = float(F.cross_entropy(plain(x[chosen]), y[chosen]))
            losses.append((here, len(chosen)))
            optimizer.step(closure)  # type: ignore[arg-type]
        means.append(sum(loss * n for loss, n in losses) / 22)
    history = fit(mine, (x, y), F.cross_entropy, make(mine.parameters()), 2, batch_size=8)
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    assert [epoch.loss for epoch in history.epochs] == pytest.approx(means, rel=1e-12)
    assert [epoch.step for epoch in history.epochs] == [3, 6]
    assert history.provenance["examples"] == 22
    assert history.provenance["stopped"] == "after 2 epochs"


def test_the_step_of_a_sum_is_that_of_the_sum() -> None:
    """An Objective divides such a loss by the number of examples; a step takes it as it is."""
    x, y = data()
    mine, plain = net(), net()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y, reduction="none").sum()

    optimizer = sgd(plain)
    for chosen in order(1):
        optimizer.zero_grad()
        loss(plain(x[chosen]), y[chosen]).backward()
        optimizer.step()
    fit(mine, (x, y), loss, sgd(mine), 1, batch_size=8)
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    assert sl.Objective(mine, (x, y), loss).loss.sums


def test_every_epoch_has_every_example_once_in_an_order_of_its_own() -> None:
    first, second = torch.cat(order(1)), torch.cat(order(2))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(22))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.cat(order(1, seed=1)))


class Noisy(Dataset[Any]):
    """Augments with every global generator."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = data()
        noise = random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002
        return x[i] + noise, y[i]


def loader(kind: type[Dataset[Any]] | None, *, own: bool, workers: int = 0) -> DataLoader[Any]:
    given = TensorDataset(*data()) if kind is None else kind()
    draws = torch.Generator().manual_seed(5) if own else None
    return DataLoader(given, batch_size=8, shuffle=True, generator=draws, num_workers=workers)


FED: dict[str, Callable[[], Any]] = {
    "tensors": data,
    "arrays": lambda: tuple(t.numpy() for t in data()),
    "dataset": Noisy,
    "loader": lambda: loader(Noisy, own=False),
    "loader with a generator": lambda: loader(None, own=True),
    "workers": lambda: loader(Noisy, own=True, workers=1),
    "batches": lambda: [(x, y) for x, y in loader(None, own=True)],
}


@pytest.mark.parametrize("kind", FED)
def test_the_same_seed_gives_the_same_weights(kind: str) -> None:
    """Whatever random numbers were drawn before; another seed gives others."""
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(found))
        random.seed(len(found))
        np.random.seed(len(found))  # noqa: NPY002
        model = net(noisy=True)
        fit(model, FED[kind](), F.cross_entropy, sgd(model), 2, batch_size=8, seed=seed)
        found.append(model)
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_a_dictionary_goes_to_a_model_by_name() -> None:
    """A Hugging Face model with its own loss, in batches of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    small.attn_pdrop = small.resid_pdrop = small.embd_pdrop = 0.0
    mine = GPT2LMHeadModel(small).double()
    plain = copy.deepcopy(mine)
    ids = torch.randint(0, 11, (6, 8), generator=torch.Generator().manual_seed(2))
    batches = [{"input_ids": ids[a : a + 3], "labels": ids[a : a + 3]} for a in (0, 3)]
    history = fit(mine, batches, None, sgd(mine, 0.1), 1)
    optimizer, losses = sgd(plain, 0.1), []
    for batch in batches:
        optimizer.zero_grad()
        loss = plain(**batch).loss  # in float32 inside
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    assert history.epochs[0].loss == pytest.approx(sum(losses) / 2, rel=1e-5)
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_a_loss_of_the_model_is_averaged_by_its_count() -> None:
    def weighted(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        weight = 1.0 + batch[1]
        return (weight * F.cross_entropy(model(batch[0]), batch[1], reduction="none")).sum(), (
            weight.sum()
        )

    x, y = data()
    mine, plain = net(), net()
    history = fit(mine, (x, y), weighted, torch.optim.SGD(mine.parameters(), lr=0.5), 1)
    total, count = weighted(plain, (x, y))
    mean = total / count
    mean.backward()
    assert history.epochs[0].loss == pytest.approx(float(mean.detach()), rel=1e-12)
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        assert q.grad is not None
        torch.testing.assert_close(p, q - 0.5 * q.grad, rtol=0, atol=1e-12)


def test_nothing_of_the_users_is_touched() -> None:
    model = net(noisy=True)
    model.train()
    list(model)[1].eval()
    called: list[int] = []
    first = next(iter(model))
    first.register_forward_hook(lambda *_: called.append(1))
    hooks = dict(first._forward_hooks)
    draws = torch.Generator().manual_seed(3)
    given = DataLoader(TensorDataset(*data()), batch_size=11, shuffle=True, generator=draws)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    state, handler = draws.get_state(), signal.getsignal(signal.SIGINT)
    fit(model, given, F.cross_entropy, sgd(model), 1, stop=0.0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == str(np.random.get_state())  # noqa: NPY002
    assert torch.equal(state, draws.get_state())
    assert signal.getsignal(signal.SIGINT) is handler
    assert [part.training for part in model.modules()] == [True, True, False, True, True, True]
    assert dict(first._forward_hooks) == hooks


# When it ends ---------------------------------------------------------------------------------


def test_it_stops_at_a_loss_over_all_the_data_in_eval_mode() -> None:
    model, (x, y) = net(noisy=True), data()
    history = fit(model, (x, y), F.cross_entropy, sgd(model), 200, stop=0.7, batch_size=8)
    full = [epoch.full for epoch in history.epochs]
    assert full[-1] is not None
    assert len(full) < 200
    assert all(f is not None and f > 0.7 for f in full[:-1])
    with torch.no_grad():
        here = float(F.cross_entropy(model.eval()(x), y))
    assert full[-1] == pytest.approx(here, rel=1e-12)
    assert here <= 0.7
    assert history.provenance["stopped"] == f"at a training loss of {here:.4g}"


def test_a_batch_that_is_dropped_is_of_the_data_too() -> None:
    model, (x, y) = net(), data()
    given = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, drop_last=True)
    history = fit(model, given, F.cross_entropy, sgd(model), 1, stop=0.0)
    with torch.no_grad():
        assert history.epochs[0].full == pytest.approx(float(F.cross_entropy(model(x), y)), 1e-12)
    assert history.provenance["examples"] == 16


def test_it_stops_by_a_function_of_an_epoch() -> None:
    model = net()
    history = fit(model, data(), F.cross_entropy, sgd(model), 9, stop=lambda e: e.number == 3)
    assert [epoch.number for epoch in history.epochs] == [1, 2, 3]
    assert history.epochs[0].full is None
    assert history.provenance["stopped"] == "by stop, after 3 epochs"


def test_schedules_by_epoch_and_by_step() -> None:
    model = net()
    optimizer = sgd(model, 1.0)
    history = fit(
        model, data(), F.cross_entropy, optimizer, 4, schedule=CosineAnnealingLR(optimizer, 4)
    )
    want = [(1 + np.cos(np.pi * t / 4)) / 2 for t in range(4)]
    assert [epoch.rate for epoch in history.epochs] == pytest.approx(want)
    optimizer = sgd(model, 1.0)
    schedule = OneCycleLR(optimizer, 0.5, total_steps=6)
    history = fit(
        *(model, data(), F.cross_entropy, optimizer, 2),
        batch_size=8,
        schedule=schedule,
        schedule_every="step",
    )
    other = OneCycleLR(sgd(model, 1.0), 0.5, total_steps=6)
    rates = []
    for _ in range(6):
        rates.append(other.get_last_lr()[0])
        other.optimizer.step()
        other.step()
    assert [epoch.rate for epoch in history.epochs] == pytest.approx([rates[2], rates[5]])


def test_a_plateau_is_one_of_the_loss() -> None:
    model = net()
    optimizer = sgd(model, 1e-30)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    fit(model, data(), F.cross_entropy, optimizer, 4, schedule=schedule, stop=0.0)
    assert schedule.best == pytest.approx(sl.Objective(model, data(), F.cross_entropy).value())
    assert optimizer.param_groups[0]["lr"] == 1e-30  # torch leaves rates below 1e-8 alone


# The watch ------------------------------------------------------------------------------------


def test_the_watch_looks_before_the_first_step_after_each_and_at_the_end() -> None:
    model, watch = net(), Watching()
    start = first_weight(model)
    optimizer = sgd(model, 1.0)
    schedule = CosineAnnealingLR(optimizer, 2)
    history = fit(
        *(model, data(32), F.cross_entropy, optimizer, 2),
        batch_size=8,
        watch=watch,
        schedule=schedule,
    )
    assert [moment.step for moment in history] == [0, 3, 6, 8]
    assert history["step 0"]["first"].estimate.value == start
    assert history["step 8"]["first"].estimate.value == first_weight(model)
    assert history.provenance["watched"] == 2.0
    assert history["step 3"].rate == 1.0
    assert history["step 6"].rate == pytest.approx(0.5)


# What it refuses ------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_names_the_step_and_the_reason() -> None:
    x, y = data()
    place = int(order(1)[1][0])
    spoiled = x.clone()
    spoiled[place] = float("nan")
    model = net()
    with pytest.raises(
        sl.SpiritlevelError,
        match=r"the loss is nan at step 2, batch 2 of epoch 1 .*the batch holds nan or inf",
    ):
        fit(model, (spoiled, y), F.cross_entropy, sgd(model), 2, batch_size=8)
    plain = net()
    fit(plain, [(x[order(1)[0]], y[order(1)[0]])], F.cross_entropy, sgd(plain), 1)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)  # those before the step

    def exploding(outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.square().sum(1).square().mean()

    model = net()
    with pytest.raises(
        sl.SpiritlevelError, match=r"the loss is (nan|inf) .*lower the learning rate"
    ):
        fit(model, (x, y), exploding, sgd(model, 1e3), 50, batch_size=8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": 0}, r"epochs=0: give a whole number of at least 1"),
        ({"optimizer": "sgd"}, "optimizer is a str; give a torch.optim.Optimizer"),
        ({"optimizer": sgd(net())}, "optimizer holds no trainable parameter of the model"),
        ({"stop": "low"}, "stop='low': give a number"),
        ({"every": 3}, "every is of checkpoints"),
        ({"schedule": "cosine"}, "schedule is a str; give a scheduler of torch"),
        ({"schedule": CosineAnnealingLR(sgd(net()), 3)}, "rates of another optimizer"),
        ({"schedule_every": "day"}, "schedule_every='day' is not known"),
        ({"watch": 3}, "watch is a int; give a spiritlevel.training.Watch"),
        ({"checkpoint": "no/such/folder/a.pt"}, "checkpoint='no/such/folder/a.pt': give a file"),
        ({"data": []}, "data is empty"),
        ({"data": 3}, "data is a int; give a pair of tensors"),
        ({"loss": 3}, "loss is a int; give a function"),
        ({"model": 3}, "model is a int; give a torch.nn.Module"),
    ],
)
def test_what_cannot_be_used_is_refused(change: dict[str, Any], said: str) -> None:
    model = net()
    given = {
        "model": model,
        "data": data(),
        "loss": F.cross_entropy,
        "optimizer": sgd(model),
        "epochs": 1,
    }
    with pytest.raises(sl.SpiritlevelError, match=said):
        fit(**{**given, **change})
