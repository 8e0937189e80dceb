"""Results as data: written, read back as they were, and drawn where there is no model."""

from __future__ import annotations

import copy
import csv
import dataclasses
import enum
import io
import json
import math
import random
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bounded
import courses
import pairs
import reports
import spiritlevel as sl
import studied
import tables
from cases import small_net
from spiritlevel.report import page
from spiritlevel.results import result as results
from spiritlevel.results.claims import Claims
from spiritlevel.results.comparison import Comparison
from spiritlevel.results.data import plain, read, written
from spiritlevel.results.provenance import provenance, reasons
from spiritlevel.results.result import write_rows
from spiritlevel.results.schema import schema
from spiritlevel.results.symmetry import Sharpening, Symmetries

SAMPLES: dict[str, dict[str, Any]] = {
    "audit": reports.audit(way=reports.way()),
    "claims": reports.claims(hessian_law=reports.SVG),
    "comparison": tables.three(),
    "table": tables.table(),
}
DOCS = Path(__file__).parents[2] / "docs"


def made() -> dict[str, sl.Result]:
    """Every kind of result, of a small net."""
    objective = pairs.objective("relu", 0, 20, classes=True)
    twin = sl.sharpen(objective, target=1e3)
    nets = {"net": objective, "twin": twin.objective}
    told = provenance(0.0, ["as told"])
    return {
        "forecast": sl.estimate(objective, ["loss", "layer_traces"]),
        "table": sl.measure(objective, ["loss", "lambda_max", "layer_traces"], compile=False),
        "audit": sl.audit(objective, ["loss", "hessian_spectral", "orbit_trace"]),
        "comparison": sl.compare(nets, ["loss", "hessian_spectral", "keskar"]),
        "claims": sl.claims(small_net(), ["gradient_law", "any_labels"]),
        "symmetries": sl.symmetries(objective).result("net", told),
        "sharpening": twin.result("net", 1e3, told),
        "line": sl.landscape.line(objective, steps=3),
        "surface": sl.landscape.plane(objective, steps=3, orbit=1),
        "spectra": sl.landscape.spectra(objective, probes=2, steps=4, top=2),
        "history": courses.full(),
        "bounds": bounded.full(),
        "study": studied.full(),
    }


@pytest.fixture(scope="module")
def real() -> dict[str, sl.Result]:
    return made()


def test_every_kind_comes_back_as_it_was(real: dict[str, sl.Result], tmp_path: Path) -> None:
    """Equal, printed alike, and the same page; what lives in memory is not written."""
    assert set(real) == set(results.KINDS)
    for kind, found in real.items():
        found.to_json(tmp_path / f"{kind}.json")
        again = sl.load(tmp_path / f"{kind}.json")
        assert type(again) is type(found)
        assert again == found, kind
        assert hash(again) == hash(found)
        assert str(again) == str(found)
        assert again.to_csv() == found.to_csv()
        assert again.to_html() == found.to_html()
        assert page(again) == page(found)
    audit = real["audit"]
    assert isinstance(audit, sl.Audit)
    assert audit.points.objective is not None
    assert sl.Audit.from_dict(audit.to_dict()).points is None
    with pytest.raises(sl.SpiritlevelError, match="this is a table, not a audit"):
        sl.Audit.from_dict(real["table"].to_dict())


def test_results_that_differ_are_not_equal(real: dict[str, sl.Result]) -> None:
    table = real["table"]
    other = table.to_dict()
    other["rows"][0]["estimate"]["value"] += 1e-9
    assert results.result_from(other) != table
    assert table != real["audit"]
    assert table != 3


def test_what_is_written_fits_the_schema_of_the_docs(real: dict[str, sl.Result]) -> None:
    known = json.loads((DOCS / "schema.json").read_text(encoding="utf-8"))
    assert known == schema(), "run: python -m spiritlevel.results.schema > docs/schema.json"
    check = jsonschema.Draft202012Validator(known)
    for kind, found in real.items():
        data = json.loads(found.to_json())
        check.validate(data)
        assert not check.is_valid(data | {"schema": found.schema + 1}), kind
    wrong = real["table"].to_dict()
    wrong["rows"][0]["estimate"]["value"] = "many"
    assert not check.is_valid(wrong)
    wrong["rows"][0]["estimate"]["value"] = "-Infinity"
    assert check.is_valid(wrong)


def test_a_report_is_drawn_without_torch(real: dict[str, sl.Result], tmp_path: Path) -> None:
    """By the command, on another day, where nothing but the file is."""
    for kind, found in real.items():
        found.to_json(tmp_path / f"{kind}.json")
    code = (
        "import sys, pathlib\n"
        "from spiritlevel.cli import app\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.json')):\n"
        "    out = str(path.with_suffix('.html'))\n"
        "    app(['report', str(path), '-o', out, '--title', 'Mine'], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for kind, found in real.items():
        drawn = (tmp_path / f"{kind}.html").read_text(encoding="utf-8")
        assert drawn == page(found, title="Mine")


# Any data ----------------------------------------------------------------------------------------


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, infinities and NaN among the numbers."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    simple = {
        float: st.floats(),
        int: st.integers(),
        str: st.text(max_size=5),
        bool: st.booleans(),
        type(None): st.none(),
    }
    if kind in simple:
        return simple[kind]
    if origin is tuple and inside[1:] == (...,):
        return st.lists(values(inside[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inside))
    if origin is dict:
        more = st.dictionaries(st.text(max_size=3), values(inside[1]), max_size=2)
        return st.tuples(values(inside[1]), more).map(lambda two: {"here": two[0], **two[1]})
    if origin is typing.Literal:
        return st.sampled_from(inside)
    if dataclasses.is_dataclass(kind):
        return st.builds(
            typing.cast(Any, kind), **{name: values(hint) for name, hint in written(kind).items()}
        )
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if inside:
        return st.one_of([values(one) for one in inside])
    return st.none()


PARTS = sorted(
    {
        hint
        for kind in results.KINDS.values()
        for outer in written(kind).values()
        for hint in (outer, *typing.get_args(outer))
        if dataclasses.is_dataclass(hint)
    },
    key=str,
)


@settings(max_examples=40)
@given(st.data())
@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_any_part_of_a_result_makes_the_round_trip(kind: Any, data: st.DataObject) -> None:
    """Whatever its numbers: JSON has no infinity and no NaN, and they come back."""
    value = data.draw(values(kind))
    bare = {name: plain(getattr(value, name)) for name in written(kind)}  # texts may need more
    text = json.dumps(bare, allow_nan=False)
    again = read(kind, json.loads(text))
    assert {name: plain(getattr(again, name)) for name in written(kind)} == bare


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.1, 5e-324, -0.0])
def test_numbers_come_back_to_the_last_bit(number: float) -> None:
    data = tables.table()
    data["rows"][1]["estimate"]["value"] = plain(number)
    found = results.result_from(data)
    assert isinstance(found, sl.Table)
    value = found.rows[1].estimate.value
    assert math.copysign(1, value) == math.copysign(1, number) or math.isnan(number)
    assert value == number or (math.isnan(value) and math.isnan(number))
    assert found == results.result_from(json.loads(found.to_json()))


# What is no result -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no result: Expecting value"),
        ("[1, 2", "holds no result"),
        ("[1, 2]", 'a result has a "kind" and a "schema"'),
        ('{"kind": "table"}', 'a result has a "kind" and a "schema"'),
        ('{"kind": "chart", "schema": 1}', "unknown kind 'chart'; there are: .*table"),
        ('{"kind": [], "schema": 1}', r"unknown kind \[\]"),
        ('{"kind": "table", "schema": 1}', "its schema is 1, and this version reads 2"),
        ('{"kind": "table", "schema": 2}', "the result has no 'rows'"),
        ('{"kind": "table", "schema": 2, "rows": 3, "rest": null, "provenance": {}}', "rows is 3"),
        (
            '{"kind": "table", "schema": 2, "rows": [], "rest": null, "provenance": {}}',
            "provenance has",
        ),
    ],
)
def test_a_file_that_holds_no_result(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(sl.SpiritlevelError, match=message):
        sl.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "no.json", tmp_path, "a\0b"):
        with pytest.raises(sl.SpiritlevelError, match="cannot be read"):
            sl.load(path)
    with pytest.raises(sl.SpiritlevelError, match="path is a int; give the name of a file"):
        sl.load(3)  # type: ignore[arg-type]
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(sl.SpiritlevelError, match="cannot be read"):
        sl.load(tmp_path / "bytes.json")
    with pytest.raises(sl.SpiritlevelError, match=r"path=a str cannot be read: .*; give the name"):
        sl.load('{"kind": "table"}' + 4000 * " ")  # a text is no name, and is not said again


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_damaged_result_is_refused_or_still_one(kind: str) -> None:
    """Something in it is replaced or lost: one error, or a result that can be shown and drawn."""
    draws = random.Random(kind)
    refused = 0
    for _ in range(300):
        data = copy.deepcopy(SAMPLES[kind])
        damage(data, draws)
        try:
            found = results.result_from(data)
        except sl.SpiritlevelError:
            refused += 1
            continue
        assert str(found)
        assert page(found)
    assert refused > 30


def damage(data: Any, draws: random.Random) -> None:
    """One value deep inside becomes something else, or is gone."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = draws.choice(keys)
        inner = data[key]
        if isinstance(inner, (dict, list)) and inner and draws.random() < 0.8:
            data = inner
            continue
        if isinstance(data, dict) and draws.random() < 0.3:
            del data[key]
        else:
            data[key] = draws.choice([None, "x", -1, 2.5, [], {}, True, "NaN", 10**400])
        return


def test_the_kinds_share_what_they_have_in_common(real: dict[str, sl.Result]) -> None:
    for kind, found in real.items():
        assert found.kind == kind == found.to_dict()["kind"]
        assert found.title
        assert found._repr_html_() == found.to_html()
        assert isinstance(found.provenance, dict)
    compared, claims = real["comparison"], real["claims"]
    assert isinstance(compared, Comparison)
    assert isinstance(claims, Claims)
    assert isinstance(real["symmetries"], Symmetries)
    assert isinstance(real["sharpening"], Sharpening)
    with pytest.raises(sl.SpiritlevelError, match="no claim 'x'; there are: gradient_law, any"):
        claims["x"]
    assert compared["loss"].title == "loss"


def test_a_lone_return_in_a_text_stays_in_its_cell() -> None:
    """And what no file takes is written as an escape."""
    out = io.StringIO()
    write_rows(out, [["name", "value"], ["p\rq", 1.5], ["a\udc80", "x\ny, z"]])
    found = list(csv.reader(io.StringIO(out.getvalue(), newline="")))
    assert found == [["name", "value"], ["p\rq", "1.5"], ["a\\udc80", "x\ny, z"]]


def test_rows_are_gone_through_and_each_reason_is_said_once(real: dict[str, sl.Result]) -> None:
    for kind in ("table", "audit", "claims", "forecast"):
        found: Any = real[kind]
        assert [row.name for row in found] == [row.name for row in found.rows]
        assert found.rows[0].name in found
        assert found.rows[0] in found
        assert "no such row" not in found
    pairs: Any = real["comparison"]
    assert list(pairs) == list(pairs.pairs)
    assert reasons("no", {"a": "none", "b": "other", "c": "none"}) == [
        "no a, c: none",
        "no b: other",
    ]
