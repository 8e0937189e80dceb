"""The pages of measures and comparisons in a real browser, opened from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize

import tables
from browsing import background, opened, scroll_width
from reports import page as drawn

PAGES = {
    "measure": drawn(tables.table()),
    "compare": drawn(tables.comparison()),
    "three": drawn(tables.three()),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_width_and_both_themes(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"{name}.html"
    path.write_text(PAGES[name], encoding="utf-8")
    with opened(browser, path.as_uri()) as page:
        for width in (320, 390, 720, 800, 1280):
            page.set_viewport_size(ViewportSize(width=width, height=844))
            assert scroll_width(page) <= width
        light = background(page)
        page.emulate_media(color_scheme="dark")
        dark = background(page)
        assert dark != light
        page.locator("#theme").click()
        assert background(page) == light


def test_on_a_phone_every_number_has_its_label(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    path.write_text(PAGES["compare"], encoding="utf-8")
    with opened(browser, path.as_uri()) as page:
        page.set_viewport_size(ViewportSize(width=390, height=844))
        cell = page.locator("tr[data-name=hessian_spectral] td").first
        shown = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert shown == '"small"'
        assert cell.locator(".value").inner_text() == "0.213251"
        assert page.get_by_role("row").filter(has_text="spectral norm").count() == 1
