"""The page of an audit in a real browser, opened from disk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

import conformance
import reports
import spiritlevel as sl
from browsing import background, opened, scroll_width


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the report lies."""
    path: Path = tmp_path_factory.mktemp("report") / "audit.html"
    path.write_text(reports.page(reports.audit(way=reports.way())), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser: Browser, report: str) -> Iterator[Page]:
    """The report, opened; at the end nothing was fetched and nothing went wrong."""
    with opened(browser, report) as page:
        yield page


def numbers(page: Page) -> list[str]:
    return page.locator("#predictions dd").all_inner_texts()


def heights(page: Page) -> list[float]:
    marks = page.locator("#spectrum .dot").all()
    return [float(mark.get_attribute("cy") or "nan") for mark in marks]


def test_it_starts_here(page: Page) -> None:
    assert page.locator("#stop").input_value() == "1"
    assert page.locator("#readout").inner_text() == (
        "Stop 2 of 5, here. The weights as they were given. Largest change of any prediction: 0."
    )
    assert page.locator("#top").inner_text() == "6.000"
    assert numbers(page) == ["0.991234", "0.008766", "0.750000", "0.250000"]


def test_the_keyboard_moves_the_spectrum_and_not_the_predictions(page: Page) -> None:
    slider = page.locator("#stop")
    slider.press("Home")
    tops, dots, curves, shown = [], [], [], []
    for _ in range(5):
        tops.append(page.locator("#top").inner_text())
        dots.append(heights(page)[0])
        curves.append(page.locator("#slice .curve").get_attribute("d"))
        shown.append(numbers(page))
        slider.press("ArrowRight")
    assert tops == ["1.500", "6.000", "24.00", "96.00", "384.0"]
    assert all(after < before for before, after in pairwise(dots))
    assert len(set(curves)) == 5
    assert shown == [shown[0]] * 5
    assert page.locator("#change").inner_text() == "3e-08"
    assert page.locator("#readout").get_attribute("aria-live") == "polite"
    assert page.locator("#readout").inner_text() == (
        "Stop 5 of 5, sharpened. The minimum is 64.00 times as sharp as here. "
        "Largest change of any prediction: 3e-08."
    )
    assert slider.get_attribute("aria-valuetext") == "Stop 5 of 5, sharpened"


def test_the_predictions_shown_are_those_of_the_stop(browser: Browser, tmp_path: Path) -> None:
    """The panel would show a change if there were one."""
    way = reports.way()
    way["stops"][-1]["predictions"][0] = [0.5, 0.5]
    path = tmp_path / "audit.html"
    path.write_text(reports.page(reports.audit(way=way)), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.locator("#stop").press("End")
    assert numbers(page)[:2] == ["0.500000", "0.500000"]
    page.close()


def test_a_real_audit(browser: Browser, tmp_path: Path) -> None:
    """Curvature by the thousand, and not one digit of a prediction."""
    path = sl.write_report(sl.audit(conformance.objective()), tmp_path / "report.html")
    page = browser.new_page()
    fetched: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.on("console", lambda message: wrong.append(message.text))
    page.goto(path.as_uri())
    tops, shown = [], []
    page.locator("#stop").press("Home")
    for _ in range(9):
        tops.append(float(page.locator("#top").inner_text()))
        shown.append(numbers(page))
        page.locator("#stop").press("ArrowRight")
    page.close()
    assert shown == [shown[0]] * 9
    assert all(float(number) <= 1 for number in shown[0])
    assert len(set(tops)) == 9
    assert tops[-1] > 1e3 * tops[0]
    assert fetched == [path.as_uri()]
    assert wrong == []


def test_named_stops_are_buttons(page: Page) -> None:
    page.get_by_role("button", name="sharpened").click()
    assert page.locator("#stop").input_value() == "4"
    page.get_by_role("button", name="balanced").click()
    assert page.locator("#top").inner_text() == "1.500"


def test_play_walks_to_the_end_and_begins_again(page: Page) -> None:
    page.clock.install()
    play = page.locator("#play")
    play.click()
    assert play.get_attribute("aria-pressed") == "true"
    page.clock.run_for(10_000)
    assert page.locator("#stop").input_value() == "4"
    assert play.get_attribute("aria-pressed") == "false"
    play.click()
    assert page.locator("#stop").input_value() == "0"
    page.clock.run_for(1_000)
    play.click()
    page.clock.run_for(10_000)
    assert page.locator("#stop").input_value() == "1"


@pytest.mark.parametrize("width", [390, 320, 800])
def test_no_width_scrolls_sideways(page: Page, width: int) -> None:
    page.set_viewport_size(ViewportSize(width=width, height=844))
    page.locator("summary").click()
    assert scroll_width(page) <= width
    page.locator("#stop").press("End")
    assert scroll_width(page) <= width


def test_dark_by_the_system_and_by_hand(page: Page) -> None:
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert dark != light
    page.locator("#theme").click()
    assert background(page) == light
    assert remembered(page, light)
    page.locator("#theme").click()
    assert background(page) == dark


def remembered(page: Page, chosen: str) -> bool:
    """Does it open as chosen? A browser writes down in its own time: it is given some seconds."""
    for wait in (100, 300, 1000, 3000, 10_000):
        page.wait_for_timeout(wait)
        page.reload()
        if background(page) == chosen:
            return True
        page.locator("#theme").click()
    return False
