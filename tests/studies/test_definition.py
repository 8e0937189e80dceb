"""The hash of what trains: a changed definition is a new run, and all that decides it is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny

from spiritlevel import SpiritlevelError
from spiritlevel.studies import load_study

FILE = """
import tiny
from spiritlevel.studies import Study
RATE = 0.1
def helper(config): return {**config, "rate": RATE}
def unused(): return 1
def train(config, seed):
    return tiny.train(helper(config), seed)
study = Study("mine", {"width": [2, 3]}, train, ["gradient_norm"], seeds=2)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("def unused(): return 1", "def unused(): return 2", True),
        ("RATE = 0.1", "# a comment\n\nRATE = 0.1", True),
        ('["gradient_norm"]', "[]", True),
        ("seeds=2", "seeds=4", True),
        ("[2, 3]", "[2, 3, 4]", True),
        ("RATE = 0.1", "RATE = 0.2", False),
        ('"rate": RATE', '"rate": RATE * 2', False),
        ("train(helper(config), seed)", "train(helper(config), seed + 1)", False),
        ("def train", "@staticmethod\ndef train", False),
        ("seeds=2", 'seeds=2, version="1"', False),
    ],
)
def test_a_changed_definition_is_a_new_run(tmp_path: Path, old: str, new: str, same: bool) -> None:
    file = tmp_path / "mine_of_test_study.py"
    file.write_text(FILE)
    before = {run.key for run in load_study(file).runs()}
    file.write_text(FILE.replace(old, new))
    after = {run.key for run in load_study(file).runs()}
    assert before <= after if same else not before & after


def test_studies_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "several of test-study.py"
    file.write_text(FILE + 'other = Study("other", {"width": [2]}, train)\n')
    assert load_study(file, "other").configurations == ({"width": 2},)
    with pytest.raises(SpiritlevelError, match="name one study of it; there are: 'mine', 'other'"):
        load_study(file)
    file.write_text("1 / 0")
    with pytest.raises(SpiritlevelError, match="cannot be imported: ZeroDivisionError"):
        load_study(file)
    with pytest.raises(SpiritlevelError, match=r"cannot be read: .*No such file"):
        load_study(tmp_path / "none.py")


def _other(config: Any, seed: int) -> Any:
    return tiny.train(config, seed + 1)


def test_a_version_is_one_of_its_study(tmp_path: Path) -> None:
    """It says nothing of what trains; where that is known, the name of the study is no matter."""
    options: Any = {"measures": [], "representative": [], "seeds": 1, "version": "1"}
    one = tiny.made(name="one", train=tiny.train, **options)
    other = tiny.made(name="other", train=_other, **options)
    assert not {run.key for run in one.runs()} & {run.key for run in other.runs()}
    assert one.runs() == tiny.made(name="one", train=_other, **options).runs()
    assert tiny.made(name="one").runs() == tiny.made(name="other").runs()
    one.run(tmp_path / "s.db").close()
    with other.run(tmp_path / "s.db") as store:
        assert [len(store.networks(s)) for s in (one, other, None)] == [4, 4, 8]
