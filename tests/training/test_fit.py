"""fit against a plain loop, its chance, its stops, its refusals, and Ctrl-C."""

from __future__ import annotations

import copy
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, TensorDataset

import spiritlevel as sl
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.tensors import same_tree
from spiritlevel.results.data import plain, read
from spiritlevel.results.history import Epoch, History, Moment, Reading
from spiritlevel.training import fit
from spiritlevel.training.feeding import feed

Optimizer = torch.optim.Optimizer


def net(seed: int = 0, *, noisy: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(6), nn.Dropout(0.3)] if noisy else []
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, 3)).double()


def data(n: int = 22) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    return x, torch.randint(0, 3, (n,), generator=g)


def sgd(model: nn.Module, lr: float = 0.2) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def same(a: nn.Module, b: nn.Module) -> bool:
    return same_tree(a.state_dict(), b.state_dict())


def order(epoch: int, n: int = 22, size: int = 8, seed: int = 0) -> list[Tensor]:
    """Which examples are in the batches of an epoch: their numbers, fed as data."""
    numbers = torch.arange(n)
    one = feed((numbers, numbers), size, seed, lambda t: t)
    return [x for x, _ in one.batches(epoch)]


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


def first_weight(model: nn.Module) -> float:
    return float(next(iter(model.parameters())).detach().reshape(-1)[0])


class Watching:
    """Every third step, and the last; what it sees is the first weight."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.rates: list[float | None] = []

    def look(
        self, model: nn.Module, *, step: int, rate: float | None = None, now: bool = False
    ) -> Moment | None:
        self.rates.append(rate)
        if step % 3 and not now:
            return None
        reading = Reading("first", Estimate(first_weight(model)))
        self.moments.append(Moment(f"step {step}", step, 0.0, rate, (reading,), 0.5))
        return self.moments[-1]

    def history(self, epochs: Any, **told: Any) -> History:
        watched = sum(moment.seconds for moment in self.moments)
        return History(tuple(epochs), tuple(self.moments), {**told, "watched": watched})  # type: ignore[typeddict-item]

    def state_dict(self) -> dict[str, Any]:
        return {"moments": plain(self.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments = read(list[Moment], state["moments"])


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


# Checkpoints ----------------------------------------------------------------------------------


def again(path: Path, epochs: int = 4, **options: Any) -> tuple[nn.Module, History]:
    model = net(noisy=True)
    optimizer = sgd(model, options.pop("lr", 0.2))
    schedule = CosineAnnealingLR(optimizer, options.pop("period", 4))
    given = options.pop("data", data())
    settings = {"batch_size": 8, "schedule": schedule, "checkpoint": path, **options}
    return model, fit(model, given, F.cross_entropy, optimizer, epochs, **settings)


def test_a_finished_run_is_returned_at_once(tmp_path: Path) -> None:
    model, history = again(tmp_path / "a.pt")
    twin, same_history = again(tmp_path / "a.pt")
    assert history == same_history  # its seconds too: nothing was done
    assert same(model, twin)
    assert not list(tmp_path.glob("*.part"))


def test_more_epochs_go_on_where_it_ended(tmp_path: Path) -> None:
    again(tmp_path / "a.pt", 2)
    model, history = again(tmp_path / "a.pt", 4)
    straight, whole = again(tmp_path / "b.pt", 4)
    assert same(model, straight)
    assert [e.loss for e in history.epochs] == [e.loss for e in whole.epochs]
    with pytest.raises(sl.SpiritlevelError, match=r"epochs=3, but the checkpoint has done 4"):
        again(tmp_path / "a.pt", 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": 0.1}, r"another run: lr of group 1 is 0\.2 there and 0\.1 here"),
        ({"period": 5}, r"another run: T_max of the schedule is 4 there and 5 here"),
        ({"seed": 1}, r"another run: seed is 0 there and 1 here"),
        ({"batch_size": 4}, r"another run: the data is '22 examples \w+ by 8' there"),
        ({"data": data(21)}, r"another run: the data is '22 examples"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    again(tmp_path / "a.pt", 1)
    with pytest.raises(sl.SpiritlevelError, match=said):
        again(tmp_path / "a.pt", 1, **options)


def test_files_that_are_no_checkpoints_are_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for held in (b"", b"nothing", None):
        if held is None:
            torch.save({"format": Path("evil")}, path)
        else:
            path.write_bytes(held)
        with pytest.raises(sl.SpiritlevelError, match="is no checkpoint of fit"):
            again(path)


def test_state_that_is_no_plain_data_is_refused(tmp_path: Path) -> None:
    model = net()
    optimizer = sgd(model)
    optimizer.param_groups[0]["hidden"] = Path("object")
    with pytest.raises(sl.SpiritlevelError, match="objects other than tensors and plain data"):
        fit(model, data(), F.cross_entropy, optimizer, 1, checkpoint=tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()


# Ctrl-C and losses that are no numbers -----------------------------------------------------------


@pytest.mark.parametrize("where", ["step", "fetch", "look"])
def test_ctrl_c_keeps_what_is_done_and_the_run_goes_on(tmp_path: Path, where: str) -> None:
    """Pressed inside a step it waits for its end; the rest gives the same weights as no Ctrl-C."""

    class Pressed(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            loss = closure()
            if where == "step" and self.calls == 5 and press:
                os.kill(os.getpid(), signal.SIGINT)
            super().step()
            return loss

    class Given(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            if (
                where == "fetch"
                and press
                and optimizer.state
                and getattr(optimizer, "calls", 0) == 5
            ):
                os.kill(os.getpid(), signal.SIGINT)
            return super().__getitem__(index)

    class Looking(Watching):
        def look(self, model: nn.Module, **options: Any) -> Moment | None:
            made = super().look(model, **options)
            if where == "look" and press and options["step"] == 6:
                with pytest.raises(KeyboardInterrupt):  # as measures that keep what they have
                    os.kill(os.getpid(), signal.SIGINT)
            return made

    def trained(path: Path) -> tuple[nn.Module, History]:
        nonlocal optimizer
        model = net(noisy=True)
        optimizer = Pressed(model.parameters(), lr=0.2, momentum=0.9)
        settings = {"batch_size": 8, "checkpoint": path, "watch": Looking()}
        return model, fit(model, Given(*data()), F.cross_entropy, optimizer, 3, **settings)

    optimizer = torch.optim.SGD(net().parameters())
    press = False
    straight, whole = trained(tmp_path / "b.pt")
    press = True
    _, half = trained(tmp_path / "a.pt")
    steps = 6 if where == "look" else 5
    more = f" and {steps % 3} batches of the next" if steps % 3 else " and 3 batches of the next"
    assert half.provenance["interrupted"] == f"1 of 3 epochs{more} were done"
    assert half.provenance["stopped"] == "by Ctrl-C"
    press = False
    model, history = trained(tmp_path / "a.pt")
    assert same(model, straight)
    assert [(m.step, m["first"].estimate.value) for m in history] == [
        (m.step, m["first"].estimate.value) for m in whole
    ]
    assert [e.loss for e in history.epochs] == [e.loss for e in whole.epochs]


def test_a_second_ctrl_c_is_heard_inside_a_step(tmp_path: Path) -> None:
    """Then the weights are of no whole step, and no checkpoint is made of them."""

    class Stuck(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            loss = closure()
            if self.state:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                reached.append(True)
            super().step()
            return loss

    reached: list[bool] = []
    model = net()
    optimizer = Stuck(model.parameters(), lr=0.1, momentum=0.9)
    path = tmp_path / "a.pt"
    with pytest.raises(KeyboardInterrupt):
        fit(model, data(), F.cross_entropy, optimizer, 2, batch_size=8, checkpoint=path, every=1)
    assert not reached
    assert torch.load(path, weights_only=True)["standing"]["step"] == 1


def test_the_same_objects_go_on_after_ctrl_c(tmp_path: Path) -> None:
    """As in a notebook, where the cell with fit alone is run again."""
    model = net(noisy=True)
    optimizer = sgd(model)
    schedule = CosineAnnealingLR(optimizer, 4)

    def pressed(epoch: Epoch) -> bool:
        if epoch.number == 2 and press:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    given = (model, data(), F.cross_entropy, optimizer, 4)
    options = {"batch_size": 8, "stop": pressed, "schedule": schedule}
    press = True
    found = [fit(*given, **options, checkpoint=tmp_path / "a.pt")]
    press = False
    found.append(fit(*given, **options, checkpoint=tmp_path / "a.pt"))
    assert "1 of 4 epochs" in found[0].provenance["interrupted"]
    assert found[1].provenance["interrupted"] == ""
    assert same(model, again(tmp_path / "b.pt")[0])


def test_ctrl_c_before_the_first_step_is_ctrl_c() -> None:
    def stream() -> Iterator[Any]:
        yield data()

    class Given(Dataset[Any]):
        seen = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            Given.seen += 1
            if Given.seen == 5:  # the first four are looked at before
                os.kill(os.getpid(), signal.SIGINT)
            return data()[0][index], data()[1][index]

    model = net()
    with pytest.raises(KeyboardInterrupt):
        fit(model, Given(), F.cross_entropy, sgd(model), 1)
    with pytest.raises(sl.SpiritlevelError, match="which can be read once"):
        fit(model, stream(), F.cross_entropy, sgd(model), 1)


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
