"""Figures: what is drawn is what was measured, and nothing else is touched."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LogNorm
from matplotlib.contour import QuadContourSet
from matplotlib.lines import Line2D

import drawings
from drawings import AXIS, bowl, put
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.landscape import Sheet
from spiritlevel.results.pictures import drawn, svg
from spiritlevel.results.scales import densities, eigenvalues, scale

ALL = {
    "surface": drawings.orbit,
    "line": lambda: drawings.line(2.0, 0.1),
    "rays": drawings.rays,
    "spectra": drawings.spectra,
}


def numbers(data: Any) -> list[float]:
    """What an artist holds."""
    return np.asarray(data, dtype=float).tolist()


def filled(axes: Axes) -> QuadContourSet:
    """The colours: the first of the two sets of contours."""
    return next(c for c in axes.collections if isinstance(c, QuadContourSet))


def drawn_line(axes: Axes, label: str) -> Line2D:
    return next(artist for artist in axes.lines if artist.get_label() == label)


def maps(result: Any) -> list[Axes]:
    return [axes for axes in drawn(result).axes if axes.get_label() != "<colorbar>"]


# Scales ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "log", "levels", "cut"),
    [
        ([0.0063, 4.2], True, (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5), False),
        ([0.5, 1, 2], False, (0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8, 2), False),
        ([1e-3, 3, 1e30], True, tuple(10.0**k for k in range(-3, 6)), True),
        ([-1, -0.5, 0, 1e20], False, tuple(np.arange(-2.5, 25, 2.5)), True),
        ([2, 2, 2], False, (1.98, 2.02), False),
        ([0, 0], False, (-1, 1), False),
    ],
)
def test_a_scale_surrounds_its_values_with_round_levels(
    values: list[float], log: bool, levels: tuple[float, ...], cut: bool
) -> None:
    found = scale([*values, None, math.inf, math.nan])
    assert found is not None
    assert found.levels == pytest.approx(levels, rel=1e-12)
    assert (found.log, found.cut, found.low) == (log, cut, min(values))
    assert found.levels[0] <= min(values)
    assert found.high == (found.levels[-1] if cut else max(values))
    assert [float(label) for label in found.labels] == pytest.approx(levels, rel=1e-9)


@pytest.mark.parametrize("values", [[1e-320, 1.7e308], [-1.7e308, 1.7e308], [1e-300, 1e308]])
def test_a_scale_of_the_ends_of_floating_point(values: list[float]) -> None:
    found = scale(values)
    assert found is not None
    assert all(math.isfinite(level) for level in found.levels)
    assert len(found.levels) >= 2


def test_there_is_no_scale_of_nothing() -> None:
    assert scale([None, math.nan, math.inf]) is None
    assert scale([0.0, 1.0], log=True) is None
    assert scale([0.5, 1.0], log=True) is not None


def test_labels_tell_levels_apart_with_few_digits() -> None:
    near = scale([1.0000001, 1.0000003])
    assert near is not None
    assert near.labels[:2] == ("1.0000001", "1.00000012")
    far = scale([200.0, 90000.0, 1e7])
    assert far is not None
    assert far.labels == (
        "100",
        "300",
        "1000",
        "3000",
        "10000",
        "30000",
        "1e5",
        "3e5",
        "1e6",
        "3e6",
        "1e7",
    )


def test_spectra_of_other_sizes_share_an_axis_that_shows_both() -> None:
    wild, alike = drawings.spectra(300.0).spectra, drawings.spectra(2.0).spectra
    assert eigenvalues(alike).linear is None
    assert eigenvalues(wild).linear == pytest.approx(0.25)
    assert (eigenvalues(wild).low, eigenvalues(wild).high) == pytest.approx((-150, 750))
    one = 1 / (100 * 0.05 * 300 * math.sqrt(2 * math.pi))  # the height of one eigenvalue
    assert densities(wild)[0] == pytest.approx(one / 3)


# Surfaces ----------------------------------------------------------------------------------------


def test_the_colours_are_those_of_the_values() -> None:
    surface = drawings.orbit()
    known = scale(v for sheet in surface.sheets for row in sheet.values for v in row)
    assert known is not None
    assert known.log
    for axes, sheet in zip(maps(surface), surface.sheets, strict=True):
        colours = filled(axes)
        assert tuple(colours.levels) == known.levels
        assert isinstance(colours.norm, LogNorm)
        assert (colours.norm.vmin, colours.norm.vmax) == (known.levels[0], known.levels[-1])
        assert axes.get_title() == sheet.name
        # a line of a level lies where the values have it: 0.01 + f (x^2 + 2 y^2)
        factor = sheet.values[4][8] - 0.01  # type: ignore[operator]
        lines = [c for c in axes.collections if isinstance(c, QuadContourSet)][1]
        for level, path in zip(lines.levels, lines.get_paths(), strict=True):
            at = np.asarray(path.vertices)
            heights = 0.01 + factor * (at[:, 0] ** 2 + 2 * at[:, 1] ** 2)
            assert heights == pytest.approx(level, abs=0.1 * factor)  # straight between places


def test_a_narrow_range_has_a_linear_scale() -> None:
    surface = drawings.surface(Sheet("here", bowl(least=1.0)))
    colours = filled(maps(surface)[0])
    assert not isinstance(colours.norm, LogNorm)
    bar = next(axes for axes in drawn(surface).axes if axes.get_label() == "<colorbar>")
    assert bar.get_ylabel() == "loss"
    assert [text.get_text() for text in bar.get_yticklabels()][:3] == ["1", "1.5", "2"]


def test_holes_are_hatched_and_what_was_not_evaluated_is_blank() -> None:
    values = put(bowl(), (6, 6, math.inf), (7, 6, math.nan), (1, 1, None))
    axes = maps(drawings.surface(Sheet("here", values)))[0]
    hatched = [c for c in axes.collections if isinstance(c, PatchCollection)]
    assert [c.get_label() for c in hatched] == ["not finite"]
    boxes = [path.get_extents().bounds for path in hatched[0].get_paths()]
    assert boxes == [(0.25, 0.25, 0.5, 0.5), (0.5, 0.25, 0.5, 0.5)]
    image = filled(axes)
    inside = [path.contains_point((AXIS[1], AXIS[1])) for path in image.get_paths()]
    assert not any(inside)
    assert any(path.contains_point((AXIS[3], AXIS[1])) for path in image.get_paths())


def test_a_path_has_its_steps_on_the_first_map_only() -> None:
    surface = drawings.orbit()
    first, *others = maps(surface)
    path = drawn_line(first, "path")
    assert numbers(path.get_xdata()) == [step.x for step in surface.path]
    assert numbers(path.get_ydata()) == [step.y for step in surface.path]
    assert drawn_line(first, "first").get_xdata()[0] == -0.75  # type: ignore[index]
    assert drawn_line(first, "last").get_xdata()[0] == 0.0  # type: ignore[index]
    assert all(artist.get_label() != "path" for axes in others for artist in axes.lines)
    words = [text.get_text() for text in drawn(surface).legends[0].get_texts()]
    assert words == ["the centre", "epoch 0", "epoch 3"]


def test_maps_say_that_the_predictions_are_the_same() -> None:
    said = [[text.get_text() for text in axes.texts] for axes in maps(drawings.orbit())]
    assert "same predictions" in said[1]
    assert "predictions change by 3e-15" in said[2]


@pytest.mark.parametrize(
    "values",
    [
        tuple((math.nan,) * 9 for _ in AXIS),
        tuple((None,) * 9 for _ in AXIS),
        tuple((2.0,) * 9 for _ in AXIS),
        put(bowl(), (0, 0, 1e200)),
        tuple(tuple(-1 - x * x for x in AXIS) for _ in AXIS),
    ],
    ids=["nan", "nothing", "flat", "exploding", "negative"],
)
def test_odd_values_are_drawn_too(values: Any) -> None:
    figure = drawn(drawings.surface(Sheet("here", values)))
    none = not any(v is not None and math.isfinite(v) for row in values for v in row)
    assert ("no map" in [text.get_text() for text in figure.axes[0].texts]) is none


def test_a_ratio_is_named() -> None:
    figure = drawn(drawings.surface(quantity="convexity"))
    assert figure.axes[-1].get_ylabel().startswith("|λ")


# Lines and spectra -------------------------------------------------------------------------------


def test_curves_have_their_losses_with_gaps_and_their_barriers() -> None:
    line = drawings.line(1.0, 0.1)
    left, right = drawn(line).axes
    assert left.get_yscale() == "linear"
    for curve in line.curves:
        shown = drawn_line(left, curve.name)
        assert numbers(shown.get_xdata()) == list(curve.axis)
        assert numbers(shown.get_ydata()) == list(curve.losses)
    dashed = [numbers(artist.get_ydata()) for artist in right.lines]
    assert dashed == [list(curve.accuracies or ()) for curve in line.curves]
    rises = [artist.get_ydata() for artist in left.lines if artist.get_label() == "_barrier"]
    assert [np.ptp(np.asarray(rise)) for rise in rises] == pytest.approx([1.0, 0.1])
    assert rises[0][1] == pytest.approx(0.1 + 0.05 + 1.0)  # type: ignore[index]
    broken = drawn_line(drawn(drawings.rays()).axes[0], "two").get_ydata()
    assert np.isnan(np.asarray(broken, dtype=float)).tolist() == [False] * 6 + [True] * 3


def test_a_steep_line_has_a_log_axis() -> None:
    line = drawings.line(20.0)
    assert drawn(line).axes[0].get_yscale() == "log"


def test_densities_have_their_band_and_their_outliers() -> None:
    spectra = drawings.spectra()
    figure = drawn(spectra)
    for axes, one in zip(figure.axes, spectra.spectra, strict=True):
        curve = next(a for a in axes.lines if len(a.get_xdata()) == len(one.grid))  # type: ignore[arg-type]
        assert numbers(curve.get_xdata()) == list(one.grid)
        assert numbers(curve.get_ydata()) == list(one.density)
        assert numbers(drawn_line(axes, "outliers").get_xdata()) == [one.outliers[0].value]
        (low, _), (_, top) = axes.collections[0].get_datalim(axes.transData).get_points()
        assert top == pytest.approx(1.2 * max(one.density))
        assert low == one.grid[0]
        assert (axes.get_xscale(), axes.get_yscale()) == ("symlog", "log")
        assert axes.get_title(loc="left") == one.name


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_svg_is_one_text_that_stands_alone(name: str) -> None:
    first, second = svg(ALL[name]()), svg(ALL[name]())
    assert first == second
    root = ElementTree.fromstring(first)
    assert root.tag.endswith("svg")
    assert root.attrib["aria-label"] == ALL[name]().title
    references = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert all(reference.startswith("#") for reference in references)
    assert len(first) < 300_000


def test_a_notebook_shows_the_picture_and_the_table() -> None:
    shown = drawings.orbit().to_html()
    assert shown.startswith("<figure><svg ")
    assert "</svg></figure>" in shown
    assert "<table>" in shown


@pytest.mark.parametrize(
    ("ending", "head"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_files_by_their_endings(tmp_path: Path, ending: str, head: bytes) -> None:
    path = tmp_path / f"plane.{ending}"
    figure = drawings.surface().plot(path)
    assert path.read_bytes().startswith(head)
    assert len(figure.axes) == 2


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpiritlevelError, match=r"ends in '.doc', which is no format of a figure"):
        drawings.surface().plot(tmp_path / "plane.doc")
    with pytest.raises(SpiritlevelError, match="give a file in a folder that there is"):
        drawings.surface().plot(tmp_path / "no" / "plane.svg")


def test_matplotlib_stays_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    for make in ALL.values():
        svg(make())
    assert dict(matplotlib.rcParams) == before


def test_neither_torch_nor_pyplot_is_needed() -> None:
    code = (
        "import sys, drawings\n"
        "from spiritlevel.results.pictures import svg\n"
        "for make in (drawings.orbit, drawings.rays, drawings.spectra): svg(make())\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(drawings.__file__).parent)
