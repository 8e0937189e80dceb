"""The page of a training: its words, and its charts in a real browser, opened from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize

import courses
import spiritlevel as sl
from browsing import background, opened, scroll_width
from spiritlevel.base.estimate import format_value
from spiritlevel.results.history import History, Moment


def written(history: History, folder: Path) -> str:
    return sl.write_report(history, folder / "history.html").as_uri()


def test_every_number_of_the_history_is_in_the_table(browser: Browser, tmp_path: Path) -> None:
    history = courses.full()
    with opened(browser, written(history, tmp_path)) as page:
        assert page.locator("h1").inner_text() == history.headline
        said = page.locator(".said li").all_inner_texts()
        assert [text[1:].strip() for text in said] == list(history.sentences[1:])
        for moment in history:
            row = page.locator(f'tr[data-moment="{moment.name}"]')
            loss = row.locator('[data-name="loss"]').inner_text()
            assert float(loss) == pytest.approx(moment.loss, rel=1e-3)
            for reading in moment.readings:
                cell = row.locator(f'[data-name="{reading.name}"]')
                shown = format_value(reading.estimate.value, reading.estimate.error)
                assert cell.locator(".value").inner_text() == shown
                if reading.least is not None:
                    bottom = format_value(reading.least.value, reading.least.error)
                    assert cell.locator(".least").inner_text().startswith(f"least {bottom}")
        assert page.locator("tr[data-epoch]").count() == 3
        assert "the loss is inf here (step 400)" in page.locator(".notes").inner_text()
        assert "2.0 (10%)" in page.locator("footer").inner_text()


def test_charts_tell_the_values_under_the_pointer(browser: Browser, tmp_path: Path) -> None:
    history = courses.full()
    with opened(browser, written(history, tmp_path)) as page:
        figures = page.locator("#courses figure")
        titles = [t.splitlines()[0] for t in figures.locator("h3").all_inner_texts()]
        assert titles == ["loss, log axis", "largest eigenvalue", "trace", "Fisher-Rao norm"]
        top = figures.nth(1)
        assert page.locator("#told").inner_text() == "Values at step 400."
        assert figures.nth(0).locator("p").inner_text() == "not finite"
        top.locator("svg").focus()
        for _ in range(9):
            page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowRight")
        assert page.locator("#told").inner_text() == "Values at step 100."
        assert top.locator("p").inner_text() == "11.00, least 7.500, edge 10.00"
        assert figures.nth(2).locator("p").inner_text() == "29.00 ± 1, least 20.00 ± 0.05"
        assert top.locator(".here circle").count() == top.locator(".least circle").count() == 4
        assert figures.nth(3).locator(".here").count() == 0  # nothing moves it
        heights = [float(c.get_attribute("cy") or "nan") for c in top.locator(".here circle").all()]
        below = [float(c.get_attribute("cy") or "nan") for c in top.locator(".least circle").all()]
        assert heights == sorted(heights)  # falls: y grows downward
        assert all(b > h for b, h in zip(below, heights, strict=True))


@pytest.mark.parametrize(
    "kind", ["full", "epochs alone", "one moment", "nothing", "a hostile name"]
)
def test_every_course_fits_every_width_and_both_themes(
    browser: Browser, tmp_path: Path, kind: str
) -> None:
    whole = courses.full()
    evil = Moment("<script>alert(1)</script>", 1, 1.0, None, (), 0.1, ("</script><b>",))
    history = {
        "full": courses.full(extra=4),
        "epochs alone": History(whole.epochs, (), courses.TOLD),
        "one moment": History((), whole.moments[:1], courses.TOLD),
        "nothing": History((), (), courses.TOLD),
        "a hostile name": History((), (whole.moments[0], evil), courses.TOLD),
    }[kind]
    with opened(browser, written(history, tmp_path)) as page:
        for width in (320, 390, 800, 1280):
            page.set_viewport_size(ViewportSize(width=width, height=844))
            assert scroll_width(page) <= width
        light = background(page)
        page.emulate_media(color_scheme="dark")
        assert background(page) != light
        assert page.locator("#courses figure").count() == {
            "full": 8,
            "epochs alone": 1,
            "a hostile name": 4,
        }.get(kind, 0)
