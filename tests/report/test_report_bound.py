"""The page of bounds: every number of it, in a real browser, opened from disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

import bounded
import spiritlevel as sl
from browsing import background, opened, scroll_width
from spiritlevel.base.spoken import at_most, percent_at_most
from spiritlevel.results.bound import Bounds, Part, Row
from spiritlevel.results.ladder import STEPS, ladder


def written(bounds: Bounds, folder: Path) -> str:
    return sl.write_report(bounds, folder / "bounds.html").as_uri()


def wide(page: Page, where: str) -> list[float]:
    return [box["width"] for one in page.locator(where).all() if (box := one.bounding_box())]


def test_every_bound_is_on_the_page_with_its_terms(browser: Browser, tmp_path: Path) -> None:
    bounds = bounded.full()
    with opened(browser, written(bounds, tmp_path)) as page:
        assert page.locator("h1").inner_text() == bounds.headline
        assert page.locator(".plainly li").all_inner_texts() == list(bounds.sentences[1:])
        for row in bounds:
            card = page.locator(f'article[data-name="{row.name}"]')
            line = card.locator(f'li[data-point="{row.point}"]')
            assert line.locator(".value").inner_text() == f"≤ {at_most(row.bound.value)}"
            assert ("vacuous" in line.inner_text()) == row.bound.vacuous
            assert ("in the mean" in line.inner_text()) == (row.bound.delta is None)
            card.locator("details").evaluate("node => node.open = true")
            assert row.bound.reference in card.inner_text()
            for term in row.bound.terms:
                shown = card.locator(f'tr[data-term="{term.name}"]').inner_text().split("\t")
                assert any(_near(text, term.value) for text in shown[1:]), term
            for assumption in row.bound.assumptions:
                assert assumption in card.locator(".assumed").inner_text()
        assert "no spectral_margin: the network is no chain" in page.locator(".notes").inner_text()


def _near(text: str, value: float) -> bool:
    return float(text.replace(",", "")) == pytest.approx(value, rel=1e-3)


def test_bars_are_as_long_as_their_numbers(browser: Browser, tmp_path: Path) -> None:
    bounds = bounded.full()
    origin = bounds.origin
    assert origin is not None
    with opened(browser, written(bounds, tmp_path)) as page:
        page.set_viewport_size(ViewportSize(width=1280, height=844))
        for rung, name in zip(ladder(bounds), ("as trained", "rescaled"), strict=True):
            bar = f'.rung[data-point="{name}"]'
            widths = wide(page, f"{bar} .bar i")
            shares = [width / sum(widths) for width in widths]
            assert shares == pytest.approx([p / rung.heights[-1] for p in rung.parts], abs=2e-3)
            total = page.locator(f"{bar} .total").inner_text()
            assert total == percent_at_most(rung.bound.value)
        numbers = page.locator(".steps tbody tr").nth(0).locator("td").all_inner_texts()
        assert len(numbers) == len(STEPS) + 1
        for part in origin.parts:
            row = f'tr[data-part="{part.name}"]'
            assert float(page.locator(f"{row} .value").inner_text()) == part.kl
            plain, least = wide(page, f"{row} .bars i")
            assert least / plain == pytest.approx((part.least or 0) / part.kl, rel=0.1)


def test_charts_tell_the_epoch_under_the_pointer(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, written(bounded.full(), tmp_path)) as page:
        figures = page.locator("#courses figure")
        assert figures.count() == 3
        assert page.locator("#told").inner_text() == "Values at epoch 40."
        figures.nth(2).locator("svg").focus()
        for _ in range(30):
            page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowRight")
        assert page.locator("#told").inner_text() == "Values at epoch 2."
        assert figures.nth(2).locator("p").inner_text() == "100.0"
        assert figures.nth(0).locator("svg text").last.text_content() == "epoch"


def hostile() -> Bounds:
    evil = "<script>alert(1)</script>"
    row = Row("here", bounded.bound("evil", evil, float("inf"), assumptions=(evil,)))
    return Bounds((row, *bounded.rows()), bounded.origin(prior=evil), bounded.TOLD)


def many() -> Bounds:
    parts = tuple(Part(f"blocks.{k}.attention.weight", 10**6, 1.5 + k, None) for k in range(40))
    origin = bounded.origin(parts=parts, least=None, lower_bound=None, steps=(), test=None)
    rows = tuple(row for row in bounded.rows() if row.point == "here")
    return Bounds(rows, origin, bounded.TOLD)


PAGES = {
    "full": bounded.full,
    "many parameters, no orbit": many,
    "no posterior": lambda: Bounds(bounded.rows()[4:], None, bounded.TOLD),
    "vacuous": lambda: Bounds(bounded.rows(9e4, 8e4), bounded.origin(kl=9e4), bounded.TOLD),
    "nothing": lambda: Bounds((), None, replace_told(interrupted="0 of 4 bounds were done")),
    "a hostile name": hostile,
}


def replace_told(**more: str) -> Any:
    return {**bounded.TOLD, **more}


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_fits_every_width_and_both_themes(
    browser: Browser, tmp_path: Path, kind: str
) -> None:
    with opened(browser, written(PAGES[kind](), tmp_path)) as page:
        for node in page.locator("details").all():
            node.evaluate("node => node.open = true")
        for width in (320, 390, 800, 1280):
            page.set_viewport_size(ViewportSize(width=width, height=844))
            assert scroll_width(page) <= width
        light = background(page)
        page.emulate_media(color_scheme="dark")
        assert background(page) != light


def test_many_small_parameters_share_a_bar(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, written(many(), tmp_path)) as page:
        assert page.locator("tr[data-part]").count() == 25
        rest = page.locator('tr[data-part="16 others"] .value').inner_text()
        assert float(rest) == sum(1.5 + k for k in range(16))
        assert page.locator(".least").count() == 0


def test_what_was_interrupted_says_so(tmp_path: Path) -> None:
    bounds = replace(bounded.full(), provenance=replace_told(interrupted="2 of 9 were done"))
    assert "Interrupted: 2 of 9 were done" in Path(
        sl.write_report(bounds, tmp_path / "a.html")
    ).read_text(encoding="utf-8")
