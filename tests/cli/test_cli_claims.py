"""spiritlevel claims: names, files, mistakes, interruption and a claim that does not hold."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli import app
from spiritlevel.theorems import Finding, Setting

MINE = ("--model", "mine:net", "--data", "mine:data")
CHEAP = ("any_labels", "flat_memorizer")  # without a trained net


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["claims", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout + result.stderr


@functools.cache
def memorizer() -> dict[str, Any]:
    return sl.CLAIMS["flat_memorizer"].construction(Setting())


@pytest.fixture(autouse=True)
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Challengers are trained for it, the same each time."""
    known = memorizer()
    replaced(monkeypatch, "flat_memorizer", construction=lambda _: known)


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, **parts: object) -> None:
    monkeypatch.setitem(sl.CLAIMS, name, replace(sl.CLAIMS[name], **parts))  # type: ignore[arg-type]


def test_claims_by_name_write_what_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*CHEAP)[0] == 0
    assert not list(tmp_path.iterdir())  # nothing unasked
    code, text = run(*CHEAP, "--json", "out.json", "-o", "claims.html")
    assert code == 0
    assert "2 of 2 hold on examples of their own" in text
    assert "written to  claims.html" in text
    page = (tmp_path / "claims.html").read_text(encoding="utf-8")
    assert "Shown on examples of their own." in page
    data = json.loads((tmp_path / "out.json").read_text())
    assert [claim["name"] for claim in data["rows"]] == list(CHEAP)
    assert data["holds"] is True


def test_the_table_fits_into_80_columns(tmp_path: Path) -> None:
    """One line for what was built and one for the number: nothing wraps."""
    _, text = run(*CHEAP, "-o", tmp_path / "c.html")
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split("  ")[0] == "claim, and its source"
    assert lines[1].startswith("any_labels ")
    assert lines[1].endswith("own")
    assert "fitted by 210 weights" in lines[2]
    assert lines[3].startswith("flat_memorizer ")


def test_one_on_a_users_model(mine: Path) -> None:
    """What is not about the model says so in the table, in JSON and on the page."""
    out = mine / "out.json"
    code, text = run("gradient_law", "any_labels", *MINE, "-o", mine / "page.html", "--json", out)
    assert code == 0
    assert "1 of 1 hold on Sequential, 43 parameters" in " ".join(text.split())
    assert "1 of 1 hold on examples of their own" in text
    signs = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line.strip()}
    assert (signs["gradient_law"], signs["any_labels"]) == ("yes", "own")
    law, labels = json.loads(out.read_text())["rows"]
    assert (law["about"], law["verdict"], law["holds"]) == ("network", "holds", True)
    assert (labels["about"], labels["verdict"], labels["holds"]) == ("example", "own example", None)
    assert labels["finding"]["holds"] is True
    page = (mine / "page.html").read_text(encoding="utf-8")
    assert "The claim holds on this network. One more was shown on an example of its own." in page


def test_an_example_that_fails_on_a_users_model_is_exit_code_1(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, "any_labels", check=lambda **_: Finding("error 2", {"error": 2.0}, False))
    code, text = run("any_labels", *MINE, "-o", mine / "page.html")
    assert code == 1
    assert "0 of 1 hold on examples of their own" in text


def test_the_list_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in sl.CLAIMS:
        replaced(monkeypatch, name, construction=pytest.fail)
    code, text = run("--list")
    assert code == 0
    assert all(name in text for name in sl.CLAIMS)
    assert sl.CLAIMS["reranking"].statement in " ".join(text.split())
    assert list(tmp_path.iterdir()) == []
    assert "reranking" not in run("any_labels", "--list")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flatness"], "no claim 'flatness'; there are: homogeneity, gradient_law"),
        (["--list", "flatness"], "no claim 'flatness'"),
        (["any_labels", "-o", "no/such/page.html"], "there is no folder no/such"),
        (["any_labels", "--json", "."], "--json is ., a folder"),
        (["any_labels", "--data", "mine:data"], "--data needs --model"),
        (["any_labels", "--device", "cpu"], "--device needs --model"),
        (["gradient_law", "--model", "nowhere:net"], "no module 'nowhere'"),
        (["gradient_law", "--model", "mine:net"], "--data is missing"),
        (["gradient_law", *MINE, "--weights", "none.pt"], "no file none.pt"),
    ],
)
def test_mistakes_get_one_clear_line(mine: Path, words: list[str], message: str) -> None:
    code, text = run(*words)
    assert code == 2
    assert message in " ".join(text.split())
    assert "Traceback" not in text


def test_a_claim_that_does_not_hold_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, "any_labels", check=lambda **_: Finding("error 2", {"error": 2.0}, False))
    code, text = run(*CHEAP, "-o", tmp_path / "c.html")
    assert code == 1
    assert "NO" in text
    assert "1 of 2 hold on examples of their own" in text
    assert "does not hold" in (tmp_path / "c.html").read_text(encoding="utf-8")


def stop(**_: object) -> Finding:
    raise KeyboardInterrupt


def stop_and_go_on(**_: object) -> Finding:
    """As an eigenvalue does that is interrupted and keeps what it has."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    return Finding("from half of the work", {}, False)


def stop_and_fail(**_: object) -> Finding:
    """As torch does when it is interrupted in a kernel of its own."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise RuntimeError("an operation failed") from error
    raise AssertionError("the signal was lost")


@pytest.mark.parametrize("check", [stop, stop_and_go_on, stop_and_fail])
def test_an_interruption_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: object
) -> None:
    before = signal.getsignal(signal.SIGINT)
    replaced(monkeypatch, "flat_memorizer", check=check)
    out = tmp_path / "part.json"
    code, text = run(*CHEAP, "radial_map", "-o", tmp_path / "c.html", "--json", out)
    assert code == 0
    assert "interrupted: 1 of 3 claims were done" in text
    data = json.loads(out.read_text())
    assert [claim["name"] for claim in data["rows"]] == ["any_labels"]
    assert data["provenance"]["interrupted"] == "1 of 3 claims were done"
    assert "Interrupted: 1 of 3" in (tmp_path / "c.html").read_text(encoding="utf-8")
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupted_before_the_first_is_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, "any_labels", check=stop)
    code, text = run("any_labels", "-o", tmp_path / "c.html")
    assert code == 130
    assert "interrupted" in text
    assert not (tmp_path / "c.html").exists()


def test_long_claims_run_with_an_option_and_are_marked_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sl.CLAIMS):
        if name not in ("any_labels", "dense_solutions"):
            monkeypatch.delitem(sl.CLAIMS, name)
    quick = {"construction": lambda _: {}, "check": lambda: Finding("1", {}, True), "figure": None}
    replaced(monkeypatch, "dense_solutions", **quick)
    listed = " ".join(run("--list")[1].split())
    assert "a larger local entropy. (long: takes minutes)" in listed
    assert listed.count("(long: takes minutes)") == 1
    code, text = run("-o", tmp_path / "c.html")
    assert code == 0
    assert "1 of 1 hold on examples of their own" in text
    note = "not run, since they take minutes: dense_solutions"
    assert note in text
    assert note in (tmp_path / "c.html").read_text(encoding="utf-8")
    code, text = run("--long", "-o", tmp_path / "c.html")
    assert code == 0
    assert "2 of 2 hold on examples of their own" in text
    assert note not in text
    code, text = run("--long", "any_labels")
    assert code == 2
    assert "--long runs all claims: leave it out" in " ".join(text.split())
