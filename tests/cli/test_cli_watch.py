"""spiritlevel watch: a training of the default, a user's checkpoints, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli import app
from spiritlevel.results.history import History

MINE = ("--model", "mine:net", "--data", "mine:data")


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["watch", *map(str, words)], env={"COLUMNS": "80"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def read(path: Path) -> History:
    found = sl.load(path)
    assert isinstance(found, History)
    return found


def test_the_default_is_trained_and_watched(tmp_path: Path) -> None:
    """Gradient descent goes to its edge: after 200 steps the largest eigenvalue is 2 / rate."""
    files = ("-o", tmp_path / "h.html", "--json", tmp_path / "h.json", "--csv", tmp_path / "h.csv")
    code, text = run("--only", "lambda_max", "--no-least", "--tol", "0.02", *files)
    assert code == 0
    found = read(tmp_path / "h.json")
    assert [m.step for m in found] == [0, 100, 200, 300, 400]
    assert found["step 400"].loss < 0.05 * found["step 0"].loss
    share = found["step 200"].edge_share
    assert share is not None
    assert share.value == pytest.approx(1, abs=0.05)
    assert "step 400" in text
    assert found.headline.split(";")[0] in " ".join(text.split())
    assert (tmp_path / "h.html").read_text(encoding="utf-8").count("data-moment=") == 5
    assert (tmp_path / "h.csv").read_text(encoding="utf-8").count("lambda_max") == 5


def test_checkpoints_of_a_users_model_are_put_in_order(mine: Path) -> None:
    import mine as module  # type: ignore[import-not-found]

    torch.manual_seed(0)
    objective = sl.Objective(module.net(), module.data(), torch.nn.functional.cross_entropy)
    group = sl.symmetries(objective)
    for step, size in ((20, 1.0), (100, 2.0), (3, 0.0)):
        t = torch.full((group.dim,), size, dtype=torch.float64)
        save_file(group.apply(objective, t).params, mine / f"w-{step}.safetensors")
    names = sorted(mine.glob("w-*.safetensors"))
    only = ("--only", "hessian_trace,gradient_norm", "--dtype", "float64", "--rate", "0.1")
    code, text = run(*names, *MINE, *only, "--json", mine / "h.json", "--seed", "3")
    assert code == 0, text
    found = read(mine / "h.json")
    assert [m.name for m in found] == ["w-3", "w-20", "w-100"]
    assert [m.edge for m in found] == [20.0] * 3
    assert found.provenance.get("watch_seed") == 3
    there = objective.to(torch.float64)
    least = sl.orbit.minimum(there, group, norm="trace").value
    bottoms = [r.least for _, r in found.readings("hessian_trace")]
    assert [b.value for b in bottoms if b is not None] == pytest.approx([least] * 3, rel=1e-3)
    assert "all of it was coordinates" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (MINE, "watch needs checkpoints of --model"),
        (("--data", "mine:data"), "--data needs --model"),
        (("--only", "nothing"), "unknown measure 'nothing'"),
        (("--rate", "0"), "--rate=0.0: give a positive number"),
        (("nowhere.pt", *MINE), "there is no such file"),
        (("-o", "nowhere/h.html"), "there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_line(mine: Path, words: tuple[str, ...], message: str) -> None:
    code, text = run(*words)
    assert code == 2
    assert message in text
    assert "Traceback" not in text
