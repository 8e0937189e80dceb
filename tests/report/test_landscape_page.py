"""The pages of surfaces, lines and spectra: what they say, and that they hold together."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import drawings
from drawings import bowl, certificate, put
from reports import text
from spiritlevel.report import page
from spiritlevel.report.curves import line_headline, spectra_headline
from spiritlevel.report.landscape import surface_headline, surface_words
from spiritlevel.results.landscape import Line, Sheet, Surface
from spiritlevel.results.result import Result
from spiritlevel.results.spectra import Spectra

ALL: dict[str, Result] = {
    "orbit": drawings.orbit(),
    "alone": drawings.surface(),
    "line": drawings.line(2.0, 0.1),
    "rays": drawings.rays(),
    "spectra": drawings.spectra(),
}


def row(source: str, name: str) -> str:
    found = re.search(rf'<tr role="row" data-name="{name}">.*?</tr>', source, re.DOTALL)
    assert found, name
    return text(found[0])


def data(source: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', source)
    assert found
    return json.loads(found[1])


# Headlines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surface", "words"),
    [
        (
            drawings.orbit(),
            "The same network, the same predictions: losses over this plane reach 3.01 (here) and "
            "30.0 (sharpened).",
        ),
        (
            drawings.orbit(second=certificate(0.3, "refuted")),
            "These points are not one network: their predictions differ by 3e-1.",
        ),
        (
            drawings.surface(
                Sheet("as trained", bowl()),
                Sheet("twin", bowl(1 + 1e-6), certificate=certificate(1e-15)),
            ),
            "The same network, the same predictions, and over this plane the same landscape.",
        ),
        (
            drawings.surface(Sheet("as trained", bowl()), Sheet("other", bowl(2))),
            "Several points: losses over this plane reach 3.01 (as trained) and 6.01 (other).",
        ),
        (
            drawings.surface(
                Sheet("here", bowl()),
                Sheet("far", tuple((math.inf,) * 9 for _ in range(9)), None, None, certificate(0)),
            ),
            "The same network, the same predictions: no value is finite over the plane (far).",
        ),
        (
            drawings.surface(),
            "From 0.0100 at the centre, the loss reaches 3.01 over this plane.",
        ),
        (
            drawings.surface(Sheet("here", put(bowl(), (3, 4, 0.005)))),
            "From 0.0100 at the centre, the loss reaches 3.01 over this plane, and is least, "
            "0.00500, elsewhere.",
        ),
        (
            drawings.surface(Sheet("here", put(bowl(), (0, 0, math.inf), (1, 0, None)))),
            "From 0.0100 at the centre, the loss reaches 3.01 over this plane. At one place it is "
            "not finite.",
        ),
        (
            drawings.surface(Sheet("here", put(bowl(), (4, 4, math.nan), (0, 0, math.inf)))),
            "Over this plane the loss lies between 0.0725 and 3.01. At 2 of 81 places it is not "
            "finite.",
        ),
        (
            drawings.surface(Sheet("here", tuple((math.nan,) * 9 for _ in range(9)))),
            "No finite value was found over this plane.",
        ),
        (
            drawings.surface(Sheet("here", bowl(0.1)), quantity="convexity"),
            "The least eigenvalue is at most 0.310 of the largest in size over this plane, and "
            "0.0100 at the centre.",
        ),
        (
            drawings.surface(
                Sheet("here", bowl(0.1)),
                Sheet("twin", bowl(0.2), certificate=certificate(0.0)),
                quantity="convexity",
            ),
            "The same network, the same predictions: |λmin / λmax| over this plane reaches 0.310 "
            "(here) and 0.610 (twin).",
        ),
    ],
)
def test_headlines_of_surfaces(surface: Surface, words: str) -> None:
    assert surface_headline(surface) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (drawings.line(2.0, 0.1), "The barrier is 2.00 (as they are) and 0.100 (aligned)."),
        (drawings.line(2.0), "On the way the loss rises 2.00 above its ends."),
        (
            drawings.rays(),
            "Along these 2 lines the loss lies between 0.500 and 3.50. At 2 of 17 places it is not "
            "finite.",
        ),
    ],
)
def test_headlines_of_lines(line: Line, words: str) -> None:
    assert line_headline(line) == words


@pytest.mark.parametrize(
    ("spectra", "words"),
    [
        (
            drawings.spectra(),
            "The same network, the same predictions: the largest eigenvalue is 2.00 (here) and 600 "
            "(sharpened).",
        ),
        (
            Spectra((drawings.spectrum("here"),), drawings.provenance()),
            "The largest of 100 eigenvalues is 2.00.",
        ),
        (
            Spectra((drawings.spectrum("a"), drawings.spectrum("b", 3.0)), drawings.provenance()),
            "The largest eigenvalue is 2.00 (a) and 6.00 (b).",
        ),
    ],
)
def test_headlines_of_spectra(spectra: Spectra, words: str) -> None:
    assert spectra_headline(spectra) == words


# Pages -------------------------------------------------------------------------------------------


def test_the_page_of_an_orbit_says_its_numbers() -> None:
    source = page(drawings.orbit())
    seen = text(source)
    assert (
        "Largest change of any prediction 3e-15 of the largest prediction, on 1,437 examples and "
        "on random inputs Largest loss, here 3.01 0.0100 at the centre "
        "Largest loss, sharpened 30.0 0.0100 at the centre" in seen
    )
    assert row(source, "here") == "here 0.0100 0.0100 3.01 81 of 81"
    assert row(source, "sharpened") == (
        "sharpened 0.0100 0.0100 30.0 81 of 81 ✓ 3e-15 exact, on 1,437 examples and on random "
        "inputs"
    )
    assert "x: first a step of 1 is 3 long in the weights" in seen
    assert (
        "4 steps from epoch 0 to epoch 3; it leaves the plane by at most 0.3; 90% of its variance "
        "lies in the plane (80% and 10%)" in seen
    )
    assert "Notes a note" in seen
    assert "points one by one" in seen
    assert "farthest from a plain pass 2e-16" in seen


def test_what_is_drawn_is_what_was_measured() -> None:
    values = put(bowl(), (0, 0, math.inf), (1, 0, math.nan), (2, 0, None))
    surface = drawings.surface(Sheet("here", values))
    told = data(page(surface), "plane")
    assert told["sheets"][0]["values"][0][:4] == ["Infinity", "NaN", None, 2.0725]
    whole = [v for drawn_row in told["sheets"][0]["values"][1:] for v in drawn_row]
    known = [v for known_row in surface.values[1:] for v in known_row]
    assert whole == pytest.approx(known, rel=1e-5)
    assert told["first"] == "log"
    assert told["scales"]["linear"]["high"] == max(v for v in known if v is not None)
    assert told["scales"]["log"]["labels"][:3] == ["0.01", "0.02", "0.05"]


def test_each_sheet_has_its_own_words_and_its_own_certificate() -> None:
    sheets = data(page(drawings.orbit()), "plane")["sheets"]
    assert [sheet["words"] for sheet in sheets] == [
        "Point 1 of 3, here. Losses from 0.0100 to 3.01. The predictions of the other points are "
        "compared with those of this one.",
        "Point 2 of 3, balanced. Losses from 0.0100 to 1.51. Largest change of any prediction: 0, "
        "on 1,437 examples and on random inputs.",
        "Point 3 of 3, sharpened. Losses from 0.0100 to 30.0. Largest change of any prediction: "
        "3e-15, on 1,437 examples and on random inputs.",
    ]
    assert [sheet["change"] for sheet in sheets] == ["", "0", "3e-15"]


def test_a_refuted_point_is_told() -> None:
    source = page(drawings.orbit(second=certificate(0.3, "refuted")))
    assert "✗ 3e-1 refuted" in row(source, "sharpened")
    assert '<div class="broken">' in source


def test_one_sheet_needs_no_slider() -> None:
    source = page(drawings.surface())
    assert 'id="stop"' not in source
    assert "Over the plane" in text(source)
    assert "largest change" not in text(source).lower()


def test_nothing_to_draw_is_not_drawn() -> None:
    source = page(drawings.surface(Sheet("here", tuple((math.nan,) * 9 for _ in range(9)))))
    assert "<canvas" not in source
    assert "0 of 81" in row(source, "here")


def test_an_interruption_is_told_and_what_is_missing_is_marked() -> None:
    told = drawings.provenance(interrupted="80 of 81 points were evaluated")
    sheet = Sheet("here", put(bowl(), (8, 8, None)))
    seen = text(page(drawings.surface(sheet, provenance=told)))
    assert "Interrupted: 80 of 81 points were evaluated" in seen
    assert "not evaluated" in seen
    assert " not finite" not in seen


def test_a_line_and_spectra_say_their_numbers() -> None:
    line = page(drawings.line(2.0, 0.1))
    assert row(line, "as they are") == "as they are 0.100 2.15 2.00000 9 11"
    assert row(line, "aligned") == (
        "aligned 0.100 0.256 0.100000 9 11 ✓ 4e-16 exact, on 1,437 examples and on random inputs"
    )
    curves = data(line, "line")["curves"]
    assert curves[0]["losses"][5] == pytest.approx(2.15)
    assert curves[0]["barrier"] == 2.0
    assert data(page(drawings.rays()), "line")["curves"][1]["losses"][-3:] == [
        "Infinity",
        "NaN",
        None,
    ]
    spectra = page(drawings.spectra())
    assert row(spectra, "here") == "here 100 -0.300 2.30 2.00000"
    assert data(spectra, "spectra")["axis"] == {"low": -150.0, "high": 750.0, "linear": 0.25}


def test_what_comes_from_outside_is_escaped() -> None:
    evil = "</script><script>alert(1)</script>"
    told = drawings.provenance(notes=[evil], interrupted=evil, engine=evil, versions={evil: evil})
    sheets = (Sheet(evil, bowl()), Sheet(evil + "2", bowl(9), certificate=certificate(0.0)))
    source = page(drawings.surface(*sheets, provenance=told), title=evil)
    assert "<script>alert" not in source
    assert source.count("</script>") == 3  # the theme, the data, the figures
    assert evil in html.unescape(source)


@pytest.mark.parametrize("name", ALL)
def test_a_page_needs_nothing_else(name: str) -> None:
    source = page(ALL[name])
    assert "default-src 'none'" in source
    assert not re.search(r"https?://|<(link|img|iframe)\b|\bsrc=|@import|url\(", source)


def test_a_page_is_not_large() -> None:
    axis = tuple(k / 12 for k in range(-12, 13))
    values = tuple(tuple(0.01 + x * x / 3 + y * y / 7 for x in axis) for y in axis)
    sheets = tuple(Sheet(f"{k}", values, values, None, certificate(0.0)) for k in range(5))
    directions = (drawings.FIRST, drawings.SECOND)
    surface = Surface(axis, axis, directions, sheets, drawings.provenance())
    assert len(page(surface).encode()) < 400_000


def test_pages_are_drawn_without_torch_numpy_and_matplotlib(tmp_path: Path) -> None:
    for name, result in ALL.items():
        result.to_json(tmp_path / f"{name}.json")
    code = (
        "import sys, pathlib\n"
        "from spiritlevel.results.result import load\n"
        "from spiritlevel.report import write_report\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.json')):\n"
        "    write_report(load(path), path.with_suffix('.html'))\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    for name, result in ALL.items():
        assert (tmp_path / f"{name}.html").read_text(encoding="utf-8") == page(result)


def test_words_hold_for_any_names() -> None:
    words = surface_words(drawings.orbit())
    assert words["labels"] == ["here", "balanced", "sharpened"]
    assert words["keys"][2] == {
        "label": "Largest loss, sharpened",
        "number": "30.0",
        "note": "0.0100 at the centre",
        "kind": "moves",
    }
