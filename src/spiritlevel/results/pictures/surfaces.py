"""Surfaces as contour maps: one for each sheet, all with one scale of colours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import MaxNLocator

from spiritlevel.base.spoken import short_power
from spiritlevel.results.landscape import Sheet, Surface
from spiritlevel.results.pictures.style import GREY, INK, PATH, SINGLE, SMALL, TINY, WHOLE
from spiritlevel.results.places import array
from spiritlevel.results.scales import Scale, scale

COLUMNS = 3
QUANTITIES = {"loss": "loss", "convexity": "|λ$_{min}$ / λ$_{max}$|"}
LIGHT = 0.55  # the luminance above which a line on a colour must be dark
OBLONG = 2.5  # a plane that is longer than that is not drawn to scale


def draw_surface(surface: Surface) -> Figure:
    """Filled contours of every sheet, side by side."""
    count = len(surface.sheets)
    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    width = SINGLE if columns == 1 else WHOLE
    figure = Figure(figsize=(width, _height(surface, width, rows, columns)), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    known = scale(v for sheet in surface.sheets for row in sheet.values for v in row)
    filled = None
    for number, axes in enumerate(grid.flat):
        if number >= count:
            axes.set_axis_off()
            continue
        filled = _draw_sheet(axes, surface, surface.sheets[number], known) or filled
        _name(axes, surface, number, columns)
    if surface.path:  # the planes of the other sheets do not hold it
        _draw_path(grid.flat[0], surface)
    if filled is not None and known is not None:
        _draw_bar(figure, filled, known, surface.quantity, grid)
    _draw_key(figure, grid, surface)
    return figure


def _height(surface: Surface, width: float, rows: int, columns: int) -> float:
    """Such that axes to scale leave no empty bands."""
    across, up = (max(axis) - min(axis) for axis in surface.axes)
    shape = up / across if _to_scale(surface) else 1.0
    return rows * ((width - 1.45) / columns * shape + 0.5) + 0.35


def _to_scale(surface: Surface) -> bool:
    across, up = (max(axis) - min(axis) for axis in surface.axes)
    return across > 0 and 1 / OBLONG <= up / across <= OBLONG


def _draw_sheet(
    axes: Axes, surface: Surface, sheet: Sheet, known: Scale | None
) -> QuadContourSet | None:
    values = np.array([array(row) for row in sheet.values])
    evaluated = np.array([[v is not None for v in row] for row in sheet.values])
    finite = np.isfinite(values)
    _draw_holes(axes, surface, evaluated & ~finite)
    axes.set(xlim=_limits(surface.x), ylim=_limits(surface.y))
    if _to_scale(surface):
        axes.set_aspect("equal", adjustable="box", anchor="E" if len(surface.sheets) == 1 else "C")
    if known is None or min(values.shape) < 2 or not finite.any():
        axes.text(0.5, 0.5, "no map", transform=axes.transAxes, ha="center", color=GREY)
        return None
    masked = np.ma.masked_where(~finite, values)
    norm = (LogNorm if known.log else Normalize)(known.levels[0], known.levels[-1])
    options: dict[str, Any] = {"norm": norm, "corner_mask": True}
    extend = "max" if known.cut else "neither"
    filled = axes.contourf(
        surface.x, surface.y, masked, known.levels, cmap="viridis", extend=extend, **options
    )
    _draw_lines(axes, surface, masked, filled, known)
    if _inside(0.0, surface.x) and _inside(0.0, surface.y):
        axes.plot(
            [0], [0], "+", ms=9, mew=1.4, color="white", label="centre", path_effects=_halo(3)
        )
    return filled


def _draw_lines(
    axes: Axes, surface: Surface, masked: Any, filled: QuadContourSet, known: Scale
) -> None:
    """Lines between the colours, some with their values, in an ink that shows on the colours."""
    low, high = masked.min(), masked.max()
    levels = [level for level in known.levels if low < level < high]
    if not levels:
        return
    inks = [INK if _luminance(filled, level) > LIGHT else "white" for level in levels]
    lines = axes.contour(
        surface.x, surface.y, masked, levels, colors=inks, linewidths=0.6, alpha=0.6
    )
    texts = dict(zip(known.levels, known.labels, strict=True))
    axes.clabel(lines, levels[:: 1 + len(levels) // 8], fmt=texts, fontsize=TINY)


def _luminance(filled: QuadContourSet, level: float) -> float:
    red, green, blue, _ = filled.cmap(float(filled.norm(level)))  # type: ignore[arg-type]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _draw_holes(axes: Axes, surface: Surface, holes: Any) -> None:
    """Hatches as far as the next places, under the colours: what has a colour hides them."""
    cells = []
    for j, i in zip(*np.nonzero(holes), strict=True):
        left, right = surface.x[max(i - 1, 0)], surface.x[min(i + 1, len(surface.x) - 1)]
        foot, top = surface.y[max(j - 1, 0)], surface.y[min(j + 1, len(surface.y) - 1)]
        cells.append(Rectangle((left, foot), right - left, top - foot))
    if cells:
        hatched = PatchCollection(
            cells, facecolor="none", edgecolor=GREY, linewidth=0, hatch="////", zorder=0.5
        )
        hatched.set_label("not finite")
        axes.add_collection(hatched, autolim=False)


def _draw_path(axes: Axes, surface: Surface) -> None:
    xs, ys = [step.x for step in surface.path], [step.y for step in surface.path]
    style: dict[str, Any] = {"color": PATH, "ms": 3, "path_effects": _halo(2.2, "white")}
    axes.plot(xs, ys, "o-", lw=1.4, mew=0, label="path", **style)
    ends = {"first": ((xs[0], ys[0]), "white"), "last": ((xs[-1], ys[-1]), PATH)}
    for name, (place, face) in ends.items():
        axes.plot(*place, "o", ms=6, mfc=face, mec=PATH, mew=1.4, label=name, zorder=3)


def _draw_key(figure: Figure, grid: Any, surface: Surface) -> None:
    """What the marks are, under the maps: over them it would hide values."""
    marks: dict[str, Any] = {}
    for axes in grid.flat:
        for artist in (*axes.lines, *axes.collections):
            marks.setdefault(str(artist.get_label()), artist)
    names = {"centre": "the centre", "not finite": "not finite"}
    if surface.path:
        names |= {"first": surface.path[0].name, "last": surface.path[-1].name}
    if "centre" in marks:
        marks["centre"] = Line2D([], [], ls="", marker="+", ms=8, mew=1.4, color=INK)
    if "not finite" in marks:
        marks["not finite"] = Rectangle((0, 0), 1, 1, fc="none", ec=GREY, lw=0, hatch="/////")
    shown = [(marks[mark], name) for mark, name in names.items() if mark in marks]
    if shown:
        handles, labels = zip(*shown, strict=True)
        figure.legend(handles, labels, loc="outside lower left", ncols=4, handletextpad=0.4)


def _name(axes: Axes, surface: Surface, number: int, columns: int) -> None:
    """What a map shows: its point, that it predicts what the first does, and its axes."""
    sheet, count = surface.sheets[number], len(surface.sheets)
    if count > 1:
        axes.set_title(sheet.name, pad=15 if any(s.certificate for s in surface.sheets) else 5)
    if sheet.certificate is not None and number:
        change = short_power(f"{sheet.certificate.relative:.0e}")
        axes.annotate(
            f"predictions change by {change}" if sheet.certificate.relative else "same predictions",
            (0.5, 1),
            (0, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            fontsize=TINY,
            color=GREY,
        )
    if number + columns >= count:
        axes.set_xlabel(surface.directions[0].name)
        axes.tick_params(labelbottom=True)
    if number % columns == 0:
        axes.set_ylabel(surface.directions[1].name)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.spines[:].set_visible(False)


def _draw_bar(
    figure: Figure, filled: QuadContourSet, known: Scale, quantity: str, grid: Any
) -> None:
    beside = grid[0, 0] if grid.size == 1 else list(grid.flat)
    bar = figure.colorbar(filled, ax=beside, aspect=28, pad=0.02, fraction=0.06)
    bar.set_ticks(list(known.levels), labels=list(known.labels))
    bar.ax.minorticks_off()
    bar.set_label(QUANTITIES[quantity] + (", log scale" if known.log else ""), fontsize=SMALL)
    bar.outline.set_visible(False)  # type: ignore[operator]


def _limits(axis: tuple[float, ...]) -> tuple[float, float]:
    low, high = min(axis), max(axis)
    return (low, high) if high > low else (low - 1, high + 1)


def _inside(place: float, axis: tuple[float, ...]) -> bool:
    return min(axis) <= place <= max(axis)


def _halo(width: float, color: str = INK) -> list[Stroke]:
    return [Stroke(linewidth=width, foreground=color), Normal()]  # type: ignore[list-item]
