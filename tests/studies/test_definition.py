"""The hash of what trains: a changed definition is a new run, and all that decides it is seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tiny

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


# What a name depends on ---------------------------------------------------------------------------

HEAD = "import random, torch\nimport spiritlevel as sl\nfrom spiritlevel.studies import Study\n"
TRAIN = "def train(config, seed):\n    i = 1\n    return X\n"
STUDY = "study = Study('mine', {'a': [1]}, train)\n"


def hashed(folder: Path, text: str, train: str = TRAIN) -> str:
    file = folder / "mine_of_test_definition.py"
    file.write_bytes((HEAD + text + train + STUDY).encode())
    return load_study(file, "mine").definition


ENDS = ["\x0c", "\x0b", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", ENDS, ids=ascii)
@pytest.mark.parametrize("where", ["# {}", "Y = 'a{}b'", "{}"])
def test_what_ends_a_line_elsewhere_does_not_here(tmp_path: Path, end: str, where: str) -> None:
    """Of all lines of train the last is the one that is lost where lines are counted otherwise."""
    if where == "{}" and end != "\x0c":
        where = "# {}"  # Python takes a form feed only
    text = where.format(end) + "\nX = 1\n"
    one, other = TRAIN, TRAIN.replace("return X", "return 2 * X")
    assert hashed(tmp_path, text, one) != hashed(tmp_path, text, other)


def test_spaces_in_a_text_are_part_of_it(tmp_path: Path) -> None:
    text = "X = '''a{}\nb'''{}\n"
    assert hashed(tmp_path, text.format("  ", "")) != hashed(tmp_path, text.format("", ""))
    assert hashed(tmp_path, text.format("", "  ")) == hashed(tmp_path, text.format("", ""))
    assert hashed(tmp_path, "X = 1\r\n") == hashed(tmp_path, "X = 1\n")


SEEN = {
    "flag of an if": "FLAG = {}\nif FLAG:\n    X = 1\nelse:\n    X = 2\n",
    "condition of an if": "import sys\nif len(sys.argv) > {}:\n    X = 1\nelse:\n    X = 2\n",
    "values of a for": "for X in [{}]:\n    pass\n",
    "range of a for": "for i in range({}):\n    X = i\n",
    "while": "n = {}\nwhile n > 0:\n    X = n\n    n -= 1\n",
    "walrus": "if (X := {}) is None:\n    pass\n",
    "walrus by itself": "print(X := {})\n",
    "walrus in a list": "print([X := i for i in [{}]])\n",
    "with as": "import contextlib\nwith contextlib.nullcontext({}) as X:\n    pass\n",
    "with": "import contextlib\nwith contextlib.nullcontext({}) as f:\n    X = f\n",
    "subject of a match": "match {}:\n    case 1:\n        X = 1\n    case _:\n        X = 2\n",
    "capture of a match": "match [1, {}]:\n    case [_, X]:\n        pass\n",
    "body of a match": "match 1:\n    case 1:\n        X = {}\n",
    "except": "try:\n    1 / {}\n    X = 1\nexcept ZeroDivisionError:\n    X = 2\n",
    "else of a try": "try:\n    pass\nexcept ValueError:\n    X = 3\nelse:\n    X = {}\n",
    "import that is tried": "try:\n    import numpy as X\nexcept ImportError:\n    X = {}\n",
    "item": "X = {{}}\nX['a'] = {}\n",
    "attribute": "class C: pass\nX = C()\nX.rate = {}\n",
    "attribute of a function": "def X(): pass\nX.rate = {}\n",
    "attribute of a module": "torch.rate = {}\nX = torch\n",
    "item that is deleted": "X = {{0: 1, 1: 2}}\ndel X[{}]\n",
    "append": "X = []\nX.append({})\n",
    "update": "X = {{}}\nX.update(a={})\n",
    "passed on": "X = [1, 2]\nrandom.Random({}).shuffle(X)\n",
    "loop that fills": "X = {{}}\nfor i in range({}):\n    X[i] = 1\n",
    "transitively": "Y = []\nY.append({})\nX = Y\n",
    "state of a module": "random.seed({})\nX = random\n",
    "global": "def setup():\n    global X\n    X = {}\nsetup()\n",
    "global by an argument": "def setup(a):\n    global X\n    X = a\nsetup({})\n",
    "global that is never called": "X = 1\ndef setup():\n    global X\n    X = {}\n",
    "item in a function": "X = {{}}\ndef put(a):\n    X['a'] = a\nput({})\n",
    "two functions deep": "X = []\ndef a(n): X.append(n)\ndef b(n): a(n)\n_ = b({})\n",
    "registry": "X = []\ndef reg(f):\n    X.append(f)\n    return f\n@reg\ndef f(): return {}\n",
    "registry by name": (
        "X = {{}}\ndef reg(name):\n    def deco(f):\n        X[name] = f\n    return deco\n"
        "@reg('f')\ndef f(): return {}\n"
    ),
    "registry that is an object": (
        "class R(list):\n    def add(self, f): self.append(f)\nX = R()\n"
        "@X.add\ndef f(): return {}\n"
    ),
    "partial": "from functools import partial\ndef g(a): return a\nX = partial(g, {})\n",
    "base class": "K = {}\nclass B:\n    k = K\nclass X(B): pass\n",
    "decorator": "K = {}\ndef deco(f):\n    return lambda *a: K\n@deco\ndef X(): pass\n",
    "same name in a class": "K = {}\nclass X:\n    K = K\n",
    "default": "K = {}\ndef X(k=K): return k\n",
    "lambda": "K = {}\nX = lambda: K\n",
    "bound where it is started": "if __name__ == '__main__':\n    X = {}\nelse:\n    X = 3\n",
    "type": "X: int = {}\n",
    "augmented": "X = 1\nX += {}\n",
    "several": "X = Y = {}\n",
    "unpacked": "Y, *X = 1, {}\n",
    # what is changed by a call whose answer is kept, by another name, or out of sight
    "popped": "X = [1, 2, 3]\nlast = X.pop({})\n",
    "set by default": "X = {{}}\nd = X.setdefault('a', {})\n",
    "called in a condition": "X = []\nif X.append({}) is None:\n    pass\n",
    "called in an assert": "X = []\nassert X.append({}) is None\n",
    "called in a list": "X = []\n_ = [X.append(i) for i in range({})]\n",
    "called in a lambda": "X = []\n_ = list(map(lambda i: X.append(i), [{}]))\n",
    "taken from an iterator": "X = iter(range(9))\n_ = [next(X) for i in range({})]\n",
    "looped over": "X = iter(range(9))\nfor i, _ in zip(X, [{}]):\n    pass\n",
    "handed to a function": "X = []\ndef put(l, a):\n    l.append(a)\nY = put(X, {})\n",
    "handed to what is imported": "import heapq\nX = [2]\nleast = heapq.heappushpop(X, {})\n",
    "set by a function": "class X: pass\n_ = setattr(X, 'k', {})\n",
    "answer kept in a function": "X = [1, 2]\ndef put(a):\n    y = X.pop(a)\nput({})\n",
    "other name in a function": "X = []\ndef put(a):\n    y = X\n    y.append(a)\nput({})\n",
    "handed on by a function": (
        "X = []\ndef inner(l, a): l.append(a)\ndef put(a): inner(X, a)\nput({})\n"
    ),
    "called by another": "X = []\ndef put(a): X.append(a)\n_ = list(map(put, [{}]))\n",
    "other name": "X = []\nY = X\nY.append({})\n",
    "name of a part": "X = {{'k': []}}\nY = X['k']\nY.append({})\n",
    "part by another name": "Y = []\nX = [Y]\nY += [{}]\n",
    "put inside later": "X, Y = [], []\nX.append(Y)\nY.append({})\n",
    "name of a loop": "X = [[]]\nfor c in X:\n    c.append({})\n",
    "attribute in a loop": "class C: pass\nX = [C()]\nfor c in X:\n    c.k = {}\n",
    "name of a with": (
        "import contextlib\nX = []\nwith contextlib.nullcontext(X) as f:\n    f.append({})\n"
    ),
    "method that changes itself": (
        "class C:\n    def put(self, a):\n        self.a = a\n        return self\n"
        "X = C()\nY = X.put({})\n"
    ),
    "subclass": (
        "X = []\nclass B:\n    def __init_subclass__(cls): X.append(cls)\nclass D(B):\n    k = {}\n"
    ),
    "seed whose answer is kept": "g = torch.manual_seed({})\nX = torch.rand(2)\n",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in SEEN.items()])
def test_what_decides_a_value_is_seen(tmp_path: Path, text: str) -> None:
    assert hashed(tmp_path, text.format(1)) == hashed(tmp_path, text.format(1))
    assert hashed(tmp_path, text.format(1)) != hashed(tmp_path, text.format(0))


def test_except_of_groups_is_seen(tmp_path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("except* is of Python 3.11")
    text = "try:\n    X = {}\nexcept* ValueError:\n    X = 0\n"
    assert hashed(tmp_path, text.format(1)) != hashed(tmp_path, text.format(2))


def test_the_order_of_assignments_is_seen(tmp_path: Path) -> None:
    lines = ["Y = 1\n", "X = Y\n", "Y = 2\n"]
    moved = [lines[0], lines[2], lines[1]]
    assert hashed(tmp_path, "".join(lines)) != hashed(tmp_path, "".join(moved))
    functions = ["def f(): return 1\n", "def g(): return f()\n", "X = 1\n"]
    train = TRAIN.replace("return X", "return g()")
    one, other = ("".join(order) for order in (functions, functions[::-1]))
    assert hashed(tmp_path, one, train) == hashed(tmp_path, other, train)


UNSEEN = {
    "unused": "X = 1\nZ = {}\ndef unused(): return {}\n",
    "started": "X = 1\nif __name__ == '__main__':\n    print({}, X)\n    X.a = {}\n",
    "started, the other way": "X = 1\nif '__main__' == __name__:\n    print({}, X)\n",
    "bound where it is started": "X = 1\nif __name__ == '__main__':\n    i = {}\n",
    "types": "X = 1\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    X = {}\n",
    "docstring of the file": "'''{}'''\nX = 1\n",
    "docstring of a function": "def X():\n    '''{}\n    more'''\n    return 1\n",
    "docstring of a class": "class X:\n    '''{}'''\n    a = 1\n",
    "local name": "X = 1\ni = {}\n",
    "local name of a loop": "X = 1\nfor i in range({}):\n    pass\n",
    "a study that is made and run": (
        "GRID = [1]\ndef X(): return sl\n"
        "other = sl.studies.Study('o', {{'a': GRID}}, X, seeds=1 + {})\n"
        "print(other.runs())\nsl.studies.Study('p', {{'a': GRID}}, X, seeds={})\n"
    ),
    "printed": "X = 1\nZ = 2\nprint(Z, {})\n",
    "logged elsewhere": (
        "import logging\nX = logging.getLogger('x')\ndef report():\n    X.info({})\n    return 1\n"
    ),
    "length of what is read": "X = [1]\nn = len(X) + {}\n",
    "study of what is read": (
        "X = [1, 2]\ndef f(c, s): return X\n"
        "other = Study('o', {{'a': X}}, f, seeds=1 + {})\nruns = other.runs()[:{}]\n"
    ),
    "call on numbers": "X = 1.5\nY = round(X, {})\n",
    "call on other things": "X = [1]\nY = sorted([3, {}])\nY.append({})\n",
    "cache of a function": (
        "X = {{}}\ndef f(c, s):\n    X[s] = 1\nother = Study('o', [{{'a': {}}}], f)\n"
    ),
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in UNSEEN.items()])
def test_what_decides_nothing_is_not_seen(tmp_path: Path, text: str) -> None:
    assert hashed(tmp_path, text.format(1, 1)) == hashed(tmp_path, text.format(2, 2))
