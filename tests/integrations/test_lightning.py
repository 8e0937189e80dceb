"""Lightning with the watch and with SAM: the same steps as a plain loop, the same readings."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel import training

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    from spiritlevel.integrations.lightning import WatchCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning gives advice as warnings


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(20, 4, generator=g, dtype=torch.float64)
    return x, torch.randint(0, 3, (20,), generator=g)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), batch_size=4)


def sam(model: nn.Module) -> torch.optim.Optimizer:
    return training.SAM(model.parameters(), rho=0.1, lr=0.2, momentum=0.9)


class Task(pl.LightningModule):
    def __init__(self, *, falling: bool = False) -> None:
        super().__init__()
        self.net, self.falling = net(), falling

    def training_step(self, batch: Any, index: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = sam(self)
        if not self.falling:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def trainer(folder: Path, steps: int = 5, **options: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet["enable_checkpointing"] = False
    return pl.Trainer(
        accelerator="cpu", max_steps=steps, default_root_dir=folder, **{**quiet, **options}
    )


def apart(a: nn.Module, b: nn.Module) -> list[float]:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return [float((p - q).detach().abs().max()) for p, q in pairs]


@pytest.fixture(autouse=True)
def _same_random_numbers_afterwards() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def test_sam_steps_in_lightning_as_in_a_plain_loop(tmp_path: Path) -> None:
    task = Task()
    trainer(tmp_path).fit(task, loader())
    plain = net()
    optimizer = sam(plain)
    for x, y in loader():

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(plain(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
    assert max(apart(task.net, plain)) < 1e-12
    assert min(apart(task.net, net())) > 1e-3


def test_readings_are_what_measure_says_at_that_point(tmp_path: Path) -> None:
    task = Task(falling=True)
    objective = sl.Objective(task.net, data(), F.cross_entropy)
    watch = training.Watch(objective, ["lambda_max", "hessian_trace"], every=2, least=False)
    found: list[tuple[dict[str, float], int]] = []
    points: dict[int, dict[str, Tensor]] = {0: objective.params}

    class Keeping(pl.Callback):
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            held = pl_module.net.named_parameters()
            points[trainer.global_step] = {name: p.detach().clone() for name, p in held}

    callback = WatchCallback(watch, log=lambda numbers, step: found.append((numbers, step)))
    trainer(tmp_path, callbacks=[callback, Keeping()]).fit(task, loader())
    assert [moment.step for moment in watch.moments] == [0, 2, 4, 5]
    assert [moment.rate for moment in watch.moments] == pytest.approx([0.2, 0.1, 0.025, 0.0125])
    for moment in watch.moments:
        want = sl.measure(objective.at(points[moment.step]), ["lambda_max", "hessian_trace"])
        for name in ("lambda_max", "hessian_trace"):
            here = moment[name].estimate
            assert here.value == pytest.approx(want[name].value, rel=1e-6), (moment.name, name)
    assert [step for _, step in found] == [0, 2, 4, 5]
    assert found[-1][0]["lambda_max"] == watch.moments[-1]["lambda_max"].estimate.value
    assert watch.log is None  # as it was


def test_the_trainers_own_logger_and_accumulated_batches(tmp_path: Path) -> None:
    """A step is one of the optimizer, whatever the number of batches in it."""
    task = Task()
    watch = training.Watch(
        sl.Objective(task.net, data(), F.cross_entropy), ["gradient_norm"], every=1, least=False
    )
    logger = CSVLogger(tmp_path, name="a", version="b")
    options = {"accumulate_grad_batches": 2, "logger": logger, "log_every_n_steps": 1}
    trainer(tmp_path, 2, callbacks=[WatchCallback(watch)], **options).fit(task, loader())
    assert [moment.step for moment in watch.moments] == [0, 1, 2]
    lines = (tmp_path / "a" / "b" / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("watch/gradient_norm")
    logged = [float(line.split(",")[column]) for line in lines[1:]]
    assert logged == [moment["gradient_norm"].estimate.value for moment in watch.moments]


def test_lightnings_checkpoints_hold_what_was_seen() -> None:
    objective = sl.Objective(net(), data(), F.cross_entropy)
    one, other = (training.Watch(objective, ["gradient_norm"], least=False) for _ in range(2))
    one.look(net(), step=0)
    WatchCallback(other).load_state_dict(WatchCallback(one).state_dict())
    assert other.moments == one.moments
    assert len(other.moments) == 1


def test_what_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sl.SpiritlevelError, match="watch is a int; give a spiritlevel"):
        WatchCallback(3)
    name = "spiritlevel.integrations.lightning"
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(sl.SpiritlevelError, match=r"pip install 'lightning!=2\.6\.2,!=2\.6\.3'"):
        importlib.import_module(name)
