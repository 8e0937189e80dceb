"""The course of a training: losses, and each measure with its least value on the orbit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spiritlevel.base.estimate import Estimate
from spiritlevel.results.history import History
from spiritlevel.results.pictures.style import COLORS, FAINT, GREY, SMALL, WHOLE
from spiritlevel.results.scales import scale

STAYS, MOVES = COLORS[:2]
TALL = 1.9  # inches of one pair of axes


def draw_history(history: History) -> Figure:
    """One pair of axes for the losses and one for each measure, all over the steps."""
    names = [name for name in history.names if name != "loss"]
    rows = math.ceil((len(names) + 1) / 2)
    columns = min(len(names) + 1, 2)
    size = (WHOLE if columns == 2 else WHOLE * 0.6, 0.5 + TALL * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    _draw_losses(grid.flat[0], history)
    for axes, name in zip(list(grid.flat)[1:], names, strict=False):
        _draw_measure(axes, history, name)
    for axes in list(grid.flat)[len(names) + 1 :]:
        axes.set_visible(False)
    for axes in list(grid.flat)[: len(names) + 1][-columns:]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    _draw_key(figure, list(grid.flat))
    return figure


def _draw_losses(axes: Axes, history: History) -> None:
    moments = [(m.step, m.loss) for m in history.moments]
    epochs = [(e.step, e.loss) for e in history.epochs]
    known = scale(loss for _, loss in (*moments, *epochs))
    if known is not None and known.log:
        axes.set_yscale("log")
    if epochs:
        axes.plot(*_finite(epochs), color=GREY, lw=1.1, label="_as met")
    axes.plot(*_finite(moments), "o-", ms=3, color=STAYS, label="_loss")
    _titled(axes, "loss" + (" (grey: as the batches were met)" if epochs else ""))


def _draw_measure(axes: Axes, history: History, name: str) -> None:
    pairs = history.readings(name)
    bottoms = [(m, r.least) for m, r in pairs if r.least is not None]
    edges = [(m.step, m.edge) for m, _ in pairs if m.edge and name == "lambda_max"]
    values = [r.estimate.value for _, r in pairs]
    values += [least.value for _, least in bottoms] + [edge for _, edge in edges]
    known = scale(values)
    if known is not None and known.log:
        axes.set_yscale("log")
    stays = any(r.invariant for _, r in pairs)
    here = [(m.step, r.estimate) for m, r in pairs]
    _draw_course(
        axes, here, STAYS if stays else MOVES, "no rescaling moves it" if stays else "here"
    )
    if bottoms:
        _draw_course(axes, [(m.step, e) for m, e in bottoms], STAYS, "least on the orbit")
    if edges:
        axes.plot(*_finite(edges), color=GREY, ls=(0, (4, 3)), lw=1.1, label="2 / rate")
    _titled(axes, pairs[0][1].shown if pairs else name)


def _draw_course(
    axes: Axes, course: Sequence[tuple[int, Estimate]], color: str, label: str
) -> None:
    steps = np.array([step for step, _ in course], dtype=float)
    value = np.array([e.value for _, e in course], dtype=float)
    error = np.array([e.error for _, e in course], dtype=float)
    if axes.get_yscale() == "log":
        value = np.where(value > 0, value, math.nan)
    low = np.where(value - error > 0, value - error, value * 1e-3)
    low = low if axes.get_yscale() == "log" else value - error
    axes.fill_between(steps, low, value + error, color=color, alpha=0.2, lw=0)
    axes.plot(steps, value, "o-", ms=3, color=color, label=label)


def _finite(pairs: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    found = np.array(pairs, dtype=float).reshape(-1, 2)
    return found[:, 0], np.where(np.isfinite(found[:, 1]), found[:, 1], math.nan)


def _titled(axes: Axes, title: str) -> None:
    log = ", log axis" if axes.get_yscale() == "log" else ""
    axes.set_title(title + log, loc="left", fontsize=SMALL, fontweight="bold")
    axes.grid(axis="y", color=FAINT, lw=0.7)
    axes.set_axisbelow(True)


def _draw_key(figure: Figure, every: Sequence[Axes]) -> None:
    marks = {}
    for axes in every:
        for line in axes.lines:
            label = str(line.get_label())
            if not label.startswith("_"):
                marks.setdefault(label, line)
    if marks:
        figure.legend(marks.values(), marks.keys(), loc="outside lower left", ncols=4)
