"""What was wrong in fit and its neighbours once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset

import spiritlevel as sl
from spiritlevel.base.estimate import Estimate
from spiritlevel.results.course import edge_text
from spiritlevel.training import SAM, EntropySGD, ReplicatedSGD, Watch, fit
from spiritlevel.training.series import numbered

DRAWS = torch.Generator().manual_seed(1)
X = torch.randn(64, 4, generator=DRAWS)
Y = X[:, :3].argmax(1)


def net(activation: type[nn.Module] = nn.ReLU) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 3))


def trained(epochs: int, made: Callable[..., Any] = SGD, data: Any = (X, Y), **options: Any) -> Any:
    model = options.pop("model", None) or net()
    loss = options.pop("loss", F.cross_entropy)
    rates = options.pop("rates", {"lr": 0.5})
    return fit(model, data, loss, made(model.parameters(), **rates), epochs, **options)


def test_a_checkpoint_goes_on_under_another_rule_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "s.pt"
    first = trained(50, stop=0.9, checkpoint=path)
    assert first.epochs[-1].full <= 0.9
    again = trained(50, stop=0.5, checkpoint=path)
    assert again.epochs[-1].full <= 0.5
    assert again.epochs[: len(first.epochs)] == first.epochs
    assert again.epochs[-2].full > 0.5
    assert len(trained(len(again.epochs) + 3, checkpoint=path).epochs) == len(again.epochs) + 3


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"data": TensorDataset(X, (Y + 1) % 3)}, "the first batch"),
        ({"model": net(nn.Tanh)}, "the network"),
        ({"loss": lambda a, b: F.cross_entropy(a, b, label_smoothing=0.5)}, "the loss"),
        ({"rates": {"lr": 0.5, "every": 5}}, "every"),
        ({"rates": {"lr": 0.5, "norm": float("inf")}}, "norm"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    other: dict[str, Any], what: str, tmp_path: Path
) -> None:
    same: dict[str, Any] = {"data": TensorDataset(X, Y), "checkpoint": tmp_path / "d.pt"}
    trained(2, SAM, **same)
    with pytest.raises(sl.SpiritlevelError, match=f"of another run: {what} is"):
        trained(3, SAM, **{**same, **other})


@pytest.mark.parametrize("content", [b"hello world\n" * 5, b".", b""])
def test_a_file_that_is_no_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    path.write_bytes(content)
    with pytest.raises(sl.SpiritlevelError, match="is no checkpoint of fit"):
        trained(1, checkpoint=path)


@pytest.mark.parametrize("path", ["/proc/x.pt", "n" * 300, "a\0b"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(path: str) -> None:
    model = net()
    before = model[0].weight.clone()
    with pytest.raises(sl.SpiritlevelError, match="checkpoint"):
        trained(1, model=model, checkpoint=path)
    assert torch.equal(model[0].weight, before)


def test_replicas_leave_frozen_layers_alone() -> None:
    model = net()
    for weight in model[0].parameters():
        weight.requires_grad_(False)
    before, seen = model[0].weight.clone(), []
    model[0].register_forward_hook(lambda layer, *_: seen.append(torch.equal(layer.weight, before)))
    trained(2, ReplicatedSGD, model=model, rates={"lr": 0.1, "spread": 0.1})
    assert all(seen)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("made", [ReplicatedSGD, EntropySGD])
def test_a_loss_that_is_no_number_undoes_the_step_and_names_its_batch(made: Any) -> None:
    model, x = net(), X.clone()
    x[20] = float("nan")
    before = [w.clone() for w in model.parameters()]
    parts = [(x[a : a + 16], Y[a : a + 16]) for a in (0, 16, 32, 48)]
    with pytest.raises(sl.SpiritlevelError, match="at step 1, batch 2 of epoch 1"):
        trained(1, made, parts, model=model, rates={"lr": 0.1})
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_losses_of_an_epoch_are_those_before_the_step() -> None:
    model = net()
    parts = [(X[a : a + 16], Y[a : a + 16]) for a in (0, 16, 32, 48)]
    first = float(F.cross_entropy(model(X[:16]), Y[:16]).detach())
    rates = {"lr": 1.0, "inner": 4}
    found = trained(1, EntropySGD, parts, model=model, rates=rates)
    assert found.epochs[0].loss == pytest.approx(first, rel=1e-6)


def test_a_watch_sees_one_training() -> None:
    model = net()
    watch = Watch(sl.Objective(model, (X, Y), F.cross_entropy), ["loss"], least=False)
    trained(1, model=model, watch=watch)
    with pytest.raises(sl.SpiritlevelError, match="watch has seen another training; give a new"):
        trained(1, watch=watch)


def test_several_rates_have_no_edge() -> None:
    model = net()
    watch = Watch(sl.Objective(model, (X, Y), F.cross_entropy), ["lambda_max"], least=False)
    groups = [{"params": model[0].parameters(), "lr": 1e-5}, {"params": model[2].parameters()}]
    found = fit(model, (X, Y), F.cross_entropy, SGD(groups, lr=1.0), 1, watch=watch)
    assert [moment.edge for moment in found.moments] == [None] * len(found.moments)


def test_what_is_open_at_the_edge_is_said() -> None:
    looks = [("step 0", Estimate(1.2, stderr=0.3)), ("step 5", Estimate(1.3, stderr=0.3))]
    assert "at 0 of 2 looks (undecided at 2 more)" in edge_text(looks)
    sure = [("step 0", Estimate(1.2)), ("step 5", Estimate(0.9))]
    assert "at 1 of 2 looks;" in edge_text(sure)


def test_a_plateau_judges_epochs() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.5)
    rule: Any = ReduceLROnPlateau(optimizer)
    with pytest.raises(sl.SpiritlevelError, match=r'ReduceLROnPlateau, .* give "epoch"'):
        fit(
            *(model, (X, Y), F.cross_entropy, optimizer, 2),
            **{"schedule": rule, "schedule_every": "step"},
        )


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(sl.SpiritlevelError, match="empty Dataset"):
        trained(1, data=TensorDataset(X[:0], Y[:0]))


def test_a_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(sl.SpiritlevelError, match="lr=nan"):
        SAM(net().parameters(), lr=float("nan"))


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["epoch=0-val_loss=0.90", "epoch=1-val_loss=0.50"], [0, 1]),
        (["epoch=0-step=100", "epoch=1-step=200", "epoch=1-step=200-v1"], [0, 1, 2]),
        (["net_20", "net_3"], [3, 20]),
        (["checkpoint-500", "checkpoint-1000"], [500, 1000]),
        (["best-0.9", "last-0.5"], [0, 1]),
    ],
)
def test_steps_are_read_from_names(names: list[str], steps: list[int]) -> None:
    given: dict[str, Tensor] = {name: torch.zeros(1) for name in names}
    assert [step for step, _ in numbered(given).values()] == steps
