"""The Hugging Face Trainer with the watch and with SAM: plain loops, and readings of measure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import SequentialSampler

import spiritlevel as sl
from spiritlevel import training
from spiritlevel.integrations.transformers import sam_trainer, watch_callback

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers gives advice as warnings
N, SIZE = 24, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(N, 4, generator=g, dtype=torch.float64)
    return x, torch.randint(0, 3, (N,), generator=g)


def rows() -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]


def batches() -> list[tuple[Tensor, Tensor]]:
    x, y = data()
    return list(zip(x.split(SIZE), y.split(SIZE), strict=True))


def made(model: nn.Module, folder: Path, optimizer: Any, **options: Any) -> Any:
    """A Trainer that goes through the data in order, with a falling rate."""
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SequentialSampler(range(N))

    callbacks = options.pop("callbacks", [])
    kind = InOrder if options.pop("plain", False) else sam_trainer(InOrder)
    settings = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    settings |= {"per_device_train_batch_size": SIZE, "max_grad_norm": 0.0, "logging_steps": 1}
    schedule: Any = ExponentialLR(optimizer, 0.9)
    return kind(
        model=model,
        args=TrainingArguments(output_dir=str(folder), **{**settings, **options}),
        train_dataset=rows(),
        optimizers=(optimizer, schedule),
        callbacks=callbacks,
    )


def sam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return training.SAM(model.parameters(), rho=0.1, lr=0.2, momentum=0.9, **options)


def apart(a: nn.Module, b: nn.Module) -> list[float]:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return [float((p - q).detach().abs().max()) for p, q in pairs]


@pytest.fixture(autouse=True)
def _same_random_numbers_afterwards() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


@pytest.mark.parametrize(("together", "every"), [(1, 1), (2, 1), (1, 2)])
def test_sam_steps_in_the_trainer_as_in_a_plain_loop(
    tmp_path: Path, together: int, every: int
) -> None:
    """Also where gradients are accumulated, and where only every second step climbs."""
    steps = len(batches()) // together
    mine, plain = Net(), Net()
    options = {"gradient_accumulation_steps": together, "max_steps": steps}
    made(mine, tmp_path, sam(mine, every=every), **options).train()
    optimizer = sam(plain, every=every)
    schedule = ExponentialLR(optimizer, 0.9)
    for step in range(steps):
        some = batches()[step * together : (step + 1) * together]

        def closure(some: list[tuple[Tensor, Tensor]] = some) -> Tensor:
            optimizer.zero_grad()
            loss = torch.stack([F.cross_entropy(plain.body(x), y) for x, y in some]).mean()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        schedule.step()
    assert max(apart(mine, plain)) < 1e-12
    assert min(apart(mine, Net())) > 1e-3


def test_readings_are_what_measure_says_at_that_point(tmp_path: Path) -> None:
    model = Net()
    objective = sl.Objective(model.body, data(), F.cross_entropy)
    watch = training.Watch(objective, ["lambda_max"], every=2, least=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    points = {0: objective.params}

    class Kept(list):
        def append(self, moment: Any) -> None:
            held = model.body.named_parameters()
            points[moment.step] = {name: p.detach().clone() for name, p in held}
            super().append(moment)

    watch.moments = Kept()
    trainer = made(
        *(model, tmp_path, optimizer),
        plain=True,
        max_steps=5,
        callbacks=[watch_callback(watch, module=lambda model: model.get_submodule("body"))],
    )
    trainer.train()
    assert [moment.step for moment in watch.moments] == [0, 2, 4, 5]
    assert [moment.rate for moment in watch.moments] == pytest.approx(
        [0.2, 0.2 * 0.9, 0.2 * 0.9**3, 0.2 * 0.9**4]
    )
    for moment in watch.moments:
        want = sl.measure(objective.at(points[moment.step]), ["lambda_max"])["lambda_max"]
        assert moment["lambda_max"].estimate.value == pytest.approx(want.value, rel=1e-6)
    logged = [
        (e["step"], e["watch/lambda_max"]) for e in trainer.state.log_history if "watch/loss" in e
    ]
    assert logged == [(m.step, m["lambda_max"].estimate.value) for m in watch.moments]


def test_what_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    trainer = made(model, tmp_path, torch.optim.SGD(model.parameters(), lr=0.1), max_steps=1)
    with pytest.raises(sl.SpiritlevelError, match="steps by SGD: give it a SAM"):
        trainer.train()
    with pytest.raises(sl.SpiritlevelError, match="trainer is a int; give a class"):
        sam_trainer(3)  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="watch is a str; give a spiritlevel"):
        watch_callback("watch")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(sl.SpiritlevelError, match="pip install transformers accelerate"):
        sam_trainer()
