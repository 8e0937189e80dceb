"""What a study says of itself, recounted from its rows."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

import studied
from spiritlevel.results.study import Findings, Ranked, Row
from spiritlevel.studies.analysis import analyse

FULL = studied.full()


def row(name: str, tau: float, *, half: float = 0.1, **more: Any) -> Row:
    """A measure that rescaling moves."""
    ends = Ranked(tau, tau - half, tau + half)
    first = replace(FULL.rows[0], name=name, title=name, invariant=False, tau=ends, p=0.5)
    return replace(first, **{"bottom": "", "gain": None, **more})


def said(*rows: Row) -> tuple[str, ...]:
    return replace(FULL, rows=rows).sentences


def test_the_largest_tau_is_the_largest() -> None:
    best = said(row("a", 0.6), row("b", -0.3), row("c", 0.55))[0]
    assert best == (
        "The largest tau with the gap is 0.60 (0.50 to 0.70), of a; the intervals of 1 of 2 others "
        "reach as far."
    )
    assert said(row("a", 0.6), row("b", 0.1))[0].endswith("of a.")


def test_a_negative_tau_is_not_called_the_largest() -> None:
    best = said(row("a", 0.5), row("b", -0.6))[0]
    assert best.startswith(
        "The tau farthest from zero with the gap is -0.60 (-0.70 to -0.50), of b"
    )
    assert "intervals of 1 of 1 others" in best
    none = said(row("a", 0.05), row("b", -0.06))[0]
    assert none.startswith("No measure is shown to rank the gap: the tau farthest from zero is -0.")
    assert said(row("b", -0.6))[0].startswith("The largest tau")  # it is alone


def test_what_is_not_known_is_not_counted() -> None:
    nan = Ranked(math.nan, math.nan, math.nan)
    lost = replace(row("a", 0.1), tau=nan, p=math.nan)
    assert said(lost) == ("No measure could be ranked against the gap.",)
    assert said(lost, row("b", 0.4, p=0.01))[1] == (
        "1 of 1 measures rank it beyond chance (Holm, 5%)."
    )


def gain(value: float, half: float = 0.05) -> dict[str, Any]:
    return {"bottom": "x", "gain": Ranked(value, value - half, value + half)}


def test_of_how_many_the_orbit_is_divided_out() -> None:
    """Of all that rescaling moves some have no such row; what rises below zero ranks less."""
    up, down = row("up", 0.3, **gain(0.2)), row("down", 0.3, **gain(-0.1))
    still, other = row("still", 0.2, **gain(0.01)), row("other", 0.1)
    stays = row("stays", 0.1, invariant=True)
    assert said(up, down, still, stays)[2] == (
        "Dividing out the orbit, in all 3 measures that rescaling moves, raises the tau of 1, "
        "lowers that of 1 and leaves 1 open; the largest change is 0.20 (0.15 to 0.25), of up."
    )
    some = "Dividing out the orbit, in 1 of the 2 measures that rescaling moves, raises "
    assert said(up, other, stays)[2].startswith(some)
    below, above = row("below", -0.6, **gain(0.3)), row("above", -0.1, **gain(0.4))
    words = said(up, below, above, row("less", -0.3, **gain(0.01)))[2]
    assert "raises the tau of 3" in words
    assert words.endswith("1 of those that change are below zero, where a higher tau ranks less.")


@pytest.mark.parametrize("turned", [False, True])
def test_counts_are_those_of_the_rows(turned: bool) -> None:
    """Of real statistics, and of the same with every order turned round."""
    made = studied.networks()
    sign = -1 if turned else 1
    made = tuple(replace(n, numbers={"gap": sign * n.numbers["gap"]}) for n in made)
    found: Findings = analyse(made, resamples=200)
    best, chance, divided = found.sentences
    rows = list(found)
    strongest = max(rows, key=lambda r: abs(r.tau.value))
    assert f"is {strongest.tau.text}, of {strongest.title}" in best
    top = max(rows, key=lambda r: r.tau.value)
    assert best.startswith("The largest tau") == (top is strongest)
    assert chance.startswith(f"{sum(r.p < 0.05 for r in rows)} of {len(rows)} measures")
    moved = [r for r in rows if not r.invariant]
    with_end = [r for r in moved if r.bottom]
    assert {r.name for r in with_end} == {r.name for r in rows if r.gain is not None}
    gains = {r.name: found[r.bottom].tau.value - r.tau.value for r in with_end}
    assert all(found[r.bottom].invariant for r in with_end)
    for r in with_end:
        assert r.gain is not None
        if r.n == found[r.bottom].n == len(made):
            assert r.gain.value == pytest.approx(gains[r.name])
    counted = re.match(
        r".* (\d+) of the (\d+) .* of (\d+), lowers that of (\d+) and leaves (\d+)", divided
    )
    assert counted
    ups = sum(r.gain.low > 0 for r in with_end if r.gain)
    downs = sum(r.gain.high < 0 for r in with_end if r.gain)
    expected = (len(with_end), len(moved), ups, downs, len(with_end) - ups - downs)
    assert tuple(map(int, counted.groups())) == expected
