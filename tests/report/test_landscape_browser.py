"""The pages of surfaces, lines and spectra in a real browser, opened from disk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

import drawings
from browsing import background, opened, scroll_width
from drawings import bowl, put
from spiritlevel.report import page as draw
from spiritlevel.results.landscape import Sheet

PAGES = {
    "orbit": draw(drawings.orbit()),
    "holes": draw(
        drawings.surface(
            Sheet("here", put(bowl(), (7, 7, math.inf), (6, 7, math.nan), (0, 0, None)))
        )
    ),
    "line": draw(drawings.line(2.0, 0.1)),
    "rays": draw(drawings.rays()),
    "spectra": draw(drawings.spectra()),
}
# A copy is read: reading the canvas itself again and again makes the browser complain
COPY = """const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);"""
# How much of it has a colour, and a number that hangs on all of its pixels
SEEN = f"""canvas => {{
  {COPY}
  const {{ data }} = copy.getImageData(0, 0, canvas.width, canvas.height);
  let [count, mix] = [0, 7];
  for (let k = 0; k < data.length; k += 4) {{
    if (data[k + 3]) count++;
    mix = (31 * mix + data[k] + 3 * data[k + 1] + 5 * data[k + 2]) % 1000003;
  }}
  return [count / (data.length / 4), mix];
}}"""
AT = f"""(canvas, [x, y]) => {{
  {COPY}
  const ratio = window.devicePixelRatio;
  return [...copy.getImageData(x * ratio, y * ratio, 1, 1).data];
}}"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("pages")
    for name, source in PAGES.items():
        (folder / f"{name}.html").write_text(source, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in PAGES}


@pytest.fixture
def page(browser: Browser, addresses: dict[str, str]) -> Iterator[Page]:
    """The orbit, opened, without gliding; at the end nothing was fetched and nothing went wrong."""
    with opened(browser, addresses["orbit"]) as page:
        page.emulate_media(reduced_motion="reduce")
        settle(page)
        yield page


def settle(page: Page) -> None:
    """Until what was asked for is painted."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def seen(page: Page, name: str = "surface") -> tuple[float, int]:
    settle(page)
    share, mix = page.locator(f"#{name}").evaluate(SEEN)
    return share, mix


def test_both_views_are_drawn(page: Page) -> None:
    assert 0.15 < seen(page)[0] < 0.95
    assert seen(page, "map")[0] > 0.6
    labels = page.locator("#bar-ticks span").all_inner_texts()
    assert labels[0] == "0.01"
    assert "10" in labels


def test_the_slider_moves_the_surface_and_not_the_predictions(page: Page) -> None:
    slider, shown, numbers, largest = page.locator("#stop"), [], [], []
    for _ in range(3):
        shown.append((seen(page)[1], seen(page, "map")[1]))
        numbers.append(page.locator("#change").inner_text())
        largest.append(page.locator("#largest").inner_text())
        slider.press("ArrowRight")
    assert len({surface for surface, _ in shown}) == 3
    assert len({flat for _, flat in shown}) == 3
    assert largest == ["3.010", "1.510", "30.01"]
    assert numbers == ["0", "0", "3e-15"]
    assert page.locator("#readout").inner_text() == (
        "Point 3 of 3, sharpened. Losses from 0.0100 to 30.0. Largest change of any prediction: "
        "3e-15, on 1,437 examples and on random inputs."
    )
    assert slider.get_attribute("aria-valuetext") == "Point 3 of 3, sharpened"
    page.get_by_role("button", name="here").click()
    assert (seen(page)[1], seen(page, "map")[1]) == shown[0]


def test_with_motion_it_glides_to_the_same_picture(page: Page) -> None:
    page.locator("#stop").press("End")
    still = seen(page)
    page.locator("#stop").press("Home")
    page.emulate_media(reduced_motion="no-preference")
    page.locator("#stop").press("End")
    for _ in range(100):  # half a second of motion, longer where the processor is busy
        page.wait_for_timeout(100)
        if seen(page) == still:
            break
    assert seen(page) == still


def test_keys_turn_tilt_and_zoom_and_home_goes_back(page: Page) -> None:
    surface = page.locator("#surface")
    surface.focus()
    start = seen(page)[1]
    assert page.locator("#reset").is_hidden()
    pictures = [start]
    for key in ("ArrowLeft", "ArrowUp", "+"):
        page.keyboard.press(key)
        pictures.append(seen(page)[1])
    assert len(set(pictures)) == 4
    assert float(surface.get_attribute("data-zoom") or 0) == pytest.approx(1.15, abs=1e-3)
    turned = float(surface.get_attribute("data-turn") or 0)
    page.keyboard.press("ArrowRight")
    settle(page)
    assert float(surface.get_attribute("data-turn") or 0) == pytest.approx(
        turned - math.pi / 36, abs=1e-3
    )
    page.keyboard.press("Home")
    assert seen(page)[1] == start
    assert page.locator("#reset").is_hidden()


def test_the_hand_turns_and_a_double_click_goes_back(page: Page) -> None:
    surface = page.locator("#surface")
    surface.scroll_into_view_if_needed()
    box = surface.bounding_box()
    assert box
    start = surface.get_attribute("data-turn")
    middle = (box["x"] + box["width"] / 2, box["y"] + 30)
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 100, middle[1])
    page.mouse.up()
    settle(page)
    assert float(surface.get_attribute("data-turn") or 0) == pytest.approx(
        float(start or 0) - 0.8, abs=1e-3
    )
    surface.dblclick(position={"x": 10, "y": 10})
    settle(page)
    assert surface.get_attribute("data-turn") == start
    page.mouse.wheel(0, -200)  # it has the focus now
    settle(page)
    assert float(surface.get_attribute("data-zoom") or 0) > 1.2


def test_a_place_is_told_as_it_was_measured(page: Page) -> None:
    flat = page.locator("#map")
    flat.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    tip = page.locator(".map .tip")
    assert tip.inner_text().split("\n") == ["x 0.25, y 0.25", "loss 0.1975", "accuracy 50.0%"]
    assert page.locator("#place").inner_text() == "x 0.25, y 0.25; loss 0.1975; accuracy 50.0%"
    page.locator("#stop").press("End")
    flat.focus()
    box = flat.bounding_box()
    assert box
    page.mouse.move(box["x"] + 56, box["y"] + 10)  # the upper left corner of the plane
    assert tip.inner_text().split("\n")[:2] == ["x −1, y 1", "loss 30.01"]


def test_heights_can_be_linear_and_cut(page: Page) -> None:
    assert page.locator("input[value=log]").is_checked()
    logarithmic = seen(page)[1]
    page.locator("input[value=linear]").check()
    straight = seen(page)[1]
    assert straight != logarithmic
    assert page.locator("#bar-name").inner_text() == "loss"
    assert page.locator("#cut-at").inner_text() == "30.01"
    cut = page.locator("#cut")
    cut.fill("10")
    assert page.locator("#cut-at").inner_text() == "3.010"
    assert page.locator("#bar-name").inner_text() == "loss; what is above is cut off"
    assert seen(page)[1] != straight


def test_holes_are_holes(browser: Browser, addresses: dict[str, str]) -> None:
    with opened(browser, addresses["holes"]) as page:
        settle(page)
        flat = page.locator("#map")
        box = flat.bounding_box()
        assert box
        width, height = box["width"] - 56 - 16, box["height"] - 10 - 44

        def colour(i: float, j: float) -> list[int]:
            place = [56 + width * i / 8, 10 + height * (1 - j / 8)]
            return flat.evaluate(AT, place)

        assert colour(3.4, 2.4)[3] == 255  # measured
        assert colour(0.35, 0.6)[3] == 0  # not evaluated: the cell is blank
        broken = {tuple(colour(7 + a / 40, 6.5)) for a in range(30)}
        assert any(c[3] == 0 for c in broken)
        assert any(c[3] > 0 for c in broken)  # hatched
        assert page.locator(".marks .hole").inner_text() == "not finite"
        assert page.locator(".marks .blank").inner_text() == "not evaluated"


def test_curves_follow_the_pointer(browser: Browser, addresses: dict[str, str]) -> None:
    with opened(browser, addresses["line"]) as page:
        assert page.locator("#chart .curve").count() == 2
        assert page.locator("#chart .accuracy").count() == 2
        assert page.locator("#chart .of").all_text_contents() == ["barrier 2", "barrier 0.1"]
        page.locator("#chart").focus()
        page.keyboard.press("ArrowLeft")
        assert page.locator("#told").inner_text() == (
            "At 0.4: as they are 2.060 (80.0%); aligned 0.2360 (80.0%)"
        )
    with opened(browser, addresses["rays"]) as page:
        page.locator("#chart").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        assert page.locator("#told").inner_text() == "At 1: one 1.500; two not evaluated"
        page.keyboard.press("ArrowLeft")
        assert page.locator("#told").inner_text() == "At 0.75: one 1.063; two not finite"
        drawn = page.locator("#chart .curve").nth(1).get_attribute("d") or ""
        assert drawn.count("L") == 5  # six places are finite


def test_spectra_have_a_row_each(browser: Browser, addresses: dict[str, str]) -> None:
    with opened(browser, addresses["spectra"]) as page:
        assert page.locator("#chart .curve").count() == 2
        assert page.locator("#chart .band").count() == 2
        places = [
            float(tick.get_attribute("x1") or 0) for tick in page.locator("#chart .apart").all()
        ]
        assert places[0] < places[1]  # 2 and 600 on one axis


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_width_and_both_themes(
    browser: Browser, addresses: dict[str, str], name: str
) -> None:
    with opened(browser, addresses[name]) as page:
        for width in (320, 390, 800, 1280):
            page.set_viewport_size(ViewportSize(width=width, height=844))
            settle(page)
            assert scroll_width(page) <= width
        light = background(page)
        before = seen(page)[1] if name in ("orbit", "holes") else 0
        page.emulate_media(color_scheme="dark")
        assert background(page) != light
        if before:
            assert seen(page)[1] != before  # axes and floor took the other colours
        page.locator("#theme").click()
        assert background(page) == light
        if before:
            assert seen(page)[1] == before
