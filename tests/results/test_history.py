"""The course of a training as a result: what it says, prints, writes and draws."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import courses
import spiritlevel as sl
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.results.course import Verdict
from spiritlevel.results.history import History, Reading
from spiritlevel.results.history_tables import thinned


@pytest.mark.parametrize(
    ("pairs", "verdict", "text"),
    [
        (
            [(9.0, 3.0), (3.0, 3.0)],
            Verdict.ALL,
            "Largest eigenvalue fell x 3 from step 0 to step 100 (9.00 to 3.00); on the orbit's "
            "bottom it did not change beyond its error: all of it was coordinates.",
        ),
        ([(9.0, 3.0), (3.0, 2.5)], Verdict.MOST, "bottom x 1.2: most of it was coordinates."),
        ([(1.0, 0.5), (9.0, 4.5)], Verdict.NONE, "rose x 9 from"),
        ([(1.0, 0.5), (9.0, 4.5)], Verdict.NONE, "x 9: none of it was coordinates."),
        ([(4.0, 3.0), (1.0, 1.0)], Verdict.LITTLE, "most of it is the network's own."),
        ([(4.0, 3.0), (1.0, 1.5)], Verdict.PART, "about half of it was coordinates."),
        ([(4.0, 1.0), (2.0, 1.5)], Verdict.REVERSED, "bottom it rose x 1.5: more than all of it"),
        ([(4.0, 3.0), (3.0, 1.0)], Verdict.HIDDEN, "x 3: the coordinates hid a part of it."),
        ([(4.0, 3.0), (4.0, 1.0)], Verdict.HIDDEN, "bottom it fell x 3: the coordinates hid it."),
        ([(4.0, 3.0), (4.0, 3.0)], Verdict.STILL, "did not change beyond its error from step 0"),
        ([(4.0, 3.0), (2.0, None)], Verdict.UNKNOWN, "what of it was coordinates is not known."),
    ],
)
def test_what_may_be_said(
    pairs: list[tuple[float, float | None]], verdict: Verdict, text: str
) -> None:
    history = courses.course(*pairs)
    [change] = history.changes
    assert change.verdict is verdict
    assert text in history.headline


def test_coordinates_are_blamed_only_for_what_was_resolved() -> None:
    """Here 3 to 2.6 with errors of 0.2, at the bottom 2.2 to 1.95: that may be the same change."""
    noisy = courses.course((3.0, 2.2), (2.6, 1.95), error=0.2, least_error=1e-3)
    assert noisy.changes[0].verdict is Verdict.UNRESOLVED
    assert noisy.headline == (
        "Largest eigenvalue did not change beyond its error from step 0 to step 100 (3.00 to "
        "2.60); on the orbit's bottom it fell x 1.13: the change here was not resolved."
    )
    some = courses.course((4.0, 3.0), (4.0, 1.0), error=0.4)  # by 1.2 at most, of 3
    assert some.changes[0].verdict is Verdict.HIDDEN
    assert some.headline.endswith("it fell x 3: the coordinates hid a part of it.")


def test_wide_errors_leave_it_undecided() -> None:
    history = courses.course((9.0, 3.0), (3.0, 2.5), least_error=2.4)
    assert history.changes[0].verdict is Verdict.UNDECIDED
    assert history.headline.endswith("how much of it was coordinates is undecided.")
    unknown = courses.course((9.0, 3.0), (3.0, 2.5), least_error=2.5)  # down to zero
    assert unknown.changes[0].verdict is Verdict.UNDECIDED


@given(
    here=st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)),
    shares=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)),
    errors=st.tuples(st.floats(0, 0.3), st.floats(0, 0.3)),
    truth=st.tuples(*[st.floats(-1, 1)] * 4),
)
def test_a_verdict_holds_for_all_values_within_the_errors(
    here: tuple[float, float],
    shares: tuple[float, float],
    errors: tuple[float, float],
    truth: tuple[float, float, float, float],
) -> None:
    """Whatever the true values are, the share of coordinates lies where it is said to."""
    bottoms = here[0] * shares[0], here[1] * shares[1]
    moments = [
        courses.moment(
            k,
            1.0,
            courses.reading(h, b, error=errors[0] * h, least_error=errors[1] * b),
        )
        for k, (h, b) in enumerate(zip(here, bottoms, strict=True))
    ]
    [change] = History((), tuple(moments), courses.TOLD).changes
    a, b = (h * (1 + errors[0] * t) for h, t in zip(here, truth[:2], strict=True))
    c, d = (m * (1 + errors[1] * t) for m, t in zip(bottoms, truth[2:], strict=True))
    moved, below = math.log(b / a), math.log(d / c)
    assert change.here.low - 1e-12 <= moved <= change.here.high + 1e-12
    if change.here.sign:
        assert math.copysign(1, moved) == change.here.sign
        assert change.coordinates is not None
        part = 1 - below / moved
        assert change.coordinates.low - 1e-9 <= part <= change.coordinates.high + 1e-9
        ends = {
            Verdict.ALL: (0.9, 1.1),
            Verdict.MOST: (0.5, math.inf),
            Verdict.LITTLE: (-math.inf, 0.5),
            Verdict.NONE: (-0.1, 0.1),
            Verdict.REVERSED: (1.0, math.inf),
            Verdict.HIDDEN: (-math.inf, 0.0),
        }
        assert change.verdict is not Verdict.UNRESOLVED
        low, high = ends.get(change.verdict, (-math.inf, math.inf))
        assert low - 1e-9 <= part <= high + 1e-9
    elif change.verdict is Verdict.HIDDEN:
        assert abs(moved - below) > 0
        if "hid it" in change.text:
            assert abs(moved) < 0.1 * abs(math.log(bottoms[1] / bottoms[0])) + 1e-9


def test_the_edge_is_told_with_its_errors() -> None:
    """2 / 0.2 = 10: 12 and 11 lie beyond it, 10 is on it."""
    history = courses.full()
    shares = [m.edge_share for m in history.moments[:4]]
    assert [e.value for e in shares if e is not None] == pytest.approx([1.2, 1.1, 1.0, 0.9])
    assert [e.error for e in shares if e is not None] == pytest.approx([1e-5] * 4)
    assert (
        "at 2 of 4 looks (undecided at 1 more); largest at step 0: 1.20 times the edge."
        in history.sentences[-1]
    )


def test_the_table_fits_and_loses_no_digit() -> None:
    text = str(courses.full(extra=6))
    assert max(map(len, text.splitlines())) <= 100
    for shown in ("12.00", "1.20", "8.000", "30.0 ± 1", "20.00", "1234", "0.5000"):
        assert shown in text
    words = " ".join(text.split())
    assert text.count("1240") == 4  # 1239.5, of the sixth measure of its own
    assert "no rescaling moves: Fisher-Rao norm" in words
    assert "the loss is inf here (step 400)" in words
    assert "of which the watch took 2.0 s (10%)" in words
    narrow = History((), (), courses.TOLD)
    assert "No finite loss was seen." in narrow.headline
    assert str(narrow)


def test_long_courses_are_thinned_and_say_so() -> None:
    assert thinned(range(100), 4) == [0, 33, 66, 99]
    history = courses.course(*[(9.0, 3.0)] * 60)
    text = str(history)
    assert "36 moments between these are left out" in text
    assert "step 5900" in text
    assert len(history.records()) == 60


def test_it_comes_back_from_json_and_csv(tmp_path: Path) -> None:
    history = courses.full()
    history.to_json(tmp_path / "h.json")
    back = sl.load(tmp_path / "h.json")
    assert back == history
    assert isinstance(back, History)
    assert json.loads(history.to_json())["headline"] == history.headline
    assert back["step 100"]["lambda_max"].estimate.value == 11.0
    with pytest.raises(sl.SpiritlevelError, match="no moment 'step 7'; there are: step 0, "):
        back["step 7"]
    rows = list(csv.DictReader(io.StringIO(history.to_csv())))
    assert len(rows) == 3 + 4 * 3 + 1
    found = {(r["moment"], r["measure"]): r for r in rows}
    assert float(found["step 200", "lambda_max"]["least"]) == 7.0
    assert float(found["epoch 2", ""]["loss"]) == 1.0
    assert found["step 400", ""]["loss"] == "inf"


def test_the_figure_draws_every_value_where_it_was_seen() -> None:
    figure = courses.full().plot()
    drawn = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}
    assert set(drawn) == {
        "loss (grey: as the batches were met), log axis",
        "largest eigenvalue",
        "trace",
        "Fisher-Rao norm",
    }
    lines = {line.get_label(): line for line in drawn["largest eigenvalue"].lines}
    assert np.asarray(lines["here"].get_ydata()).tolist() == [12.0, 11.0, 10.0, 9.0]
    assert np.asarray(lines["here"].get_xdata()).tolist() == [0, 100, 200, 300]
    assert np.asarray(lines["least on the orbit"].get_ydata()).tolist() == [8.0, 7.5, 7.0, 6.5]
    assert np.asarray(lines["2 / rate"].get_ydata()).tolist() == [10.0] * 4
    assert [line.get_label() for line in drawn["Fisher-Rao norm"].lines] == [
        "no rescaling moves it"
    ]
    html = courses.full().to_html()
    assert html.startswith("<figure><svg")
    assert "<td>8.000</td>" in html
    assert "<td>epoch" not in html
    assert "loss as met" in " ".join(html.split())


def bounded_course(*pairs: tuple[float, float | None]) -> History:
    """Where nothing is known from below of the first values at the bottom."""
    moments = []
    for k, (here, most) in enumerate(pairs):
        least = None if most is None else Estimate(most, status=Status.UPPER_BOUND)
        read = replace(courses.reading(here, 1.153), least=least or courses.eigenvalue(1.153))
        moments.append(courses.moment(100 * k, 1.0, read))
    return History((), tuple(moments), courses.TOLD)


def test_what_is_known_of_one_side_only_decides_what_it_can() -> None:
    """From at most 0.578 to 1.153 is a rise by at least 1.99, whatever the first value is."""
    [change] = bounded_course((1.2, 0.578), (2.4, None)).changes
    assert change.verdict is Verdict.LITTLE
    assert change.text == (
        "largest eigenvalue rose x 2 from step 0 to step 100 (1.20 to 2.40); on the orbit's bottom "
        "at least x 1.99: most of it is the network's own."
    )
    [most] = bounded_course((1.0, None), (10.0, 1.5)).changes
    assert most.verdict is Verdict.MOST
    assert "on the orbit's bottom it rose x 1.31 at most: most of it was coordinates" in most.text
    [rounded] = bounded_course((1.2, 0.55), (2.4, None)).changes
    assert "at least x 2.09:" in rounded.text  # 1.153 / 0.55 is 2.0963 less its error
    [unknown] = bounded_course((2.4, 1.2), (1.2, 0.578)).changes
    assert unknown.verdict is Verdict.UNDECIDED
    assert "on the orbit's bottom its change is not known: how much" in unknown.text


def test_small_changes_are_said_in_per_cent() -> None:
    [change] = courses.course((20.0, 15.0), (20.1, 15.0)).changes
    assert "rose by 0.5% from" in change.text
    [change] = courses.course((20.1, 15.0), (20.0, 15.0)).changes
    assert "fell by 0.5% from" in change.text


def test_a_value_from_which_nothing_is_known_below_is_at_most_that(tmp_path: Path) -> None:
    history = bounded_course((1.2, 0.578), (2.4, None))
    assert "≤ 0.578" in str(history)
    page = sl.write_report(history, tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<small class="least">least ≤ 0.578000</small>' in page
    assert '"below": [0.578, 0.0001]' in page  # the band goes down to nothing, not up
    bounded = Reading("keskar", Estimate(0.5, status=Status.LOWER_BOUND))
    one = replace(history, moments=(courses.moment(0, 1.0, bounded),))
    assert "≥ 0.5" in str(one)
