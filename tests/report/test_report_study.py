"""The page of a study: its words, and its figures in a real browser, opened from disk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize

import spiritlevel as sl
import studied
from browsing import background, opened, scroll_width
from spiritlevel.report.study import study_words, two
from spiritlevel.report.study_data import five, scatter_data
from spiritlevel.report.study_limits import limits
from spiritlevel.results.ranking import axis_of, lines
from spiritlevel.results.study import Findings, Network, Ranked, Row

EVIL = "<script>alert(1)</script>"


def written(findings: Findings, folder: Path) -> str:
    return sl.write_report(findings, folder / "study.html").as_uri()


def middle(node: Locator) -> float:
    box = node.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2


def order(page: Page) -> list[str]:
    rows = page.locator("#ranks tbody tr").all()
    return [row.get_attribute("data-name") or "" for row in rows]


# Without a script ---------------------------------------------------------------------------------


def test_all_numbers_are_there_without_javascript(browser: Browser, tmp_path: Path) -> None:
    findings = studied.full()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(written(findings, tmp_path))
    assert page.locator("h1").inner_text() == findings.sentences[0]
    assert page.locator(".told p").all_inner_texts() == list(findings.sentences[1:])
    ranked = sorted(findings, key=lambda row: -row.tau.value)
    assert order(page) == [row.name for row in ranked]
    for row in ranked:
        signs, partial = row.signs, row.partial
        assert signs is not None
        assert partial is not None
        shown = page.locator(f'#ranks tr[data-name="{row.name}"]')
        ends = f"{two(row.tau.value)} [{two(row.tau.low)}, {two(row.tau.high)}]"
        assert " ".join(shown.locator('[data-column="tau"]').inner_text().split()) == ends
        for column, value in (
            *(("tau_a", row.tau_a), ("information", row.information), ("mean", signs.mean)),
            *(("p90", signs.p90), ("largest", signs.largest), ("partial", partial.value)),
        ):
            cell = shown.locator(f'[data-column="{column}"] .value').inner_text()
            assert value is not None
            assert float(cell.replace("−", "-")) == pytest.approx(value, abs=0.0051)
        assert shown.locator('[data-column="n"]').inner_text() == str(row.n)
        sign = shown.locator("th .sign").inner_text()
        assert sign == ("◆" if row.invariant else "●")
        psi = shown.locator("details dd").all_text_contents()
        assert psi == [two(value) for value in row.by_axis.values()]
    assert page.locator("#scatter").is_hidden()
    assert page.locator("noscript p").is_visible()
    context.close()


def test_the_ranking_is_drawn_to_scale(browser: Browser, tmp_path: Path) -> None:
    findings = studied.full()
    with opened(browser, written(findings, tmp_path)) as page:
        pairs = [second for _, second in lines(findings.rows) if second is not None]
        assert page.locator("#ladder .joined").count() == len(pairs) == 4
        marks = page.locator("#ladder [data-mark]").all()
        assert len(marks) == len(findings.rows)
        places, taus = [], []
        for mark in marks:
            row = findings[mark.get_attribute("data-mark") or ""]
            places.append(middle(mark.locator(".mark path")))
            taus.append(row.tau.value)
            kind = (mark.get_attribute("class") or "").split()
            assert ("least" in kind) == row.invariant
            assert ("open" in kind) == (row.tau.low <= 0 <= row.tau.high)
            ends = mark.locator(".whisker").bounding_box()
            assert ends is not None
            places += [ends["x"], ends["x"] + ends["width"]]
            taus += [row.tau.low, row.tau.high]
        slope, foot = np.polyfit(taus, places, 1)
        assert places == pytest.approx([foot + slope * tau for tau in taus], abs=2.0)
        assert foot == pytest.approx(middle(page.locator("#ladder .zero").first), abs=2.0)


# The plots ----------------------------------------------------------------------------------------


def test_a_chosen_measure_is_drawn_beside_its_divided_out_one(
    browser: Browser, tmp_path: Path
) -> None:
    findings = studied.full()
    with opened(browser, written(findings, tmp_path)) as page:
        page.locator('#ranks a[data-choose="orbit_spectral"]').click()
        titles = [text[1:] for text in page.locator("#plots h3").all_inner_texts()]
        assert titles == ["spectral norm", "least spectral norm on the orbit"]
        current = page.locator('#ranks [aria-current="true"]').all()
        assert {row.get_attribute("data-name") for row in current} == {
            "hessian_spectral",
            "orbit_spectral",
        }
        page.locator("#measure").select_option(label="Keskar sharpness, eps 0.0005")
        row = findings["keskar(eps=0.0005)"]
        assert row.n < len(findings.networks)
        first = page.locator("#plots figure").first
        assert f"{row.n} networks" in first.locator("p").inner_text()
        assert first.locator(".network").count() == row.n
        page.locator("#measure").select_option(label="Fisher-Rao norm")
        assert page.locator("#plots figure").count() == 1


def test_networks_are_where_their_numbers_are(browser: Browser, tmp_path: Path) -> None:
    findings = studied.full()
    with opened(browser, written(findings, tmp_path)) as page:
        page.locator("#measure").select_option(label="trace")
        figure = page.locator("#plots figure").first
        assert "log axis" in (figure.locator("svg").text_content() or "")
        found = figure.locator(".network path").evaluate_all(
            "nodes => nodes.map(n => [+n.parentNode.dataset.network,"
            " ...n.getAttribute('transform').match(/[\\d.]+/g).map(Number)])"
        )
        k, across, up = np.array(found).T
        made = [findings.networks[int(number)] for number in k]
        logs = np.log([n.values["hessian_trace"] for n in made])
        gaps = np.array([n.numbers["gap"] for n in made])
        assert np.corrcoef(logs, across)[0, 1] > 1 - 1e-6
        assert np.corrcoef(gaps, up)[0, 1] < -1 + 1e-6  # y grows downward


def test_keys_go_through_the_networks_and_ring_their_seeds(
    browser: Browser, tmp_path: Path
) -> None:
    findings = studied.full()
    largest = max(findings.networks, key=lambda n: n.values["hessian_trace"])
    with opened(browser, written(findings, tmp_path)) as page:
        page.locator("#measure").select_option(label="trace")
        figures = page.locator("#plots figure")
        figures.first.locator("svg").focus()
        page.keyboard.press("End")
        said = page.locator("#told").inner_text()
        assert said.startswith(
            f"width {largest.config['width']}, rate {largest.config['rate']}, "
            f"optimizer {largest.config['optimizer']}, seed {largest.seed}: gap 0.0"
        )
        assert f"trace {largest.values['hessian_trace']:.4g}"[:9] in said
        assert " ± " in said
        for figure in (figures.nth(0), figures.nth(1)):
            assert figure.locator(".network.chosen").count() == 1
            assert figure.locator(".network.same").count() == studied.SEEDS
        page.keyboard.press("ArrowLeft")
        assert page.locator("#told").inner_text() != said
        page.keyboard.press("Escape")
        assert page.locator("#told").inner_text().startswith("Point at a network")
        assert page.locator(".network.same").count() == 0
        figures.first.locator(".network").nth(7).locator("path").hover()
        assert page.locator(".network.chosen").count() == 2


def test_colours_and_shapes_are_those_of_an_axis(browser: Browser, tmp_path: Path) -> None:
    findings = studied.full()
    with opened(browser, written(findings, tmp_path)) as page:
        for axis, values in findings.axes.items():
            page.locator("#by").select_option(label=axis)
            labels = page.locator("#shapes li").all_inner_texts()
            assert labels == [axis, *map(str, values)]
            figure = page.locator("#plots figure").first
            for place, value in enumerate(values):
                mine = sum(n.config[axis] == value for n in findings.networks)
                marks = figure.locator(f".network.s{place} path")
                assert marks.count() == mine
            shapes = {
                figure.locator(f".network.s{place} path").first.get_attribute("d")
                for place in range(len(values))
            }
            assert len(shapes) == len(values)
        page.locator("#by").select_option(label="none")
        assert page.locator("#shapes li").count() == 0


# The table ----------------------------------------------------------------------------------------


def test_the_table_is_sorted_by_keyboard_and_blanks_stay_last(
    browser: Browser, tmp_path: Path
) -> None:
    findings = studied.full()
    values = {row.name: row.gain.value for row in findings if row.gain is not None}
    with opened(browser, written(findings, tmp_path)) as page:
        head = page.locator('#ranks th[data-column="gain"]')
        head.locator("button").focus()
        for way, sign in (("descending", -1), ("ascending", 1), ("descending", -1)):
            page.keyboard.press("Enter")
            assert head.get_attribute("aria-sort") == way
            assert page.locator("#ranks [aria-sort]").count() == 1
            known = sorted(values, key=lambda name: sign * values[name])
            assert order(page)[: len(known)] == known
        page.locator('#ranks th[data-column="title"] button').click()
        titles = [findings[name].title.lower() for name in order(page)]
        assert titles == sorted(titles)
        page.locator('#ranks th[data-column="p"] button').click()
        chances = [findings[name].p for name in order(page)]
        assert chances == sorted(chances)


# What is not said ---------------------------------------------------------------------------------


def test_limits_come_from_the_numbers() -> None:
    findings = studied.full()
    said = " ".join(limits(findings))
    assert "120 networks of 24 configurations, which differ in width, rate and optimizer" in said
    assert "11 measures were ranked on the same networks" in said
    assert "of 11 intervals of 95 %, one may miss, and the best" in said  # 0.55 on average
    assert "of 44 intervals of 95 %, about 2 may miss" in " ".join(
        limits(replace(findings, rows=findings.rows * 4))
    )
    turned = sum(row.signs is not None and row.signs.largest == 1 for row in findings)
    assert f"{turned} of 11 measures put some two configurations in the wrong order" in said
    assert "3 networks failed" in said
    assert f"Keskar sharpness, eps 0.0005 ({findings['keskar(eps=0.0005)'].n})" in said
    assert "did not vary" not in said
    assert "seeds:" not in said


def test_limits_name_what_did_not_vary_and_few_seeds() -> None:
    whole = studied.full(seeds=2, told={**studied.TOLD, "failed": 0})
    made = tuple(replace(n, config={**n.config, "batch_size": 64}) for n in whole.networks)
    said = " ".join(limits(replace(whole, networks=made)))
    assert "Nothing is said of what did not vary: batch size (64)." in said
    assert "Some configurations have 2 seeds" in said
    assert "failed" not in said


@pytest.mark.parametrize(
    ("planned", "failed", "page", "line"),
    [
        (
            123,
            3,
            "120 of 123 planned networks are here, 3 failed.",
            "120 of 123 networks, 3 failed",
        ),
        (120, 0, "120 of 120 planned networks are here, none failed.", "120 of 120 networks"),
        (130, 3, "are here, 3 failed, 7 not yet trained.", "120 of 130 networks, 3 failed"),
        (130, None, "120 of 130 planned networks are here, 10 are not.", "120 of 130 networks"),
        (None, None, "120 networks are here; how many were planned is not known.", "120 networks"),
        (None, 3, "120 networks are here, 3 failed; how many were", "120 networks, 3 failed"),
    ],
)
def test_what_was_planned_is_said_where_it_is_known(
    planned: int | None, failed: int | None, page: str, line: str
) -> None:
    whole = studied.full(told={**studied.TOLD, "planned": planned, "failed": failed})
    assert page in study_words(whole)["made"]
    assert whole.made().startswith(f"{line} (")
    assert ("failed and are" in " ".join(limits(whole))) is bool(failed)


# Every page ---------------------------------------------------------------------------------------


def hostile() -> Findings:
    whole = studied.full(seeds=1)
    row = replace(whole.rows[0], title=EVIL, family=EVIL)
    made = tuple(replace(n, config={EVIL: EVIL, **n.config}) for n in whole.networks)
    axes = {EVIL: [EVIL, "</script><b>"], **whole.axes}
    return replace(whole, name=EVIL, rows=(row, *whole.rows[1:]), networks=made, axes=axes)


def unknown() -> Findings:
    """Nothing could be ranked."""
    whole = studied.full(seeds=1)
    nan = Ranked(math.nan, math.nan, math.nan)
    bare = {"psi": None, "by_axis": {}, "information": None, "signs": None, "partial": None}
    rows = tuple(
        replace(row, tau=nan, tau_a=math.nan, p=math.nan, gain=None, **bare)  # type: ignore[arg-type]
        for row in whole.rows
    )
    return replace(whole, rows=rows, axes={}, controls=())


PAGES: dict[str, tuple[Callable[[], Findings], int]] = {
    "full": (studied.full, 2),
    "a hostile name": (hostile, 2),
    "nothing ranked": (unknown, 2),
    "no networks": (lambda: studied.full(networks=()), 0),
    "nothing": (lambda: studied.full(networks=(), rows=(), axes={}), 0),
}


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_fits_every_width_and_both_themes(
    browser: Browser, tmp_path: Path, kind: str
) -> None:
    make, plots = PAGES[kind]
    with opened(browser, written(make(), tmp_path)) as page:
        for node in page.locator("details").all():
            node.evaluate("node => node.open = true")
        for width in (320, 390, 800, 1280):
            page.set_viewport_size(ViewportSize(width=width, height=844))
            assert scroll_width(page) <= width
        light = background(page)
        page.emulate_media(color_scheme="dark")
        assert background(page) != light
        assert page.locator("#plots figure").count() == plots


def large() -> Findings:
    """400 networks, 40 measures, every value with an error."""
    draws = np.random.default_rng(0)
    labels = [f"measure_{k}" for k in range(40)]
    made = []
    for place in range(400):
        values = dict(zip(labels, np.exp(4 * draws.normal(size=40)).tolist(), strict=True))
        errors = {label: 0.0371 * value for label, value in values.items()}
        config = {"rate": 10.0 ** (place // 4 / 40), "width": 2 ** (place % 4)}
        made.append(Network(str(place), config, place, {"gap": draws.random()}, values, errors))
    first = studied.full(seeds=1).rows[0]
    rows = tuple(replace(first, name=label, title=f"the measure {label}") for label in labels)
    axes = {"rate": sorted({n.config["rate"] for n in made}), "width": [1, 2, 4, 8]}
    return studied.full(networks=tuple(made), rows=rows, axes=axes)


def test_a_large_study_is_a_small_page(tmp_path: Path) -> None:
    path = sl.write_report(large(), tmp_path / "large.html")
    assert path.stat().st_size < 500_000


def test_many_values_of_an_axis_share_colours_in_their_order() -> None:
    findings = large()
    axis = scatter_data(findings, lines(findings.rows))["axes"][0]
    assert len(axis["values"]) == 100
    assert sorted(set(axis["groups"])) == list(range(7))
    assert axis["groups"] == sorted(axis["groups"])
    assert axis["labels"][0].startswith("1 to 2.2")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(123456.7, 123460), (0.000123456, 0.00012346), (-2.0, -2), (math.inf, None), (None, None)],
)
def test_five_digits_are_kept(value: float | None, expected: float | None) -> None:
    assert five(value) == expected


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [
        ([(0.1, 0.3)], (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
        ([(-0.41, 0.71)], (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8)),
        ([(-1.0, 1.0)], (-1.0, -0.5, 0.0, 0.5, 1.0)),
        ([(math.nan, math.nan)], (0.0, 0.05)),
    ],
)
def test_the_axis_of_taus_holds_zero_and_all_intervals(
    ends: list[tuple[float, float]], ticks: tuple[float, ...]
) -> None:
    first: Row = studied.full(seeds=1).rows[0]
    rows = [replace(first, tau=Ranked((a + b) / 2, a, b)) for a, b in ends]
    assert axis_of(rows) == pytest.approx(ticks)
