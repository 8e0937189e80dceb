"""A study as figures: measures ranked with their intervals, and one of them against the outcome."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.pictures.style import COLORS, FAINT, GREY, SINGLE, SMALL, WHOLE
from spiritlevel.results.ranking import Line, axis_of, known, lines
from spiritlevel.results.scales import scale
from spiritlevel.results.study import Findings, Row

STAYS, MOVES = COLORS[:2]
LINE = 0.3  # inches of one measure
APART = 0.18  # of a line, between its two dots and its middle
WIDE = 300.0  # a ratio of values from which on powers of ten are ticks enough
SHAPES = "os^DvPp"  # one for each colour, so that none is alone


def draw_study(findings: Findings) -> Figure:
    """A line for each measure: tau with its interval, plain and with the orbit divided out."""
    ranked = [line for line in lines(findings.rows) if known(line[0].tau)]
    figure = Figure(figsize=(WHOLE, 1.1 + LINE * max(len(ranked), 2)), layout="constrained")
    axes = figure.subplots()
    ticks = axis_of([row for line in ranked for row in line if row is not None])
    axes.set_xlim(ticks[0], ticks[-1])
    axes.set_xticks(ticks)
    axes.axvline(0.0, color=GREY, lw=1.0)
    for place, line in enumerate(ranked):
        _draw_line(axes, place, line)
    axes.set_yticks(range(len(ranked)), [first.title for first, _ in ranked])
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.set_xlabel(f"Kendall's tau with the {findings.outcome.replace('_', ' ')}, 95 % intervals")
    axes.grid(axis="x", color=FAINT, lw=0.7)
    axes.set_axisbelow(True)
    _draw_key(figure, [row for line in ranked for row in line if row is not None])
    return figure


def _draw_line(axes: Axes, place: int, line: Line) -> None:
    rows = [row for row in line if row is not None and known(row.tau)]
    heights = [place] if len(rows) == 1 else [place - APART, place + APART]
    if len(rows) == 2:
        axes.plot([row.tau.value for row in rows], heights, color=GREY, lw=0.8, ls=":")
    for row, height in zip(rows, heights, strict=True):
        color = STAYS if row.invariant else MOVES
        axes.plot([row.tau.low, row.tau.high], [height, height], color=color, lw=1.4)
        face = color if row.tau.clear else "white"
        mark = "D" if row.invariant else "o"
        axes.plot([row.tau.value], [height], mark, ms=4.5, mec=color, mfc=face)


def _draw_key(figure: Figure, rows: list[Row]) -> None:
    kinds = {
        "in these coordinates": ("o", MOVES, MOVES, any(not row.invariant for row in rows)),
        "no rescaling moves it": ("D", STAYS, STAYS, any(row.invariant for row in rows)),
        "hollow: the interval holds zero": (
            *("o", GREY, "white"),
            any(known(row.tau) and not row.tau.clear for row in rows),
        ),
    }
    marks = {
        label: Line2D([], [], ls="", marker=mark, ms=4.5, mec=edge, mfc=face)
        for label, (mark, edge, face, there) in kinds.items()
        if there
    }
    if marks:
        figure.legend(marks.values(), marks.keys(), loc="outside lower left", ncols=3)


def draw_scatter(findings: Findings, measure: str, by: str | None = None) -> Figure:
    """A pair of axes for a measure, and one for the same with the orbit divided out."""
    row = findings[measure]
    if by is not None and (not isinstance(by, str) or by not in findings.axes):
        raise SpiritlevelError(f"by={by!r} is no axis; there are: {', '.join(findings.axes)}")
    rows = [row, *([findings[row.bottom]] if row.bottom else [])]
    size = (WHOLE if len(rows) == 2 else SINGLE, 3.4)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(rows), sharey=True, squeeze=False)
    for axes, one in zip(grid.flat, rows, strict=True):
        _draw_networks(axes, findings, one, by)
    grid.flat[0].set_ylabel(findings.outcome.replace("_", " "))
    if by is not None:
        handles, labels = grid.flat[0].get_legend_handles_labels()
        name = by.replace("_", " ")
        figure.legend(handles, labels, title=name, loc="outside lower left", ncols=7)
    return figure


def _scaled(axes: Axes, axis: XAxis | YAxis, values: np.ndarray) -> None:
    """Logarithmic where the values are positive and spread; with round numbers if over little."""
    wanted = scale(values.tolist())
    if wanted is None or not wanted.log:
        return
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_minor_formatter(NullFormatter())
    if wanted.high < WIDE * wanted.low:
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _draw_networks(axes: Axes, findings: Findings, row: Row, by: str | None) -> None:
    there = [
        (n.values[row.name], n.errors.get(row.name, 0.0), n.numbers[findings.outcome], n.config)
        for n in findings.networks
        if math.isfinite(n.values.get(row.name, math.nan))
        and math.isfinite(n.numbers.get(findings.outcome, math.nan))
    ]
    x, error, y = np.array([t[:3] for t in there], dtype=float).reshape(-1, 3).T
    for axis, values in ((axes.xaxis, x), (axes.yaxis, y)):
        _scaled(axes, axis, values)
    wide = np.where(np.isfinite(error), error, 0.0)
    colors = np.full(len(there), COLORS[0], dtype=object)
    for place, value in enumerate([None] if by is None else findings.axes[by]):
        mine = np.array([by is None or t[3].get(by) == value for t in there], dtype=bool)
        color, mark = COLORS[place % len(COLORS)], SHAPES[place % len(SHAPES)]
        colors[mine] = color
        style = {"ms": 4, "color": color, "mec": "white", "mew": 0.4}
        axes.plot(x[mine], y[mine], mark, **style, label=str(value))
    axes.set_xlim(axes.get_xlim())  # of the networks: a wide error does not move them together
    low = np.maximum(x - wide, 1e-6 * x) if axes.get_xscale() == "log" else x - wide
    axes.hlines(y, low, x + wide, colors=list(colors), lw=0.6, alpha=0.5, zorder=1)
    log = ", log axis" if axes.get_xscale() == "log" else ""
    axes.set_title(f"tau {row.tau.text}", loc="left", fontsize=SMALL)
    axes.set_xlabel(row.title + log)
    axes.grid(color=FAINT, lw=0.7)
    axes.set_axisbelow(True)
