"""spiritlevel train: the default and a user's network, files, resumption and mistakes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel import training
from spiritlevel.base.tensors import generator
from spiritlevel.cli import app
from spiritlevel.objective.default import digits, fresh_net
from spiritlevel.results.history import History
from spiritlevel.training.naming import OPTIMIZERS, SCHEDULES, Subject, optimizer_named

MINE = ("--model", "mine:net", "--data", "mine:data", "--watch", "none")


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train", *map(str, words)], env={"COLUMNS": "120"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def history(path: Path) -> History:
    found = sl.load(path)
    assert isinstance(found, History)
    return found


def test_the_default_is_what_fit_makes_of_the_fresh_net(tmp_path: Path) -> None:
    out, weights, kept = (tmp_path / name for name in ("a.json", "a.safetensors", "a.pt"))
    words = ["--optimizer", "adam", "--epochs", "2", "--watch", "none", "--schedule", "cosine"]
    words += ["--json", out, "--weights-out", weights, "--checkpoint", kept, "--seed", "3"]
    code, text = run(*words)
    assert code == 0
    assert "written to" in text
    net = fresh_net(generator(3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    want = training.fit(net, digits(3)[0], F.cross_entropy, optimizer, 2, seed=3, schedule=schedule)
    held = load_file(weights)
    assert all(torch.equal(held[name], p) for name, p in net.state_dict().items())
    first = history(out)
    assert [e.loss for e in first.epochs] == [e.loss for e in want.epochs]
    assert run(*words)[0] == 0  # from the checkpoint, at once
    assert history(out) == first


def test_a_users_network_stops_at_a_loss_and_has_a_page(mine: Path) -> None:
    words = (*MINE, "--stop", "0.9", "--epochs", "99", "--lr", "0.2")
    code, text = run(*words, "--json", mine / "a.json", "-o", mine / "a.html")
    assert code == 0, text
    found = history(mine / "a.json")
    last = found.epochs[-1].full
    assert last is not None
    assert len(found.epochs) < 99
    assert last <= 0.9
    assert found.provenance["stopped"] == f"at a training loss of {last:.4g}"
    assert "The course of a training" in (mine / "a.html").read_text(encoding="utf-8")


def test_other_parameters_stay_as_they_are(mine: Path) -> None:
    weights = mine / "a.safetensors"
    assert run(*MINE, "--params", "2.*", "--epochs", "1", "--weights-out", weights)[0] == 0
    held, before = load_file(weights), importlib.import_module("mine").net().state_dict()
    same = {name for name in before if torch.equal(held[name], before[name])}
    assert same == {"0.weight", "0.bias"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_begins_at_the_rate(mine: Path, schedule: str) -> None:
    words = ("--schedule", schedule, "--lr", "0.25", "--epochs", "8", "--json", mine / "a.json")
    assert run(*MINE, *words)[0] == 0
    rates = [epoch.rate for epoch in history(mine / "a.json").epochs]
    assert rates[0] == 0.25
    assert (len(set(rates)) == 1) == (schedule == "constant")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss_of_a_small_net(name: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    x = torch.randn(48, 4, generator=generator(1))
    data = (x, x[:, :3].argmax(1))
    objective = sl.Objective(net, data, F.cross_entropy)
    made = optimizer_named(name, Subject(net, lambda: objective, 0))
    found = training.fit(net, data, F.cross_entropy, made, 12, batch_size=16, stop=0.0)
    last = found.epochs[-1].full
    assert last is not None
    assert last < 0.95 * objective.value()


def test_it_is_watched(mine: Path) -> None:
    words = ("--watch", "hessian_trace,lambda_max", "--every", "4", "--epochs", "3", "--lr", "0.1")
    code, text = run(*MINE[:4], *words, "--json", mine / "a.json", "--weights-out", mine / "a.pt")
    assert code == 0, text
    found = history(mine / "a.json")
    assert [moment.step for moment in found] == [0, 4, 8, 9]
    objective = importlib.import_module("mine").objective()
    held = load_file(mine / "a.pt")
    want = sl.measure(objective.at({name: held[name] for name in objective.params}), ["lambda_max"])
    last = found["step 9"]["lambda_max"].estimate
    assert last.value == pytest.approx(want["lambda_max"].value, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--optimizer", "foo"), "--optimizer is 'foo'; there are: sgd, adam, adamw, sam"),
        (("--optimizer", "adam", "--rho", "1"), "--rho is 1, but adam has none; those that do"),
        (("--schedule", "moon"), "--schedule is 'moon'; there are: constant, cosine"),
        (("--data", "mine:data"), "--data needs --model"),
        (("--heads", "0"), "--heads does not apply"),
        (("--weights-out", "no/such/a.pt"), "--weights-out is no/such/a.pt; there is no folder"),
        (("--checkpoint", "no/such/a.pt"), "checkpoint='no/such/a.pt': give a file in a folder"),
        (("--model", "mine:net"), "--data is missing"),
        (("--model", "mine:objective", "--seed", "0"), "--model made no torch.nn.Module"),
        ((*MINE[:2], "--data", "mine:empty"), "data is empty"),
        (("--model", "mine:nan", "--data", "mine:data"), "the loss is nan at step 1"),
    ],
)
def test_mistakes_in_one_line(mine: Path, words: tuple[str, ...], said: str) -> None:
    code, text = run(*words, *(() if "--watch" in words else ("--watch", "none")))
    assert code == 2
    assert said in text
    assert "Traceback" not in text
