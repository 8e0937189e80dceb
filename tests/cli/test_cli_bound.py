"""spiritlevel bound: the default and a user's network, files, resumption and mistakes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli import app
from spiritlevel.objective.default import HALVES, digits, halves, halves_training
from spiritlevel.results.bound import Bounds

QUICK = ("--epochs", "2", "--draws", "10")
MINE = ("--model", "mine:net", "--data", "mine:data", *QUICK)


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bound", *map(str, words)], env={"COLUMNS": "100"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def bounds(path: Path) -> Bounds:
    found = sl.load(path)
    assert isinstance(found, Bounds)
    return found


def values(found: Bounds) -> list[tuple[str, str, float]]:
    return [(row.name, row.point, row.bound.value) for row in found]


def test_the_default_is_a_net_that_tells_halves_apart(tmp_path: Path) -> None:
    out, kept = tmp_path / "a.json", tmp_path / "kept"
    words = [*QUICK, "--only", "pac_bayes,vc", "--seed", "3", "--json", out, "--checkpoint", kept]
    code, text = run(*words)
    assert code == 0, text
    known, (train, test) = halves_training(3), halves(3)
    objective = sl.Objective(known.net, train, F.cross_entropy)
    asked = {"init": known.init, "test": test, "epochs": 2, "draws": 10, "seed": 3}
    want = sl.bounds.survey(objective, only=["pac_bayes", "vc"], **asked)
    first = bounds(out)
    assert values(first) == values(want)
    assert first.origin == want.origin
    assert first.headline in text
    assert run(*words)[0] == 0  # from the checkpoint
    assert values(bounds(out)) == values(first)


def test_the_halves_are_those_of_the_digits() -> None:
    (x, y), (test_x, test_y) = halves(0)
    (same_x, digit), (same_test, test_digit) = digits(0)
    assert torch.equal(x, same_x)
    assert torch.equal(test_x, same_test)
    assert torch.equal(y, digit.div(5, rounding_mode="floor"))
    assert torch.equal(test_y, test_digit.div(5, rounding_mode="floor"))
    net = halves_training(0).net
    sizes = [layer.in_features for layer in net if isinstance(layer, torch.nn.Linear)]
    assert (*sizes, 2) == HALVES
    assert float((net(x).argmax(1) == y).double().mean()) > 0.99


def test_a_users_network_with_all_files(mine: Path) -> None:
    before = mine / "before.pt"
    torch.save(importlib.import_module("mine").net().state_dict(), before)
    words = (*MINE, "--init", before, "--test", "mine:data", "--delta", "0.1", "--no-orbit")
    files = ("--json", mine / "a.json", "--csv", mine / "a.csv", "-o", mine / "a.html")
    code, text = run(*words, *files)
    assert code == 0, text
    found = bounds(mine / "a.json")
    assert {row.bound.delta for row in found} == {0.1}
    assert {row.point for row in found} == {"here"}
    assert found.origin is not None
    assert found.origin.prior == "the weights before training"
    assert found.origin.test is not None
    assert found.origin.error.draws == 10
    assert found.headline in text
    assert "What is guaranteed" in (mine / "a.html").read_text(encoding="utf-8")
    assert len((mine / "a.csv").read_text().splitlines()) == 1 + len(found.rows)


def test_without_the_weights_before_training_the_prior_is_centred_at_zero(mine: Path) -> None:
    code, text = run(*MINE, "--only", "pac_bayes", "--json", mine / "a.json")
    assert code == 0, text
    origin = bounds(mine / "a.json").origin
    assert origin is not None
    assert origin.prior == "zero"
    assert {row.point for row in bounds(mine / "a.json")} == {"here", "orbit"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "magic"), "only='magic'"),
        (("--delta", "1"), "delta=1"),
        (("--delta", "0"), "delta=0"),
        (("--share", "1"), "share=1"),
        (("--share", "0.5"), "give init"),
        (("--prior", "init"), "init"),
        (("--draws", "0"), "--draws"),
        (("--prior", "moon"), "--prior"),
        (("--init", "no/such.pt"), "no/such.pt"),
        (("--json", "no/such/a.json"), "--json is no/such/a.json; there is no folder"),
        (("--loss", "mine:my_loss"), "classifier"),
    ],
)
def test_mistakes_in_one_line(mine: Path, words: tuple[str, ...], said: str) -> None:
    code, text = run(*MINE, *words, *(() if "--only" in words else ("--only", "pac_bayes")))
    assert code == 2, text
    assert said in text
    assert "Traceback" not in text


@pytest.mark.parametrize("option", ["--data", "--init", "--test", "--weights", "--loss"])
def test_what_needs_a_model(option: str) -> None:
    code, text = run(option, "mine:data")
    assert code == 2
    assert f"{option} needs --model" in text
