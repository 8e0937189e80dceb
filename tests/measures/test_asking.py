"""Measures by name, pattern, family and with parameters; and the catalogue."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli.app import app
from spiritlevel.cli.options import names
from spiritlevel.measures.asking import asked, of_family
from spiritlevel.measures.catalogue import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "measures.md"


@pytest.fixture(scope="module")
def net() -> sl.Objective:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    data = torch.randn(30, 4, dtype=torch.float64), torch.arange(30) % 3
    return sl.Objective(model, data, F.cross_entropy)


def test_parameters_are_those_of_the_measure(net: sl.Objective, tmp_path: Path) -> None:
    texts = ["keskar(eps=5e-4)", "keskar", "expected_sharpness(sigma=0.02)"]
    table = sl.measure(net, texts)
    assert [row.name for row in table.rows] == [
        "keskar(eps=0.0005)", "keskar", "expected_sharpness(sigma=0.02)",
    ]  # fmt: skip
    assert table.rows[0].title == "Keskar sharpness (eps=0.0005)"
    small = sl.MEASURES["keskar"](net, eps=5e-4)
    assert table["keskar(eps=0.0005)"].value == small.value
    assert table["keskar"].value == sl.MEASURES["keskar"](net).value > small.value
    wide = sl.MEASURES["expected_sharpness"](net, sigma=0.02)
    assert table["expected_sharpness(sigma=0.02)"].value == wide.value
    table.to_json(tmp_path / "table.json")
    assert sl.load(tmp_path / "table.json") == table


def test_patterns_are_spelled_out(net: sl.Objective) -> None:
    assert [one.name for one in asked(["orbit_*", "loss", "orbit_trace"])] == [
        *(name for name in sl.MEASURES if name.startswith("orbit_")), "loss",
    ]  # fmt: skip
    audit = sl.audit(net, ["los?", "gradient_*rm"], way=False)
    assert [row.name for row in audit.rows] == ["loss", "gradient_norm"]
    # a pattern leaves out what is several numbers where one is wanted; its own name is refused
    rows = sl.audit(net, ["*er_traces", "hessian_tr*"], way=False).rows
    assert [row.name for row in rows] == ["hessian_trace"]
    with pytest.raises(sl.SpiritlevelError, match="layer_traces is several numbers"):
        sl.audit(net, ["layer_traces"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keskar(eps=-1.0)", "eps=-1.0"),
        ("keskar(rho=1.0)", "the parameter of Keskar sharpness='rho'"),
        ("keskar(1e-3)", "cannot read 'keskar\\(1e-3\\)'"),
        ("keskar(eps=print(3))", "cannot read"),
        ("keskar(**{'eps': 1})", "cannot read"),
        ("keskar(eps=1e-3", "cannot read"),
        ("(keskar)", "cannot read"),
        ("nothing(eps=1e-3)", "unknown measure 'nothing'"),
        ("nothing_*", "unknown measure 'nothing_\\*'"),
    ],
)
def test_what_cannot_be_asked_for(net: sl.Objective, text: str, message: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        sl.measure(net, [text])


def test_families() -> None:
    noise = [name for name, entry in sl.MEASURES.items() if entry.family == "noise"]
    assert of_family(["noise"]) == noise
    assert {"expected_sharpness", "adaptive_average"} <= set(noise)
    with pytest.raises(sl.SpiritlevelError, match=r"family='noises'.*'curvature'"):
        of_family(["noises"])


def test_commas_between_brackets_separate_parameters() -> None:
    assert names("loss, keskar(eps=5e-4),a(b=1, c=2) ,d") == [
        "loss", "keskar(eps=5e-4)", "a(b=1, c=2)", "d",
    ]  # fmt: skip


def test_the_catalogue_has_every_measure_once() -> None:
    def printed(width: int, *names: str) -> list[str]:
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(catalogue(list(names) or None))
        return console.export_text().splitlines()

    every = printed(400)
    for name, entry in sl.MEASURES.items():
        [place] = [i for i, line in enumerate(every) if line.startswith(f"  {name} ")]
        assert entry.title in every[place]
        assert entry.cost in every[place + 1]
        assert all(word in every[place + 1] for word in entry.reference.split()[:1])
    some = printed(80, "loss", "keskar")
    assert some[:2] == ["loss", "  loss    D P      loss"]
    assert "  keskar  P        Keskar sharpness" in some
    assert all(len(line) <= 80 for line in printed(80))


def test_the_command_lists_and_chooses() -> None:
    def run(*words: str) -> str:
        found = CliRunner().invoke(app, ["measure", *words], terminal_width=200)
        return found.output

    listed = " ".join(run("--list", "--family", "noise").split())
    assert "expected_sharpness" in listed
    assert "keskar " not in listed
    assert "keskar" in run("--list")
    assert "exclude each other" in run("--all", "--family", "noise")
    table = run("--only", "keskar(eps=5e-4),loss")
    assert "(eps=0.0005)" in table
    assert "loss" in run("--family", "loss", "--dry-run")


def test_every_measure_says_how_to_read_it() -> None:
    built_in = [e for e in sl.MEASURES.values() if e.family != "own"]
    assert all(e.is_sharpness or e.reading for e in built_in)


def test_the_page_is_that_of_the_registry() -> None:
    words = [sys.executable, "-m", "spiritlevel.measures.catalogue"]
    made = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    assert made == PAGE.read_text(encoding="utf-8")
