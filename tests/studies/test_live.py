"""What is run is what its file says: a file that was edited after its import is refused."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spiritlevel as sl
from spiritlevel import SpiritlevelError
from spiritlevel.studies import Study, load_study, sources

FILE = '''
from __future__ import annotations

import contextlib, dataclasses, functools, random, sys, types, typing
import tiny
from spiritlevel.studies import Study

RATE = 0.1
SIZES = (1, "two", -3)
HANDLE = None
SEEN = []
FLAG: bool = True

@functools.lru_cache
def cached(n): return n

@contextlib.contextmanager
def managed():
    yield

def timed(f):
    @functools.wraps(f)
    def inner(*given, **named):
        return f(*given, **named)
    return inner

@types.coroutine
def flagged(): yield

def bare(f):
    return lambda *given: f(*given)

@timed
def wrapped(): return RATE

@bare
def replaced(n): return n

square = lambda n: n * n
pair = [lambda n: n, lambda n: {"a", "b", "c"}]

if sys.version_info > (3,):
    def chosen(): return 1
else:
    def chosen(): return 2

def twice(): return 1
def twice(): return 2

@dataclasses.dataclass(frozen=True)
class Plain:
    """Of a class."""
    a: int = 1
    b: typing.Any = dataclasses.field(default_factory=list)
    @property
    def double(self): return 2 * self.a
    @functools.cached_property
    def kept(self): return 3
    @staticmethod
    def apart(): return 4
    @classmethod
    def made(cls): return cls(5)

class Named(typing.NamedTuple):
    a: int = 3
    def shown(self): return f"{self.a!r:>3}"

class Child(Plain):
    def __init__(self, __private=3):
        super().__init__()

def counted():
    global COUNT
    COUNT = 3
COUNT = 0

async def later(): return [n async for n in managed()]

def closure(n: int = 3, *, scale: float = 0.5):
    """Of a function."""
    def inner(m): return n * m * scale
    try:
        assert n in {"a", "b", 3} and n in (1, 2.0, True, 3)
        match n:
            case [a, *rest]: return rest
    except (ValueError, KeyError) as error:
        raise error
    finally:
        SEEN.append(n)
    return inner

made = closure()
alias = closure

def train(config, seed):
    global HANDLE
    HANDLE = cached, managed, wrapped, replaced, square, pair, chosen, twice, Plain, Named, Child
    SEEN.append([counted(), later, made, alias, flagged, SIZES, FLAG])
    return tiny.train({**config, "rate": RATE}, seed)

study = Study("mine", {"width": [2]}, train, seeds=1)

if __name__ == "__main__":
    study.run(sys.argv[1]).close()
    study.run(sys.argv[1] + "2").close()
'''


def imported(file: Path) -> ModuleType:
    """As `import` does it, but not from what it kept of a file of the same second."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "lasting", raising=False)
    path = tmp_path / "lasting.py"
    path.write_text(FILE)
    return path


EDITS = [
    ('tiny.train({**config, "rate": RATE}, seed)', 'tiny.train({**config, "rate": 1}, seed)'),
    ("RATE = 0.1", "RATE = 0.2"),
    ('SIZES = (1, "two", -3)', 'SIZES = (True, "two", -3)'),
    ("FLAG: bool = True", "FLAG: bool = False"),
    ("def cached(n): return n", "def cached(n): return n + 1"),
    ("    yield\n", "    yield 3\n"),
    ("def wrapped(): return RATE", "def wrapped(): return 2 * RATE"),
    ("lambda n: n * n", "lambda n: n * n * n"),
    ("def chosen(): return 1", "def chosen(): return 11"),
    ("return 2 * self.a", "return 3 * self.a"),
    ("def kept(self): return 3", "def kept(self): return 4"),
    ("def apart(): return 4", "def apart(): return 5"),
    ("return cls(5)", "return cls(6)"),
    ("{self.a!r:>3}", "{self.a!r:>4}"),
    ("n: int = 3", "n: int = 4"),
    ("scale: float = 0.5", "scale: float = 0.25"),
    ("return n * m * scale", "return n * m / scale"),
    ("COUNT = 3", "COUNT = 4"),
    ("(1, 2.0, True, 3)", "(1, 2, True, 3)"),
    ("def train(config, seed):", "def other(config, seed):"),
    ("def train(config, seed):", "def train(config, seed:"),
]


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_code_that_was_edited_is_not_run_under_a_new_key(file: Path, old: str, new: str) -> None:
    """Whether the study was made before the edit or after it."""
    study: Study = imported(file).study
    study.refuse_edited()
    assert FILE.count(old) == 1
    file.write_text(FILE.replace(old, new))
    said = "the file of train was edited after it was imported: import it again, in a new process"
    with pytest.raises(SpiritlevelError, match=said):
        study.run(file.with_name("s.db"))
    with pytest.raises(SpiritlevelError, match=said):
        dataclasses.replace(study, seeds=2).run(file.with_name("s.db"))
    assert not file.with_name("s.db").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SEEN = []", "# a comment\n\nSEEN = []"),
        ('"""Of a function."""', '"""Of a function,\n    and more."""'),
        ('    """Of a function."""\n', ""),
        ("seeds=1", "seeds=3"),
        ("study.run(sys.argv[1])", "study.run('other')"),
    ],
)
def test_an_edit_that_changes_nothing_is_no_edit(file: Path, old: str, new: str) -> None:
    study: Study = imported(file).study
    study.run(file.with_name("s.db")).close()
    assert FILE.count(old) == 1
    file.write_text(FILE.replace(old, new))
    study.run(file.with_name("s.db")).close()
    dataclasses.replace(study, seeds=2).run(file.with_name("s.db")).close()


@pytest.mark.parametrize("flags", [[], ["-O"], ["-OO"], ["-m"]])
def test_a_script_is_what_its_file_says(file: Path, flags: list[str]) -> None:
    """Started in several ways; after a training, too, which changes what its names hold."""
    given = ["-m", file.stem] if flags == ["-m"] else [*flags, str(file)]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *given, str(file.with_name("s.db"))],
        cwd=file.parent,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr


def _asserting(config: Any, seed: int) -> Any:
    assert config, "pytest writes this line anew"
    return seed


def test_what_was_rewritten_on_its_way_is_no_edit() -> None:
    Study("mine", {"a": [1]}, _asserting).refuse_edited()


def test_a_file_that_is_loaded_is_run_as_it_was(file: Path) -> None:
    """Its text is kept, and so is its key: here and in workers."""
    study = load_study(file)
    before = study.runs()[0].key
    file.write_text(FILE.replace("RATE = 0.1", "RATE = 0.2"))
    with study.run(file.with_name("s.db"), engine="pool", workers=1) as store:
        assert [network.key for network in store.networks()] == [before]
    assert load_study(file).runs()[0].key != before


@pytest.fixture
def _given_back() -> Iterator[None]:
    yield
    sl.MEASURES.pop("lasting_measure", None)


@pytest.mark.usefixtures("_given_back")
def test_a_measure_that_was_edited_is_not_taken(file: Path) -> None:
    text = FILE + (
        "import spiritlevel as sl\nfrom spiritlevel import Estimate\n"
        "@sl.register('lasting_measure')\n"
        "def lasting(objective): return Estimate(1.0)\n"
        "measured = Study('mine', {'width': [2]}, train, ['lasting_measure'])\n"
    )
    file.write_text(text)
    study: Study = imported(file).measured
    study.refuse_edited()
    file.write_text(text.replace("Estimate(1.0)", "Estimate(2.0)"))
    with pytest.raises(SpiritlevelError, match="the file of the measure lasting_measure was edit"):
        study.run(file.with_name("s.db"))


def test_a_package_that_was_edited_is_not_run_by_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is not sent: a worker that is started later imports what is there then."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "lasting_package" / "mod.py"
    file.parent.mkdir()
    file.with_name("__init__.py").touch()
    file.write_text(FILE)
    study: Study = importlib.import_module("lasting_package.mod").study
    source = sources.packed(study)
    monkeypatch.delitem(sys.modules, "lasting_package.mod")
    assert sources.unpacked(source).definition == study.definition
    file.write_text(FILE.replace("RATE = 0.1", "RATE = 0.2"))
    monkeypatch.delitem(sys.modules, "lasting_package.mod")
    with pytest.raises(SpiritlevelError, match="the file of train was edited"):
        sources.unpacked(source)


def test_a_file_is_read_and_compiled_as_python_does_it(file: Path) -> None:
    text = "# coding: latin-1\ndef noted(a: int): return 'é'\n" + FILE.replace(
        "from __future__", "#"
    )
    file.write_bytes(text.encode("latin-1"))
    study = load_study(file)
    noted = study.train.__globals__["noted"]
    assert noted(1) == "é"
    assert noted.__annotations__ == {"a": int}
    assert study.definition == imported(file).study.definition
    file.write_bytes(b"\xef\xbb\xbf" + FILE.encode())
    assert load_study(file).definition == study.definition
