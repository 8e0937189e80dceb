"""Every claim holds on a network, fails when its construction is broken, and is drawn."""

from __future__ import annotations

import copy
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import Browser, Page, ViewportSize
from torch import Tensor, nn
from torch.func import functional_call

from breaking import BROKEN, PARTS, Witness, break_twins
from browsing import background, chromium, opened, scroll_width
from cases import small_net
from spiritlevel import Objective, hessian, write_report
from spiritlevel.theorems import CLAIMS, Finding, Setting, claims
from spiritlevel.theorems import fitting as fitting_claims

SHORT = {name: claim for name, claim in CLAIMS.items() if not claim.long}  # of seconds
DRAWN = {name: claim.figure for name, claim in SHORT.items() if claim.figure is not None}


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(small_net())


@pytest.fixture(scope="module")
def witnesses(setting: Setting) -> dict[str, Witness]:
    """Made once: a broken copy never writes into it."""
    return {name: claim.construction(setting) for name, claim in SHORT.items()}


@pytest.fixture(scope="module")
def findings(witnesses: dict[str, Witness]) -> dict[str, Finding]:
    return {name: CLAIMS[name].check(**witness) for name, witness in witnesses.items()}


@pytest.fixture(scope="module")
def figures(witnesses: dict[str, Witness]) -> dict[str, str]:
    return {name: draw(**witnesses[name]) for name, draw in DRAWN.items()}


@pytest.mark.parametrize("name", SHORT)
def test_holds(name: str, findings: dict[str, Finding]) -> None:
    outcome = findings[name]
    assert outcome.holds, outcome
    assert outcome.shown
    assert all(math.isfinite(value) for value in outcome.numbers.values())


@pytest.mark.parametrize("name", SHORT)
def test_fails_when_broken(name: str, witnesses: dict[str, Witness]) -> None:
    broken = BROKEN[name](witnesses[name])
    assert not CLAIMS[name].check(**broken).holds


# Further ways in which a claim could be false while its construction looks right ----------------


def decayed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    penalty = sum(p.square().sum() for p in model.parameters())
    loss = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    return loss + len(batch[0]) * 1e-2 * penalty, len(batch[0])


def with_decay(objective: Objective) -> Objective:
    """The same point, with weight decay in the loss: predictions do not see it."""
    model = copy.deepcopy(objective.module).requires_grad_()
    batch = tuple(torch.cat(parts) for parts in zip(*objective.batches, strict=True))
    return Objective(model, batch, decayed).at(objective.vector)


def test_eigenvalues_are_counted_where_the_twin_is(
    witnesses: dict[str, Witness], findings: dict[str, Finding]
) -> None:
    """With weight decay D^-1 H D^-1 is not the Hessian there: it is differentiated."""
    w = witnesses["many_eigenvalues"]
    here, there = with_decay(w["objective"]), with_decay(w["twin"])
    outcome = CLAIMS["many_eigenvalues"].check(**{**w, "objective": here, "twin": there})
    spectrum = torch.linalg.eigvalsh(hessian(there, compile=False).dense())
    assert outcome.numbers["eigenvalues above 1000"] == int((spectrum > 1000).sum())
    assert not outcome.holds
    honest = findings["many_eigenvalues"].numbers
    assert honest["eigenvalues above 1000"] >= honest["promised"]


def test_a_loss_that_moves_along_the_rescalings_is_no_case_for_them(setting: Setting) -> None:
    """Not refuted and not confirmed: the premise is missing."""
    found = claims(with_decay(setting.objective), ["spectral_norm", "gradient_law"], figures=False)
    assert [result.verdict for result in found.rows] == ["not checked"] * 2
    assert found.holds


@pytest.mark.parametrize(("name", "wrong"), PARTS)
def test_fails_when_a_part_is_broken(
    name: str, wrong: Callable[[Witness], Witness], witnesses: dict[str, Witness]
) -> None:
    assert not CLAIMS[name].check(**wrong(witnesses[name])).holds


def test_no_orbit_point_is_below_the_floor(witnesses: dict[str, Witness]) -> None:
    w = witnesses["never_arbitrarily_flat"]
    dense = w["matrix"].dense()
    assert len(w["log_factors"]) > 1
    for row in w["log_factors"]:
        top = torch.linalg.eigvalsh(dense * torch.exp(-row[:, None] - row[None, :]))[-1]
        assert float(top) >= w["floor"] > 0


def test_the_least_trace_is_the_least(witnesses: dict[str, Witness]) -> None:
    """Nets that were trained to go below it come close, and none below."""
    w = witnesses["flat_memorizer"]
    x = w["everything"][w["seen"]]
    ratios = []
    for net in w["challengers"]:
        ratio = fitting_claims._over_the_least(net, x)
        params = {name: p.detach() for name, p in net.named_parameters()}
        # (2/n) sum |grad f|^2 from one Jacobian per point, beside the trace of the Hessian
        rows = torch.func.jacrev(lambda p, net=net: functional_call(net, p, (x,))[:, 0])(params)
        squares = torch.cat([row.flatten(1) for row in rows.values()], dim=1).square().sum(1)
        bound = fitting_claims.least_trace(x, net(x).detach())
        assert ratio == pytest.approx(2 * float(squares.mean()) / bound)
        ratios.append(ratio)
    assert 1 - 1e-12 <= min(ratios) < 1.05
    assert fitting_claims.least_trace(x, torch.ones(len(x))) == pytest.approx(4 * math.sqrt(11))


def test_a_higher_bound_is_refuted(
    witnesses: dict[str, Witness], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fitting_claims.least_trace
    monkeypatch.setattr(fitting_claims, "least_trace", lambda x, y: 1.1 * right(x, y))
    assert not CLAIMS["flat_memorizer"].check(**witnesses["flat_memorizer"]).holds


def test_the_printed_constant_of_the_generalizer_gives_the_larger_trace(
    witnesses: dict[str, Witness],
) -> None:
    """Wen et al. print r = (d^2 + 1)^(1/4); the least trace 4 sqrt(11) needs (d + 1)^(1/4)."""
    witness = break_twins(witnesses["flat_memorizer"])
    numbers = fitting_claims.check_twins(**witness).numbers
    assert numbers["trace of the generalizer"] == pytest.approx(22.29, abs=0.01)
    assert numbers["trace of the memorizer"] == pytest.approx(13.2665, abs=1e-4)
    assert numbers["error of the memorizer"] == 1 - 20 / 1024


# Figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_whole_and_fetch_nothing(name: str, figures: dict[str, str]) -> None:
    svg = figures[name]
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    words = [e.text for e in root.iter() if e.tag.endswith("text") and e.text]
    assert len(words) > 5
    references = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert all(reference.startswith("#") for reference in references)
    assert "nan" not in svg.lower()


def test_drawing_leaves_matplotlib_as_it_was(witnesses: dict[str, Witness]) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw = CLAIMS["radial_map"].figure
    assert draw is not None
    draw(**witnesses["radial_map"])
    assert dict(matplotlib.rcParams) == before


# In a browser ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(
    witnesses: dict[str, Witness],
    findings: dict[str, Finding],
    figures: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """Where a page with all figures lies; what was built, checked and drawn is taken from above."""
    known = {
        name: replace(
            CLAIMS[name],
            construction=lambda _, name=name: witnesses[name],
            check=lambda name=name, **_: findings[name],
            figure=lambda name=name, **_: figures[name],
        )
        for name in DRAWN
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, claim in known.items():
            patch.setitem(CLAIMS, name, claim)
        found = claims(small_net(), DRAWN)
    assert found.figures == figures
    return write_report(found, tmp_path_factory.mktemp("page") / "claims.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, opened; at the end nothing was fetched and nothing went wrong."""
    with opened(browser, address) as page:
        yield page


def test_every_figure_is_drawn(page: Page) -> None:
    widths = page.evaluate(
        "Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))"
    )
    assert len(widths) == len(DRAWN)
    assert min(widths) > 300
    assert all(image.get_attribute("alt") for image in page.locator("img").all())
    assert page.locator("figcaption").count() == len(DRAWN)


@pytest.mark.parametrize("width", [390, 320, 800])
def test_no_width_scrolls_sideways(page: Page, width: int) -> None:
    page.set_viewport_size(ViewportSize(width=width, height=844))
    assert scroll_width(page) <= width


def test_figures_turn_with_the_theme(page: Page) -> None:
    def turned() -> bool:
        return page.evaluate("getComputedStyle(document.images[0]).filter") != "none"

    light = background(page)
    assert not turned()
    page.emulate_media(color_scheme="dark")
    assert background(page) != light
    assert turned()
    page.locator("#theme").click()
    assert background(page) == light
    assert not turned()
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    assert turned()


def test_the_table_leads_to_a_claim(page: Page) -> None:
    page.get_by_role("rowheader", name="Radial map").get_by_role("link").click()
    assert page.evaluate("location.hash") == "#radial_map"
    place: float = page.locator("#radial_map").bounding_box()["y"]  # type: ignore[index]
    assert abs(place) < 2
