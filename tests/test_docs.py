"""The documentation is executed: docstrings, the README's code, every example."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spiritlevel

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_docstring_of_the_package() -> None:
    found = doctest.testmod(spiritlevel)
    assert found.attempted >= 4
    assert found.failed == 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "trace" in done.stdout or "rescalings" in done.stdout
    assert "budget spent" not in done.stdout


def test_the_readme_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # it writes files
    code = blocks("python")
    assert len(code) >= 3
    scope: dict[str, object] = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), scope)
    del spiritlevel.MEASURES["largest_weight"]
    assert float(scope["top"]) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("command", "rows"), [("audit", 12), ("measure", 11)])
def test_the_readme_shows_the_output_of_the_command(command: str, rows: int) -> None:
    """The rows of the README are those that the command prints, value by value."""
    done = subprocess.run(
        [sys.executable, "-m", "spiritlevel.cli", command],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "100", "PATH": ""},
    )
    shown = next(
        b for b in blocks("text") if re.match(rf"\$ spiritlevel {command}( -o report.html)?\n", b)
    )

    def values(text: str) -> dict[str, float]:
        found = re.findall(
            r"^ *([A-Za-z][\w-]*(?: \S+)*?) {2,}(?:≥ )?(-?[\d.e+-]+)", text, flags=re.MULTILINE
        )
        return {name: float(value) for name, value in found}

    printed, promised = values(done.stdout), values(shown)
    assert set(promised) == set(printed)
    assert len(promised) == rows
    for name, value in promised.items():
        # another processor sums in another order, and training amplifies it
        assert printed[name] == pytest.approx(value, rel=0.5, abs=0.05), name


def test_every_public_name_is_in_the_readme() -> None:
    missing = [name for name in spiritlevel.__all__ if name not in README]
    assert missing == []
