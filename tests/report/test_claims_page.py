"""The page of claims: what it says, and that it holds together."""

from __future__ import annotations

import base64
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reports
import spiritlevel as sl
from reports import page as drawn
from reports import text


def section(source: str, name: str) -> str:
    found = re.search(
        rf'<section class="claim beside" id="{name}">.*?</section>', source, re.DOTALL
    )
    assert found, name
    return found[0]


def test_the_headline_counts_and_the_table_links_to_the_sections() -> None:
    source = drawn(reports.claims())
    seen = text(source)
    assert (
        "Theorems on the net of the digits 1 of 2 claims hold. One more was shown on an example of "
        "its own." in seen
    )
    assert "Interrupted" not in seen
    row = re.search(r'<tr role="row" data-name="log_convexity">.*?</tr>', source, re.DOTALL)
    assert row
    assert text(row[0]) == (
        "Log convexity Dinh et al. 2017, 5 a random twin least slack -0.2 ✗ does not hold"
    )
    targets = re.findall(r'<th role="rowheader" scope="row"><a href="#(\w+)">', source)
    assert targets == re.findall(r'<section class="claim beside" id="(\w+)">', source)
    assert len(targets) == 4


def test_a_section_says_statement_source_construction_numbers_and_verdict() -> None:
    source = drawn(reports.claims(hessian_law=reports.SVG))
    assert text(section(source, "hessian_law")) == (
        "Hessian law ✓ holds Dinh et al. 2017, 5 What the hessian_law says. "
        "Built a random twin Found error 7e-16 The law, drawn. "
        "relative error 7e-16 boxes 60 growth 12,039 alpha 2.001"
    )
    assert "◇ shown on its own example" in text(section(source, "radial_map"))
    assert "<figure>" not in section(source, "radial_map")
    assert "○ not checked" in text(section(source, "stability_edge"))
    assert "Found does not apply: no minimum" in text(section(source, "stability_edge"))


def test_the_page_cites_what_is_known_and_no_more() -> None:
    """Titles and section numbers are given only where they were read."""
    seen = text(drawn(reports.claims()))
    assert "ICML 2017 (arXiv 1703.04933)" in seen
    assert "<cite>" not in drawn(reports.claims())
    sources = {claim.source for claim in sl.CLAIMS.values()}
    assert sources == {
        "Dinh et al. 2017",
        "from Dinh et al. 2017",
        "Dinh et al. 2017, 5",
        "Dinh et al. 2017, 5.2",
        "Dinh et al. 2017, suppl. A",
        "Dinh et al. 2017, suppl. C",
        "Dinh et al. 2017, suppl. E",
        "three-lines theorem",
        "Wen et al. 2023, thm. 4.1",
        "Wu and Su 2023",
        "Hochreiter and Schmidhuber 1997",
        "Baldassi et al. 2015, 2016",
        "Wen et al. 2023",
        "Jastrzebski et al. 2018",
        "Zhang et al. 2017",
        "Dziugaite and Roy 2017",
    }


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["holds", "holds"], "All 2 claims hold on this network."),
        (["holds"], "The claim holds on this network."),
        (["fails"], "0 of 1 claims hold."),
        (["not checked"], "No claim could be checked on this network."),
        (["holds", "not checked"], "The claim holds on this network."),
        (["own example"], "Shown on an example of its own."),
        (
            ["holds", "own example", "own example"],
            "The claim holds on this network. 2 more were shown on examples of their own.",
        ),
        (
            ["fails", "own example"],
            "0 of 1 claims hold. One more was shown on an example of its own.",
        ),
    ],
)
def test_headlines(verdicts: list[str], words: str) -> None:
    data = reports.claims()
    data["rows"] = [reports.claim(f"claim_{i}", "x", v) for i, v in enumerate(verdicts)]
    assert f"<h1>{words}</h1>" in drawn(data)


def test_an_interruption_is_told() -> None:
    data = reports.claims()
    data["provenance"]["interrupted"] = "3 of 18 claims were done"
    assert "Interrupted: 3 of 18 claims were done" in text(drawn(data))


def test_numbers_that_are_none_are_still_shown() -> None:
    data = reports.claims()
    numbers = {"a": "Infinity", "b": "NaN", "c": -20616.8, "d": 3.08e6, "e": 0.0}
    data["rows"][0]["finding"]["numbers"] = numbers
    assert "a inf b nan c -20,617 d 3.080e+06 e 0" in text(section(drawn(data), "hessian_law"))


def test_what_comes_from_outside_is_escaped() -> None:
    evil = '"><script>alert(1)</script>'
    svg = reports.SVG.replace("</svg>", "<script>alert(1)</script></svg>")
    data = reports.claims(hessian_law=svg)
    data["network"] = data["provenance"]["interrupted"] = evil
    data["provenance"]["versions"] = {evil: evil}
    words = dict.fromkeys(("statement", "source", "built", "caption"), evil)
    data["rows"][0] |= words
    data["rows"][0]["finding"] |= {"shown": evil, "numbers": {evil: 1.0}}
    source = drawn(data, evil)
    assert "<script>alert" not in source
    assert source.count("</script>") == 1  # the theme
    assert evil in html.unescape(source)


def test_a_figure_is_an_image_of_its_own_and_nothing_else_is_needed() -> None:
    source = drawn(reports.claims(hessian_law=reports.SVG))
    image = re.search(
        r'<img class="single" src="data:image/svg\+xml;base64,([^"]+)" ([^>]+)>', source
    )
    assert image
    assert base64.b64decode(image[1]).decode() == reports.SVG
    assert image[2] == 'alt="Hessian law: error 7e-16" width="480" height="240"'
    assert "default-src 'none'" in source
    assert "img-src data:" in source
    bare = source.replace(image[0], "")
    assert not re.search(r"https?://|<(link|img|iframe)\b|\bsrc=|@import|url\(", bare)


def test_the_name_is_the_function_whatever_was_imported() -> None:
    code = (
        "import spiritlevel as sl; first = sl.claims; import spiritlevel.theorems, spiritlevel.cli;"
        "from spiritlevel import claims; assert first is sl.claims is claims and callable(claims)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_page_from_disk_is_returned_as_a_path(tmp_path: Path) -> None:
    found = sl.claims(None, "any_labels")
    path = sl.write_report(found, str(tmp_path / "claims.html"))
    assert path == tmp_path / "claims.html"
    assert "Theorems on the net of the digits" in path.read_text(encoding="utf-8")
