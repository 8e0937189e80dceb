"""fit goes on where it was: checkpoints, refusals of other runs, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Dataset, TensorDataset

import spiritlevel as sl
from fits import Watching, data, net, same, sgd
from spiritlevel.results.history import Epoch, History, Moment
from spiritlevel.training import fit

Optimizer = torch.optim.Optimizer


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


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.pt"
    again(path, 1)

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(torch, "load", denied)
    with pytest.raises(sl.SpiritlevelError, match=r"a\.pt' cannot be read: Permission denied"):
        again(path, 1)


def test_state_that_is_no_plain_data_is_refused(tmp_path: Path) -> None:
    model = net()
    optimizer = sgd(model)
    optimizer.param_groups[0]["hidden"] = Path("object")
    with pytest.raises(sl.SpiritlevelError, match="objects other than tensors and plain data"):
        fit(model, data(), F.cross_entropy, optimizer, 1, checkpoint=tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()


# Ctrl-C ---------------------------------------------------------------------------------------


@dataclass
class Finger:
    """Presses Ctrl-C at one place of a training, while it is told to."""

    where: str
    presses: bool = False
    steps: int = 0

    def at(self, where: str, now: bool) -> None:
        if self.presses and now and where == self.where:
            os.kill(os.getpid(), signal.SIGINT)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        finger, self.steps = self, 0

        class Pressed(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                finger.steps += 1
                loss = closure()
                finger.at("step", finger.steps == 5)
                super().step()
                return loss

        return Pressed(model.parameters(), lr=0.2, momentum=0.9)

    def data(self) -> TensorDataset:
        finger = self

        class Given(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                finger.at("fetch", finger.steps == 5)
                return super().__getitem__(index)

        return Given(*data())

    def watch(self) -> Watching:
        finger = self

        class Looking(Watching):
            def look(self, model: nn.Module, **options: Any) -> Moment | None:
                made = super().look(model, **options)
                with contextlib.suppress(KeyboardInterrupt):  # as measures that keep what they have
                    finger.at("look", options["step"] == 6)
                return made

        return Looking()

    def trained(self, path: Path) -> tuple[nn.Module, History]:
        model = net(noisy=True)
        settings = {"batch_size": 8, "checkpoint": path, "watch": self.watch()}
        optimizer = self.optimizer(model)
        return model, fit(model, self.data(), F.cross_entropy, optimizer, 3, **settings)


@pytest.mark.parametrize(("where", "batches"), [("step", 2), ("fetch", 2), ("look", 3)])
def test_ctrl_c_keeps_what_is_done_and_the_run_goes_on(
    tmp_path: Path, where: str, batches: int
) -> None:
    """Pressed inside a step it waits for its end; the rest gives the same weights as no Ctrl-C."""
    straight, whole = Finger(where).trained(tmp_path / "b.pt")
    _, half = Finger(where, presses=True).trained(tmp_path / "a.pt")
    more = f"{batches} batches of the next were done"
    assert half.provenance["interrupted"] == f"1 of 3 epochs and {more}"
    assert half.provenance["stopped"] == "by Ctrl-C"
    model, history = Finger(where).trained(tmp_path / "a.pt")
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


def test_going_on_at_the_end_of_the_first_epoch_is_nothing_to_warn_of(tmp_path: Path) -> None:
    def pressed(epoch: Epoch) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return False

    _, history = again(tmp_path / "a.pt", stop=pressed)
    assert "0 of 4 epochs" in history.provenance["interrupted"]
    model, whole = again(tmp_path / "a.pt")  # torch warns of a schedule that steps before any step
    assert [epoch.number for epoch in whole.epochs] == [1, 2, 3, 4]
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
