"""The documentation is executed: docstrings, the README's code, every example."""

from __future__ import annotations

import doctest
import math
import re
import runpy
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import spiritlevel
from spiritlevel.cli import app
from spiritlevel.results import result

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_docstring_of_the_package() -> None:
    found = doctest.testmod(spiritlevel)
    assert found.attempted >= 4
    assert found.failed == 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In names of their own; torch is not loaded again for each."""
    monkeypatch.chdir(tmp_path)
    known = set(spiritlevel.MEASURES)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        for name in set(spiritlevel.MEASURES) - known:
            del spiritlevel.MEASURES[name]
    shown = capsys.readouterr().out
    assert "trace" in shown or "rescalings" in shown
    assert "budget spent" not in shown


def smaller(block: str) -> str:
    """The same code with smaller numbers: it is to run, and nothing is said of what comes out."""
    for old, new in (("(10, 16)", "(4, 6)"), ("(16, 3)", "(6, 3)"), ("(500, 10)", "(60, 4)")):
        block = block.replace(old, new)
    return block.replace("(0, 3, (500,))", "(0, 3, (60,))")


def test_the_readme_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # it writes files
    code = [smaller(block) for block in blocks("python")]
    assert code != blocks("python")
    assert len(code) >= 3
    scope: dict[str, object] = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), scope)
    del spiritlevel.MEASURES["largest_weight"]
    assert float(scope["top"]) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_the_pages_of_the_docs_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # as from a clone
    monkeypatch.setattr(result, "KINDS", dict(result.KINDS))
    code = blocks("python", path.read_text(encoding="utf-8"))
    assert code
    module = types.ModuleType("page")  # dataclasses look their names up there
    monkeypatch.setitem(sys.modules, "page", module)
    for block in code:
        exec(compile(block, path.name, "exec"), vars(module))


@pytest.mark.parametrize(("command", "rows"), [("audit", 12), ("measure", 11)])
def test_the_readme_shows_the_output_of_the_command(command: str, rows: int) -> None:
    """The rows of the README are those that the command prints, value by value."""
    done = CliRunner().invoke(app, [command], env={"COLUMNS": "100"}, catch_exceptions=False)
    assert done.exit_code == 0
    shown = next(
        b for b in blocks("text") if re.match(rf"\$ spiritlevel {command}( -o report.html)?\n", b)
    )

    printed, promised = _values(done.stdout), _values(shown)
    assert set(promised) == set(printed)
    assert len(promised) == rows
    far = {
        name: (promised[name], printed[name])
        for name in promised
        if not _agree(promised[name], printed[name])
    }
    assert not far


def _values(text: str) -> dict[str, tuple[float, float]]:
    """The number behind each title, and the error behind that."""
    number = r"(-?\d[\d.]*(?:e[+-]?\d+)?)"
    rows = rf"^ *([A-Za-z][\w-]*(?: \S+)*?) {{2,}}(?:≥ )?{number}(?: +± {number})?"
    found = re.findall(rows, text, flags=re.MULTILINE)
    return {name: (float(value), float(error or 0)) for name, value, error in found}


def _agree(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Within their errors, three of them, and 2 %.

    Another processor sums in another order, and training amplifies it.
    """
    errors = 3 * math.hypot(one[1], other[1])
    return abs(one[0] - other[0]) <= errors + 0.02 * abs(one[0])


def test_numbers_that_differ_are_seen() -> None:
    table = "spectral norm   2.048    1.36\ntrace    9.25 ± 0.17   7.44\nrank  ≥ 1e-3"
    assert _values(table) == {
        "spectral norm": (2.048, 0.0),
        "trace": (9.25, 0.17),
        "rank": (1e-3, 0.0),
    }
    assert _agree((9.25, 0.17), (8.92, 0.26))
    assert not _agree((9.25, 0.0), (8.92, 0.0))
    assert not _agree((0.0, 0.0), (0.05, 0.0))


def test_users_are_told_of_every_public_name() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    told = set(re.findall(r"\w+", " ".join([README, *pages])))
    assert sorted(set(spiritlevel.__all__) - told) == []


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", text):
            assert link.startswith("http") or (page.parent / link).exists(), (page.name, link)
