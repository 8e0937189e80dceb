"""spiritlevel audit and compare: files, mistakes, interruption, and nonsense of every kind."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.base.estimate import Estimate
from spiritlevel.cli import app
from spiritlevel.measures.base import Measure

MINE = ("--model", "mine:net", "--data", "mine:data")


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


@pytest.fixture
def checkpoints(mine: Path) -> tuple[Path, Path]:
    """Two nets that are one network, the second with a sharper minimum."""
    import mine as user  # type: ignore[import-not-found]

    net = user.net()
    save_file(net.state_dict(), mine / "a.safetensors")
    twin = sl.sharpen(user.objective(), target=1e4).objective
    save_file({k: v.contiguous() for k, v in twin.params.items()}, mine / "b.safetensors")
    return mine / "a.safetensors", mine / "b.safetensors"


def test_an_audit_of_a_users_net_writes_all_three_files(checkpoints: tuple[Path, Path]) -> None:
    folder = checkpoints[0].parent
    code, text = run(
        *("audit", *MINE, "--weights", checkpoints[1], "-o", folder / "report.html"),
        *("--json", folder / "a.json", "--csv", folder / "a.csv"),
    )
    assert code == 0
    assert "rescalings are taken away" in text
    data = json.loads((folder / "a.json").read_text())
    assert data["schema"] == 4
    with (folder / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [row["name"] for row in data["rows"]]
    page = (folder / "report.html").read_text()
    assert data["headline"] in page
    assert "Audit of Sequential" in page


def test_a_net_against_its_sharpened_twin(checkpoints: tuple[Path, Path]) -> None:
    out = checkpoints[0].parent / "c.json"
    code, text = run(
        "compare", *checkpoints, *MINE, "--json", out, "--csv", out.with_suffix(".csv")
    )
    assert code == 0
    assert "b is sharper only in these coordinates" in text
    pairs = {pair["name"]: pair for pair in json.loads(out.read_text())["pairs"]}
    assert pairs["hessian_spectral"]["ratio"] > 100
    assert pairs["orbit_trace"]["answer"] == "equal"


def test_the_default_comparison() -> None:
    code, text = run("compare", "--only", "hessian_spectral,orbit_trace")
    assert code == 0
    assert "batch 16 batch 256" in text
    assert "batch 256 is sharper, and it survives rescaling" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "--model", "nowhere:net"], "--model: no module 'nowhere'"),
        (["audit", "--model", "mine:broken", "--data", "mine:data"], "does not work"),
        (["audit", "--model", "mine:number", "--data", "mine:data"], "model is a int"),
        (["audit", "--model", "mine:net", "--data", "mine:empty"], "data is empty"),
        (["audit", "--model", "mine:net", "--data", "mine:wrong_shape"], "shapes"),
        (["audit", "--model", "mine:nan", "--data", "mine:data"], "the loss is nan"),
        (["audit", *MINE, "--weights", "none.safetensors"], "no file none.safetensors"),
        (["audit", *MINE, "--weights", "whole.pt"], "which is not run; save model.state_dict()"),
        (["audit", *MINE, "--weights", "part.safetensors"], "does not fit the model"),
        (["audit", *MINE, "--weights", "shape.safetensors"], "does not fit the model"),
        (["audit", *MINE, "-o", "no/such/report.html"], "there is no folder no/such"),
        (["audit", *MINE, "--json", "."], "--json is ., a folder; name a file in it"),
        (["audit", *MINE, "--strength", "-1"], "strength=-1.0: give a positive number"),
        (["audit", *MINE, "--only", "layer_traces"], "is several numbers; choose others"),
        (["audit", *MINE, "--only", "sharp"], "unknown measure 'sharp'; give one of sl.MEASURES"),
        (["compare", "a.pt"], "a.pt needs --model, the factory of its module"),
        (["compare", "a.pt", *MINE], "compare needs at least two checkpoints"),
        (["compare", "a.pt", "a.pt", *MINE], "compare got the same checkpoint twice"),
        (["compare", "a.pt", "b.pt", *MINE], "no file a.pt"),
    ],
)
def test_mistakes_get_one_clear_line(mine: Path, words: list[str], message: str) -> None:
    import mine as user  # type: ignore[import-not-found]

    torch.save(user.net(), mine / "whole.pt")
    save_file({"0.weight": torch.zeros(5, 4)}, mine / "part.safetensors")
    bent = {**user.net().state_dict(), "0.weight": torch.zeros(2, 2)}
    save_file(bent, mine / "shape.safetensors")
    code, text = run(*words)
    assert code == 2
    assert message in text
    assert "Traceback" not in text


def test_an_interruption_writes_what_is_done(
    mine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(_: object) -> Estimate:
        raise KeyboardInterrupt

    monkeypatch.setitem(sl.MEASURES, "stop", Measure(stop, "stop"))
    out = mine / "part.json"
    code, text = run("audit", *MINE, "--only", "loss,stop,path_norm", "--json", out)
    assert code == 0
    assert "interrupted: 1 of 3 measures were done" in text
    assert [row["name"] for row in json.loads(out.read_text())["rows"]] == ["loss"]


NAMES = st.sampled_from(
    "mine:net mine:data mine:nan mine:empty mine:broken mine:number mine:my_loss mine:nothing "
    "mine : os:path nowhere:x mine:net:net a-b:c loss".split(" ")
)
JUNK = st.one_of(
    NAMES,
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8),
)
OPTIONS = st.sampled_from(
    "--model --data --loss --weights --only --dtype --device --seed --tol --strength --shape "
    "--mode --params --target --json --csv -o --nope".split()
)
WORDS = st.lists(st.one_of(st.tuples(OPTIONS, JUNK), st.tuples(JUNK)), max_size=4)


@settings(
    max_examples=80,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(["audit", "compare", "measure", "symmetries", "sharpen"]), WORDS)
def test_nonsense_never_shows_a_traceback(
    mine: Path,
    command: str,
    words: list[tuple[str, ...]],
) -> None:
    flat = [word for pair in words for word in pair]
    quick = ["--only", "loss"] if command in ("audit", "compare", "measure") else []
    first = [] if "--model" in flat else ["--model", "mine:net"]
    code, text = run(command, *first, *flat, *quick)
    assert code in (0, 2)
    assert "Traceback" not in text


@settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_broken_checkpoints_never_show_a_traceback(mine: Path, data: st.DataObject) -> None:
    """Random bytes, and headers (which are JSON) with bytes changed."""
    import mine as user  # type: ignore[import-not-found]

    good = mine / "good.safetensors"
    save_file(user.net().state_dict(), good)
    content = bytearray(good.read_bytes())
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 6))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    else:
        content = bytearray(data.draw(st.binary(max_size=200)))
    name = data.draw(st.sampled_from(["bad.safetensors", "bad.pt", "bad.ckpt"]))
    (mine / name).write_bytes(bytes(content))
    code, text = run("measure", *MINE, "--weights", mine / name, "--only", "loss")
    assert code in (0, 2)
    assert "Traceback" not in text


def test_help_names_every_command() -> None:
    code, text = run("--help")
    assert code == 0
    for command in ("audit", "claims", "compare", "measure", "symmetries", "sharpen"):
        assert command in text
    assert "torch" in sys.modules  # the tests import it; test_cli sees that help does not
