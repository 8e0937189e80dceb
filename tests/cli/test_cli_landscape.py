"""spiritlevel landscape: pictures of the default and of a user's network, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli import app

MINE = ("--model", "mine:net", "--data", "mine:data")


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["landscape", *map(str, words)], env={"COLUMNS": "120"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def test_the_default_is_seen_from_five_points_of_its_orbit(tmp_path: Path) -> None:
    code, text = run("--steps", "5", "-o", tmp_path / "a.html", "--json", tmp_path / "a.json")
    assert code == 0
    found = sl.load(tmp_path / "a.json")
    assert isinstance(found, sl.Surface)
    assert [sheet.name for sheet in found] == [
        "as given",
        *(f"rescaled, {n}%" for n in (25, 50, 75, 100)),
    ]
    assert found.centre() == pytest.approx(sl.default_objective().value())
    assert all(s.certificate is not None and s.certificate.holds for s in found.sheets[1:])
    assert "rescaled, 100% 5 x 5" in text
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "The same network, the same predictions" in page


def test_every_file_of_a_users_plane(mine: Path) -> None:
    names = {f"--{kind}": mine / f"a.{kind}" for kind in ("npz", "vtk", "csv")}
    words = [word for pair in names.items() for word in pair]
    picture = mine / "a.svg"
    code, text = run(*MINE, "--steps", "3", "--kind", "orbit", *words, "--picture", picture)
    assert code == 0
    with np.load(mine / "a.npz") as arrays:
        values = arrays["values_0"]
    assert values.shape == (3, 3)
    held = (mine / "a.vtk").read_text().split()
    start = held.index("LOOKUP_TABLE") + 2
    np.testing.assert_array_equal(np.array(held[start : start + 9], float), values.ravel())
    assert (mine / "a.csv").read_text().startswith("sheet,x,y,loss,error,accuracy\n")
    assert picture.read_text().startswith("<?xml")
    for path in (*names.values(), picture):
        assert path.name in text


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (("--draw", "line", "--kind", "hessian", "--steps", "5"), "line", "flat radius"),
        (("--draw", "spectra", "--steps", "4", "--layers"), "spectra", "as given"),
        (("--draw", "convexity", "--steps", "3"), "surface", "3 x 3"),
    ],
)
def test_other_pictures(mine: Path, words: tuple[str, ...], kind: str, said: str) -> None:
    code, text = run(*MINE, *words, "--json", mine / "a.json")
    assert code == 0
    assert json.loads((mine / "a.json").read_text())["kind"] == kind
    assert said in text


def test_a_journal_is_gone_on_with(mine: Path) -> None:
    words = (*MINE, "--steps", "3", "--journal", mine / "a.jsonl", "--json", mine / "a.json")
    assert run(*words)[0] == 0
    first, held = (mine / "a.json").read_text(), (mine / "a.jsonl").read_bytes()
    assert run(*words)[0] == 0
    assert sl.load(mine / "a.json").records() == _records(first)
    assert (mine / "a.jsonl").read_bytes() == held


def _records(text: str) -> list[dict[str, object]]:
    return sl.Result.from_dict(json.loads(text)).records()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "4"), "steps=4: give an odd number"),
        (("--span", "0"), "span=0.0: give a positive number"),
        (("--draw", "line", "--vtk", "a.vtk"), "--vtk takes a plane"),
        (("--picture", "a.gif"), "--picture is a.gif; name a .svg, .pdf or .png file"),
        (
            ("--draw", "spectra", "--journal", "a"),
            "--journal goes with --draw plane or --draw line: leave it out",
        ),
        (("--draw", "line", "--orbit", "2"), "--orbit goes with --draw plane or --draw spectra"),
        (("--draw", "convexity", "--refine", "1"), "--refine goes with"),
        (("--draw", "spectra", "--kind", "orbit"), "--kind goes with"),
        (("--layers",), "--layers goes with --draw spectra"),
        (("--statistics", "recomputed"), 'statistics="recomputed" needs BatchNorm'),
        (("-o", "nowhere/a.html"), "there is no folder nowhere"),
        (("--npz", "nowhere/a.npz"), "there is no folder nowhere"),
    ],
)
def test_mistakes_in_one_line(mine: Path, words: tuple[str, ...], said: str) -> None:
    code, text = run(*MINE, *words)
    assert code == 2
    assert said in text
    assert "Traceback" not in text
