"""Pages in a real browser, opened from disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium; without one the test is skipped, but not where it must run."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        assert not os.environ.get("CI_CHROMIUM"), "CI must test the report in Chromium"
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, address: str) -> Iterator[Page]:
    """A page; at the end nothing else was fetched and nothing went wrong."""
    page = browser.new_page(color_scheme="light")
    fetched: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    yield page
    page.close()
    assert set(fetched) == {address}
    assert wrong == []


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def scroll_width(page: Page) -> int:
    """Of all that is on the page: more than the window's scrolls sideways."""
    return page.evaluate("document.documentElement.scrollWidth")
