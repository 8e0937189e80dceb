"""The plan of the house: rooms, and files that can be read in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spiritlevel as sl

ROOT = Path(sl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def test_nothing_is_loose_at_the_root() -> None:
    assert sorted(p.name for p in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    home = str(path.relative_to(ROOT))
    assert {f.name: n for f in functions if (n := _lines(f, home)) > 40} == {}


def _lines(function: ast.FunctionDef, home: str) -> int:
    """All of it, signature and docstring too; of a command the options are its help text."""
    command = home.startswith("cli/") and function.decorator_list
    begin = function.body[0] if command else function
    assert function.end_lineno is not None
    return function.end_lineno - begin.lineno + 1
