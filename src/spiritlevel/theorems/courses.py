"""Figures of claims about training: courses, intervals and ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from spiritlevel.theorems.figures import BLUE, COLORS, GREY, INK, ORANGE, Sheet, styled

FOUR = (*COLORS, INK)
MARKS = "osD^"


@styled()
def box_growth(found: Mapping[float, float], more: float) -> str:
    """B at twins minus B here, and the line of the law."""
    sheet = Sheet("flat_box_law", height=2.8)
    axes = sheet.axes[0]
    factors = np.geomspace(min(found), max(found), 50)
    axes.semilogx(factors, more * np.log(factors), color=BLUE, label=f"{more:+.0f} log a")
    axes.semilogx(list(found), list(found.values()), "o", color=ORANGE, label="measured")
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.set_xlabel("factor a on one layer (its inverse on the next)")
    axes.set_ylabel("B there minus B here")
    axes.legend(loc="best")
    return sheet.svg()


@styled()
def gaps(
    reach: Sequence[int],
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    judged: int,
) -> str:
    """Differences of local entropy by distance, (mean, low, high), one curve for each algorithm."""
    sheet = Sheet("dense_solutions")
    axes = sheet.axes[0]
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(judged, color=GREY, linewidth=0.8, linestyle=":")
    for place, (color, (name, rows)) in enumerate(zip(COLORS, curves.items(), strict=False)):
        mean, low, high = np.array(rows).T
        xs = np.array(reach) + 0.1 * (place - 1)  # side by side
        axes.errorbar(
            xs, mean, (mean - low, high - mean), color=color, marker="o", capsize=2, label=name
        )
    axes.set_xlabel("Hamming distance, weights")
    axes.set_ylabel("local entropy, found - typical")
    axes.legend(loc="lower left", ncols=3, bbox_to_anchor=(0.0, 1.0), borderaxespad=0)
    return sheet.svg()


@styled()
def trainings(epochs: Sequence[int], panels: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """Courses (epochs, seeds) of two kinds of nets: a line for each seed, and their mean."""
    sheet = Sheet("sam_with_bias", 2, height=2.9)
    for axes, (title, kinds) in zip(sheet.axes, panels.items(), strict=True):
        for color, (name, values) in zip(COLORS, kinds.items(), strict=False):
            axes.plot(epochs, values, color=color, linewidth=0.5, alpha=0.5)
            axes.plot(epochs, values.mean(1), color=color, linewidth=2.4, label=name)
        axes.set_title(title)
        axes.set_xlabel("epochs")
    sheet.axes[0].legend(loc="upper right")
    return sheet.svg()


@styled()
def ratios(points: Mapping[str, Sequence[tuple[float, float, float]]]) -> str:
    """(rate / batch, eigenvalue here, eigenvalue at the orbit's bottom), by batch size."""
    sheet = Sheet("rate_over_batch", 2, height=3.0)
    titles = ("largest eigenvalue, as trained", "at the bottom of the orbit")
    for place, (axes, title) in enumerate(zip(sheet.axes, titles, strict=True), start=1):
        for color, mark, (name, rows) in zip(FOUR, MARKS, points.items(), strict=False):
            xs, ys = [row[0] for row in rows], [row[place] for row in rows]
            axes.loglog(xs, ys, mark, color=color, markersize=3.5, label=name, alpha=0.8)
        axes.set_title(title)
        axes.set_xlabel("rate / batch")
        low, high = axes.get_ylim()
        ticks = [t for t in (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 8, 16) if low <= t <= high]
        axes.set_yticks(ticks or [low, math.sqrt(low * high)], minor=False)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:.3g}")
    sheet.axes[0].legend(loc="best", fontsize=8)
    return sheet.svg()


@styled()
def published(
    true: Sequence[tuple[float, float]],
    random: tuple[float, float],
    inverted: Sequence[tuple[float, float]],
    root: Sequence[tuple[float, float]],
) -> str:
    """(divergence, bound) of printed networks, and both ways to make one of the other."""
    sheet = Sheet("nonvacuous_table")
    axes = sheet.axes[0]
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.semilogx(*zip(*inverted, strict=True), color=BLUE, label="kl inverted")
    axes.semilogx(*zip(*root, strict=True), color=GREY, linestyle="--", label="square root")
    axes.semilogx(*zip(*true, strict=True), "o", color=BLUE, label="printed, true labels")
    axes.semilogx(*random, "D", color=ORANGE, label="printed, random labels")
    axes.set_xlabel("divergence of the posterior, nats")
    axes.set_ylabel("bound on the error")
    axes.set_ylim(0, 1.5)
    axes.legend(loc="upper left")
    return sheet.svg()
