"""What a store holds, how it is read, and disks and files that do not want it."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny

import courses
from spiritlevel import SpiritlevelError
from spiritlevel.results.history import Epoch, History
from spiritlevel.results.study import Network
from spiritlevel.studies import Store, Study, read_csv
from spiritlevel.studies.exports import columns, to_csv
from spiritlevel.studies.study import Trained

NUMBERS = {"gap": -0.0, "nan": math.nan, "inf": -math.inf, "gap error": 0.1 + 0.2, "tiny": 5e-324}
LATIN = os.fsdecode(b"\xff.npy")
EPOCHS = (Epoch(1, 5, 0.5, 0.1, 0.01),)


def train(config: Mapping[str, Any], seed: int) -> Trained:
    tiny.logged({"width": config["width"], "rate": 0}, seed)
    one = tiny.train({"width": config["width"], "rate": 0.1}, seed)
    if config["width"] == 4:
        raise ValueError("four")
    history = History(EPOCHS, (), courses.TOLD) if config["width"] == 3 else None
    return Trained(one.objective, NUMBERS, one.init, one.losses, history)


def light(**changes: Any) -> Study:
    given: Any = {
        "train": train,
        "grid": {"width": [3, 2], "text": ['a, b\n"c"', "7"], "flag": [True]},
        "measures": ("gradient_norm", "layer_traces", "steps_to_loss"),
        "representative": (),
        "seeds": 1,
        "settings": {"tol": 0.1},
    }
    return tiny.made(**{**given, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "s.db"
    light(grid={**light().grid, "width": [3, 2, 4]}).run(path).close()  # type: ignore[dict-item]
    return path


def same(a: list[Network], b: list[Network]) -> bool:
    """To the last bit, with the sign of zero and NaN."""
    return repr(a) == repr(b)


# Reading ------------------------------------------------------------------------------------------


def test_networks_in_the_order_of_the_plan(made: Path) -> None:
    study = light()
    with Store(made) as store:
        planned, there = store.networks(study), store.networks()
    assert [(n.config["width"], n.config["text"]) for n in planned] == [
        *((3, 'a, b\n"c"'), (3, "7"), (2, 'a, b\n"c"'), (2, "7")),
    ]
    assert [n.key for n in planned] == [run.key for run in study.runs()]
    assert sorted(n.key for n in there) == sorted(n.key for n in planned)
    one = planned[0]
    assert repr(one.numbers) == repr(dict(sorted(NUMBERS.items())))
    assert list(one.values) == [
        "gradient_norm",
        "layer_traces.0",
        "layer_traces.2",
        "steps_to_loss",
    ]
    assert math.isnan(one.values["steps_to_loss"]), "refused"
    objective = train(one.config, one.seed).objective
    assert 0 < one.values["gradient_norm"] < 10
    assert objective.size == 3 * 3 + 3 + 3 * 2 + 2
    assert list(one.config) == ["width", "text", "flag"]
    assert type(one.config["flag"]) is bool


def test_status(made: Path) -> None:
    study = light(grid={"width": [3, 2, 4, 5], "text": ["7"], "flag": [True]})
    with Store(made) as store:
        told = store.status(study)
        added = store.status(light(measures=["gradient_norm", "loss"]))
        line = train.__code__.co_firstlineno + 4
    assert (told.planned, told.done, told.missing, told.claims) == (4, 2, {}, ())
    assert [(f.config["width"], f.reason) for f in told.failed] == [
        (4, f"ValueError: four (test_store.py, line {line})")
    ]
    reasons = told.refused["steps_to_loss"]
    assert sum(reasons.values()) == 2
    assert all(r.startswith("the training loss was never at most 0.1 in 5") for r in reasons)
    assert told.left is not None
    assert told.left == pytest.approx(told.seconds / 3), "one run of four, at the mean of three"
    assert str(told).splitlines()[0] == "2 of 4 runs done, 1 failed"
    assert added.missing == {"loss": 4}


def test_history(made: Path) -> None:
    with Store(made) as store:
        keys = {run.config["width"]: run.key for run in light().runs()}
        found = store.history(keys[3])
        assert found is not None
        assert found.epochs == EPOCHS
        assert store.history(keys[2]) is None
        with pytest.raises(SpiritlevelError, match="key='no': no run has it; networks"):
            store.history("no")


# Tables -------------------------------------------------------------------------------------------


def test_csv_is_read_to_the_last_bit(made: Path, tmp_path: Path) -> None:
    with Store(made) as store:
        store.to_csv(tmp_path / "s.csv", light())
        networks = store.networks(light())
    assert same(read_csv(tmp_path / "s.csv"), networks)
    text = (tmp_path / "s.csv").read_bytes().decode()
    (tmp_path / "s.csv").write_text("\ufeff" + text.replace("\n", "\r\n"), "utf-8", newline="")
    assert same(read_csv(tmp_path / "s.csv"), networks), "as a spreadsheet writes it"


TEXTS = [
    "",
    " ",
    "NaN",
    "1e3",
    "true",
    "null",
    '"q"',
    "a\rb",
    "a\r\nb",
    "\x00",
    "ü✓",
    "[1]",
    "-",
    "1_0",
]


def test_any_text_and_number_goes_through_csv(tmp_path: Path) -> None:
    values = [*TEXTS, 0, -0.0, True, False, 10**30, 1e300, 0.1 + 0.2]
    networks = [
        Network(
            str(n), {"x": v, **({"y": 1} if n % 2 else {})}, n, {"a": 1.0, "a error": 2.0}, {}, {}
        )
        for n, v in enumerate(values)
    ]
    measured = Network(
        "k", {"x": 1}, 3, {}, {"m": math.inf, "m2": -0.0}, {"m": math.nan, "m2": 0.5}
    )
    to_csv([*networks, measured], tmp_path / "t.csv")
    assert same(read_csv(tmp_path / "t.csv"), [*networks, measured])


NAMES = (
    *(
        "foo",
        "foo error",
        "foo error error",
        "bar error",
        "bar",
        "number.x",
        "config.x",
        "numbers.x",
    ),
    *(
        "key",
        "seed",
        "x",
        '"x"',
        '"x" error',
        '"',
        "number.x error",
        "a\nb",
        "ü",
        "1e3",
        "null",
        "",
    ),
    *("keskar(eps=5e-4) @ representative", "error", " error", "values.x", "a,b", LATIN),
)


@pytest.mark.parametrize("config", [{}, {"x": 1}, {"x error": 2, "key": "k"}])
def test_measures_of_any_name_go_through_csv(tmp_path: Path, config: dict[str, Any]) -> None:
    """Also such as read like an error, an axis or a number; of one of them, too."""
    for labels in (NAMES, NAMES[::-1], *([name] for name in NAMES)):
        numbers = {"x": 0.5, "x error": 1.5}
        values = {name: float(place) for place, name in enumerate(labels)}
        errors = {name: 100.0 + place for place, name in enumerate(labels)}
        one = Network("k", config, 3, numbers, values, errors)
        to_csv([one], tmp_path / "t.csv")
        assert same(read_csv(tmp_path / "t.csv"), [one])
        assert len(columns([one])) == 2 + len(config) + 2 + 2 * len(labels)


def test_a_table_of_before_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs" / "fashion.csv"
    networks = read_csv(docs)
    assert len(networks) == 576
    to_csv(networks, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == docs.read_text()


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "key,seed\na,b\n", "key,seed\na\n"])
def test_a_table_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SpiritlevelError, match=r"t\.csv' holds (no networks|something else)"):
        read_csv(tmp_path / "t.csv")
    with pytest.raises(SpiritlevelError, match=r"none\.csv' cannot be read"):
        read_csv(tmp_path / "none.csv")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("key,config.a,seed,number.gap,m,m\nx,1,0,0.1,1,2\n")
    with pytest.raises(SpiritlevelError, match=r"t\.csv' has two columns 'm': leave one out"):
        read_csv(tmp_path / "t.csv")


def test_values_of_two_definitions_are_no_one_table(tmp_path: Path) -> None:
    """Where the settings were changed, and the new values are not there of all networks yet."""
    grid = {"width": [2, 3], "text": ["a"], "flag": [True]}
    light(grid=grid).run(tmp_path / "s.db").close()
    one = light(grid={**grid, "width": [2]}, settings={"tol": 0.2})
    with one.run(tmp_path / "s.db") as store:
        with pytest.raises(SpiritlevelError, match=r"'gradient_norm' of some networks as it was"):
            store.refuse_mixtures()
        light(grid=grid, settings={"tol": 0.2}).run(store)
        store.refuse_mixtures()


def test_what_is_missing_for_other_tables(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    with Store(made) as store:
        with pytest.raises(
            SpiritlevelError, match=r'pyarrow .*pip install "spiritlevel\[parquet\]"'
        ):
            store.to_parquet(tmp_path / "s.parquet")
        with pytest.raises(
            SpiritlevelError, match=r"pandas cannot be imported .*pip install pandas"
        ):
            store.to_dataframe()
    assert not (tmp_path / "s.parquet").exists()


def test_parquet(made: Path, tmp_path: Path) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    with Store(made) as store:
        store.to_parquet(tmp_path / "s.parquet", light())
        networks = store.networks(light())
    found = parquet.read_table(tmp_path / "s.parquet").to_pydict()
    assert found["config.text"] == [n.config["text"] for n in networks]
    assert found["gradient_norm"] == [n.values["gradient_norm"] for n in networks]


def test_dataframe(made: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    with Store(made) as store:
        frame, networks = store.to_dataframe(light()), store.networks(light())
    assert list(frame["gradient_norm"]) == [n.values["gradient_norm"] for n in networks]


# Files --------------------------------------------------------------------------------------------


def _sqlite(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE runs (key TEXT)")
    connection.close()


def _newer(path: Path) -> None:
    Store(path, create=True).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("hello"), "is no store of a study, and is left as it is"),
        (lambda path: path.write_bytes(b""), "is no store of a study"),
        (_sqlite, "is no store of a study"),
        (_newer, "has the schema 9, and this version reads 1"),
    ],
)
def test_foreign_files_are_left_as_they_are(
    tmp_path: Path, make: Callable[[Path], Any], said: str
) -> None:
    path = tmp_path / "s.db"
    make(path)
    before = path.read_bytes()
    for begin in (lambda: Store(path), lambda: light().run(path)):
        with pytest.raises(SpiritlevelError, match=said):
            begin()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["s.db"]


@pytest.mark.parametrize("ask", [Store.networks, Store.status, lambda store: light().run(store)])
def test_nobody_says_that_all_is_kept_in_a_broken_file(
    made: Path, tmp_path: Path, ask: Callable[[Store], Any]
) -> None:
    held = bytearray(made.read_bytes())
    held[4096:] = b"\xff" * (len(held) - 4096)
    (tmp_path / "s.db").write_bytes(held)
    said = r"malformed: some of what it held may be lost; put a copy of it in its place, or name"
    with pytest.raises(SpiritlevelError, match=said), Store(tmp_path / "s.db") as store:
        ask(store)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpiritlevelError, match=r"there is no such file; study\.run\(\) makes it"):
        Store(tmp_path / "s.db")
    for path in (tmp_path, tmp_path / "no" / "s.db", ""):
        with pytest.raises(SpiritlevelError, match="give a file in a folder that there is"):
            light().run(path)
    with pytest.raises(SpiritlevelError, match="store is a int; give the name of a file"):
        light().run(3)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces, signs of URIs, a relative one while the folder changes, a link."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    study = light(grid={"width": [2], "text": ["7"], "flag": [True]}, keep_weights=True)
    name = "ü ✓ 100%?#&=.db"
    with study.run(name) as store:
        monkeypatch.chdir(tmp_path / "other")
        assert len(store.networks(study)) == 1
        study.run(store).close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *sorted([name, f"{name}.weights", "other"])
    ]
    (tmp_path / "other" / "link.db").symlink_to(tmp_path / name)
    with study.run("link.db") as store:
        assert store.path == tmp_path / name
    assert [one.name for one in (tmp_path / "other").iterdir()] == ["link.db"]


def test_the_log_of_a_store_that_was_deleted_is_not_written_into_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    study = light(grid={"width": [2], "text": ["7"], "flag": [True]})
    child = os.fork()
    if child == 0:
        with Store(path, create=True) as store:
            connection = store.database.connection
            connection.execute("INSERT INTO claims VALUES ('a', 'b')")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    path.unlink()
    assert [one.name for one in tmp_path.glob("*-wal")] == ["s.db-wal"]
    with pytest.raises(SpiritlevelError, match=r"is gone, but its log s\.db-wal is there: put"):
        study.run(path)
    (tmp_path / "s.db-wal").unlink()
    with study.run(path) as store:
        assert store.database.connection.execute("SELECT * FROM claims").fetchall() == []


def test_json_of_a_store_is_plain(made: Path) -> None:
    """Texts are in it as they are written elsewhere, and numbers with all digits."""
    with Store(made) as store:
        rows = store.database.connection.execute("SELECT numbers FROM runs WHERE state = 'done'")
        found = json.loads(rows.fetchone()[0])
    assert found == {"gap": -0.0, "gap error": 0.1 + 0.2, "inf": "-Infinity", "nan": "NaN"} | {
        "tiny": 5e-324
    }
