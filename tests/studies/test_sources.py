"""Files in which studies are defined, and names that they cannot have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spiritlevel import SpiritlevelError
from spiritlevel.studies import load_study

FILE = """
import tiny
from spiritlevel.studies import Study
def train(config, seed):
    return tiny.train({**config, "rate": 0.1}, seed)
study = Study("mine", {"width": [2, 3]}, train, ["gradient_norm"], seeds=2)
"""


def test_studies_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "several of test-study.py"
    file.write_text(FILE + 'other = Study("other", {"width": [2]}, train)\n')
    assert load_study(file, "other").configurations == ({"width": 2},)
    said = r"name one study of it \(name=, in a shell --name\); there are: 'mine', 'other'$"
    with pytest.raises(SpiritlevelError, match=said):
        load_study(file)
    file.write_text("1 / 0")
    with pytest.raises(SpiritlevelError, match="cannot be imported: ZeroDivisionError"):
        load_study(file)
    file.write_text("raise SystemExit(0)")
    with pytest.raises(SpiritlevelError, match="cannot be imported: SystemExit: 0"):
        load_study(file)
    with pytest.raises(SpiritlevelError, match=r"cannot be read: .*No such file"):
        load_study(tmp_path / "none.py")


def test_two_studies_of_one_name(tmp_path: Path) -> None:
    """Neither is taken for the other; one study of two names is one."""
    file = tmp_path / "twins_of_test_sources.py"
    file.write_text(FILE + "again = study\n")
    assert load_study(file).name == "mine"
    file.write_text(FILE + 'other = Study("mine", {"width": [2]}, train)\n')
    for name in ("mine", None):
        with pytest.raises(SpiritlevelError, match="has two studies of the name 'mine': give each"):
            load_study(file, name)


def test_a_file_without_a_study(tmp_path: Path) -> None:
    file = tmp_path / "none_of_test_sources.py"
    file.write_text("x = 1")
    for name in ("mine", None):
        with pytest.raises(SpiritlevelError, match="has no study: define one at its top level, st"):
            load_study(file, name)


@pytest.mark.parametrize("name", ["colorsys", "torch", "spiritlevel"])
def test_a_file_that_would_be_found_in_place_of_a_module(tmp_path: Path, name: str) -> None:
    """Workers that import torch would import it, and die before they begin."""
    before, file = list(sys.path), tmp_path / f"{name}.py"
    file.write_text(FILE)
    with pytest.raises(SpiritlevelError, match=f"what imports {name} would find .*: rename it$"):
        load_study(file)
    assert sys.path == before
    file.rename(tmp_path / "study.py")
    assert load_study(tmp_path / "study.py").name == "mine"
