"""Bounds as a result: what they say, and that nothing that is said is smaller than the bound."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bounded
import spiritlevel as sl
from spiritlevel.base.spoken import at_least, at_most, percent_at_most
from spiritlevel.bounds.binary import kl_inverse
from spiritlevel.results.bound import Bounds, Row
from spiritlevel.results.bound_words import main_at
from spiritlevel.results.grid import cells
from spiritlevel.results.ladder import STEPS, ladder

FULL = bounded.full()


@given(st.floats(1e-12, 1e12))
def test_bounds_are_rounded_to_the_safe_side(value: float) -> None:
    exact = Decimal(repr(value))
    above, below = Decimal(at_most(value)), Decimal(at_least(value))
    assert below <= exact <= above
    assert above - below <= exact / 999
    part = Decimal(percent_at_most(value)[:-1])
    assert 100 * exact <= part <= 100 * exact * (1 + Decimal("0.01001"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.17, "0.1700"), (0.170001, "0.1701"), (1.0, "1.000"), (15300001.0, "1.531e7")],
)
def test_digits_of_a_bound(value: float, shown: str) -> None:
    assert at_most(value) == shown


def test_what_is_not_finite_keeps_its_name() -> None:
    assert (at_most(math.inf), at_least(0.0)) == ("inf", "0.0")


def test_the_guarantee_is_the_first_sentence() -> None:
    least = main_at(FULL, "orbit")
    assert least is not None
    assert FULL["maurer"] is least
    assert FULL.headline == (
        "With probability 0.95 over the draw of the 1,437 examples, networks drawn around this one "
        f"err on at most {percent_at_most(least.value)} of new examples."
    )
    said = " ".join(FULL.sentences)
    assert (
        "from 180.3 to 130.5 nats (with this prior nowhere on the orbit below 130.4): 28% of it"
        in said
    )
    assert "the bound is 25.8%" in said  # as it was trained
    assert "err on 5.61 ± 0.02% of these examples, and on 7.12 ± 0.04% of the test" in said
    assert "3 of 8 bounds are vacuous" in said


def test_what_is_vacuous_guarantees_nothing() -> None:
    empty = Bounds(bounded.rows(9e4, 8e4), bounded.origin(kl=9e4, least=8e4), bounded.TOLD)
    assert empty["maurer"].vacuous
    assert empty.headline.startswith("No guarantee: with probability 0.95 over the draw of")
    assert "is 1.000, and 1 is known without it" in empty.headline
    assert "As it was trained, the bound is 100%." in empty.sentences[1]


def test_other_sentences_where_the_orbit_does_nothing_or_was_not_asked() -> None:
    same = Bounds(bounded.rows(), bounded.origin(least=180.2999), bounded.TOLD)
    assert same.sentences[1].startswith("Rescaling weights hardly lowers the divergence: 180.3")
    rows = tuple(row for row in bounded.rows() if row.point == "here")
    plain = Bounds(rows, bounded.origin(least=None, lower_bound=None, test=None), bounded.TOLD)
    assert "at most 25.8% of new examples" in plain.headline
    assert not re.search("escaling|test examples", " ".join(plain.sentences))
    assert len(ladder(plain)) == 1


def test_a_prior_that_saw_examples_is_where_the_posterior_comes_from() -> None:
    half = Bounds(bounded.rows(), bounded.origin(examples=700), bounded.TOLD)
    assert (half.informed, FULL.informed) == (True, False)
    assert "the 700 examples, networks drawn from its posterior err on" in half.headline


def test_sentences_without_a_posterior() -> None:
    rows = bounded.rows()[4:]
    assert Bounds(rows, None, bounded.TOLD).headline == "Mean gap <= 0.2500."
    nothing = "None of 3 bounds says more than is known without it."
    assert Bounds(rows[:3], None, bounded.TOLD).headline == nothing
    assert Bounds((), None, bounded.TOLD).headline == "No bound was computed."


def test_the_steps_end_at_the_bound() -> None:
    here, least = ladder(FULL)
    assert (here.point, least.point) == ("here", "orbit")
    confidence = kl_inverse(bounded.ABOVE, math.log(2 * math.sqrt(1437) / 0.05) / 1437)
    for rung in (here, least):
        assert sum(rung.parts) == pytest.approx(rung.bound.value, rel=1e-12)
        assert rung.heights[:2] == (0.0561, bounded.ABOVE)
        assert rung.heights[2] == pytest.approx(confidence, rel=1e-9)
        assert rung.heights[3] == least.bound.value
        assert list(rung.heights) == sorted(rung.heights)
    assert here.parts[4] == pytest.approx(here.bound.value - least.bound.value)
    assert len(STEPS) == len(here.parts)
    far = Bounds(bounded.rows(9e4, 8e4), bounded.origin(kl=9e4, least=8e4), bounded.TOLD)
    assert all(rung.heights[-1] == 1.0 for rung in ladder(far))


def test_vacuous_rows_are_grey_and_say_so() -> None:
    lines = [line for line in FULL.grid().rows if len(line) > 1]
    for row, line in zip(FULL.rows, lines, strict=True):
        assert {cell.style for cell in line} == ({"dim"} if row.bound.vacuous else {""})
        assert (line[3].text == "vacuous") == row.bound.vacuous
        assert line[1:3] == tuple(cells(row.point, at_most(row.bound.value), style=line[0].style))
    titles = [line[0].text.strip() for line in lines]
    assert titles[:3] == ["PAC-Bayes, kl inverted", "", "PAC-Bayes, square root"]
    # however the rows come, the points of one bound stand under each other
    mixed = replace(FULL, rows=tuple(sorted(FULL.rows, key=lambda row: row.point != "here")))
    shown = [line for line in mixed.grid().rows if len(line) > 1]
    assert {(a.text, b.text) for a, b, *_ in shown} == {
        (line[0].text, line[1].text) for line in lines
    }
    assert len(shown) == len(lines)


def test_what_is_bounded_stands_above_its_bounds() -> None:
    heads = [line[0].text for line in FULL.grid().rows if len(line) == 1]
    assert heads == list(dict.fromkeys(row.bound.of for row in FULL))


def test_it_is_asked_by_name() -> None:
    assert FULL["vc"].vacuous
    assert FULL["maurer"]["kl"] == 130.5
    assert float(FULL["vc"]) == 7.31
    assert str(FULL["vc"]) == "error of this network <= 7.310 with probability 0.95 (vacuous)"
    assert [row.name for row in FULL] == [record["name"] for record in FULL.records()]
    with pytest.raises(sl.SpiritlevelError, match="no bound 'x'; there are: maurer, mcallester"):
        FULL["x"]
    with pytest.raises(sl.SpiritlevelError, match="no term 'x'; there are: error, kl"):
        FULL["maurer"]["x"]


def test_every_bound_is_drawn(tmp_path: Path) -> None:
    figure = FULL.plot(tmp_path / "bounds.svg")
    axes: list[Any] = figure.axes
    rows, steps, parts = axes
    assert [dot.get_xdata()[0] for dot in rows.lines[1:]] == [row.bound.value for row in FULL]
    hollow = [dot.get_markerfacecolor() == "none" for dot in rows.lines[1:]]
    assert hollow == [row.bound.vacuous for row in FULL]
    widths = [patch.get_width() for patch in steps.patches]
    assert widths == pytest.approx([part for rung in ladder(FULL) for part in rung.parts])
    assert sorted(p.get_width() for p in parts.patches) == sorted(
        value for part in bounded.origin().parts for value in (part.kl, part.least or 0.0)
    )
    alone = Bounds((Row("here", replace(FULL["vc"], value=math.inf)),), None, bounded.TOLD)
    assert len(alone.plot().axes) == 1
    assert "<svg" in alone.to_html()
