"""Bounds as a figure: each beside what is known without it, and what the main one is made of."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spiritlevel.results.bound import Bounds, Origin, Part, Row
from spiritlevel.results.ladder import STEPS, Rung, ladder
from spiritlevel.results.pictures.style import COLORS, FAINT, GREY, INK, SMALL, WHOLE

STAYS, MOVES, BLUE = COLORS[:3]
FILLED = dict(zip(STEPS, (GREY, BLUE, "#c9a227", STAYS, MOVES), strict=True))
LINE = 0.24  # inches of a row
PARTS = 12  # parameters that are drawn: the largest


def draw_bounds(bounds: Bounds) -> Figure:
    """All bounds on a logarithmic axis; below, where the main one comes from."""
    rungs, origin = ladder(bounds), bounds.origin
    tall = 0.9 + LINE * max(len(bounds.rows), 2)
    if not rungs or origin is None:
        figure = Figure(figsize=(WHOLE, tall), layout="constrained")
        _draw_rows(figure.subplots(), bounds.rows)
        return figure
    split = sorted(origin.parts, key=lambda part: -part.kl)[:PARTS]
    low = 1.4 + LINE * max(len(rungs), len(split))
    figure = Figure(figsize=(WHOLE, tall + low), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[tall, low])
    _draw_rows(figure.add_subplot(grid[0, :]), bounds.rows)
    _draw_ladder(figure.add_subplot(grid[1, 0]), rungs, origin)
    _draw_split(figure.add_subplot(grid[1, 1]), split)
    return figure


def _draw_rows(axes: Axes, rows: tuple[Row, ...]) -> None:
    """Rescaled ones have the colour of what stays; vacuous ones are hollow."""
    places = range(len(rows))
    known = [r.bound.value for r in rows if math.isfinite(r.bound.value) and r.bound.value > 0]
    axes.set_xscale("log")
    axes.set_xlim(min([0.01, *known]) / 1.5, max([2.0, *known]) * 1.5)
    axes.axvline(1.0, color=GREY, lw=1.0, ls=(0, (4, 3)))
    for place, row in zip(places, rows, strict=True):
        color = MOVES if row.point == "here" else STAYS
        face = "none" if row.bound.vacuous else color
        axes.plot([row.bound.value], [place], "o", ms=5, mec=color, mfc=face)
    names = [f"{row.bound.title}, {row.point}" for row in rows]
    axes.set_yticks(list(places), names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("at most (dashed: an error is never above 1; hollow: vacuous)")
    _styled(axes, "bounds")


def _draw_ladder(axes: Axes, rungs: list[Rung], origin: Origin) -> None:
    for place, rung in enumerate(rungs):
        left = 0.0
        for name, part in zip(STEPS, rung.parts, strict=True):
            label = name if place == 0 and part else "_" + name
            axes.barh(place, part, left=left, height=0.6, color=FILLED[name], label=label)
            left += part
    if origin.test is not None:
        axes.axvline(origin.test.error, color=INK, lw=1.2, label="test error")
    axes.set_yticks(range(len(rungs)), [rung.point for rung in rungs])
    axes.set_ylim(len(rungs) - 0.4, -0.6)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    _styled(axes, "from the measured error to the bound")


def _draw_split(axes: Axes, parts: list[Part]) -> None:
    for place, part in enumerate(parts):
        if part.least is None:
            axes.barh(place, part.kl, height=0.6, color=STAYS)
            continue
        axes.barh(place - 0.18, part.kl, height=0.32, color=MOVES)
        axes.barh(place + 0.18, part.least, height=0.32, color=STAYS)
    axes.set_yticks(range(len(parts)), [part.name for part in parts])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.set_xlabel("nats")
    _styled(axes, "divergence by parameter")


def _styled(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=SMALL, fontweight="bold")
    axes.grid(axis="x", color=FAINT, lw=0.7)
    axes.set_axisbelow(True)
