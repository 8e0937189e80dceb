"""Lines and spectra as curves; where there is no finite value, a curve has a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from spiritlevel.base.estimate import Estimate
from spiritlevel.results.landscape import Curve, Line
from spiritlevel.results.pictures.style import COLORS, FAINT, GREY, INK, SINGLE, SMALL, WHOLE, pens
from spiritlevel.results.places import array
from spiritlevel.results.scales import densities, eigenvalues, scale
from spiritlevel.results.spectra import Spectra, Spectrum

MANY = 6  # spectra that each have room for a label on their axis


def draw_line(line: Line) -> Figure:
    """All curves on one pair of axes: losses, and accuracies in dashes on an axis of their own."""
    figure = Figure(figsize=(1.25 * SINGLE, 0.72 * SINGLE), layout="constrained")
    axes = figure.subplots()
    known = scale(loss for curve in line.curves for loss in curve.losses)
    if known is not None and known.log:
        axes.set_yscale("log")
    right = axes.twinx() if any(curve.accuracies is not None for curve in line.curves) else None
    for curve, pen in zip(line.curves, pens(), strict=False):
        _draw_losses(axes, curve, pen)
        if right is not None and curve.accuracies is not None:
            accuracies = _finite(curve.accuracies)
            right.plot(curve.axis, accuracies, color=pen["color"], ls=(0, (4, 3)), lw=0.9)
    axes.set(xlabel=_axis_name(line), ylabel="loss")
    axes.grid(axis="y", color=FAINT, lw=0.7)
    axes.set_axisbelow(True)
    if right is not None:
        right.set(ylabel="accuracy (dashed)", ylim=(0, 1.02))
        right.yaxis.set_major_formatter(PercentFormatter(1))
        right.spines["right"].set_visible(True)
        axes.set_zorder(right.get_zorder() + 1)  # losses above
        axes.patch.set_visible(False)
    if len(line.curves) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=min(len(line.curves), 4))
    return figure


def _draw_losses(axes: Axes, curve: Curve, pen: dict[str, Any]) -> None:
    losses = _finite(curve.losses)
    axes.plot(curve.axis, losses, label=curve.name, **pen)
    ends = [0, -1] if curve.barrier is not None else []
    here = curve.axis.index(0.0) if not ends and 0.0 in curve.axis else None
    marked = ends if here is None else [here]
    places = [curve.axis[k] for k in marked]
    axes.plot(places, losses[marked], "o", ms=4.5, color=pen["color"], label="_ends")
    if curve.barrier is not None and curve.barrier.value > 0:
        _draw_barrier(axes, curve, losses, curve.barrier, pen["color"])


def _draw_barrier(
    axes: Axes, curve: Curve, losses: np.ndarray, barrier: Estimate, color: str
) -> None:
    """From the place that is farthest above the straight line between the ends, down by it."""
    above = losses - np.interp(curve.axis, [curve.axis[0], curve.axis[-1]], losses[[0, -1]])
    if not np.isfinite(above).any():
        return
    top = int(np.nanargmax(above))
    place, loss = curve.axis[top], losses[top]
    axes.plot([place] * 2, [loss - barrier.value, loss], ":", color=color, lw=1.1, label="_barrier")
    axes.annotate(
        f"barrier {barrier.value:.3g}",
        (place, loss),
        (0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=SMALL,
        color=color,
    )


def _axis_name(line: Line) -> str:
    names = dict.fromkeys(curve.direction.name for curve in line.curves)
    return next(iter(names)) if len(names) == 1 else "place along the line"


def _finite(values: Sequence[float | None]) -> np.ndarray:
    found = np.array(array(values), dtype=float)
    return np.where(np.isfinite(found), found, math.nan)


def draw_spectra(spectra: Spectra) -> Figure:
    """A row for each spectrum, all on the same axes: densities are to be compared."""
    count = len(spectra.spectra)
    each = 1.75 if count <= MANY else 1.0
    size = (WHOLE * 0.85, 0.7 + each * max(count, 1))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)
    axis, up = eigenvalues(spectra.spectra), densities(spectra.spectra)
    for number, (axes, one) in enumerate(zip(grid.flat, spectra.spectra, strict=True)):
        _draw_spectrum(axes, one, COLORS[number % len(COLORS)] if count <= MANY else COLORS[0])
        axes.set_yscale("log")
        if axis.linear is not None:
            axes.set_xscale("symlog", linthresh=axis.linear, linscale=0.5)
        axes.set(xlim=(axis.low, axis.high), ylim=up)
        axes.set_title(one.name, loc="left", fontweight="bold", fontsize=SMALL)
        axes.axvline(0, color=FAINT, lw=0.8, zorder=0)
        if count <= MANY:
            axes.set_ylabel("density")
    if count > MANY:
        figure.supylabel("density", fontsize=9)
    grid.flat[-1].set_xlabel("eigenvalue" + (", symlog axis" if axis.linear is not None else ""))
    return figure


def _draw_spectrum(axes: Axes, one: Spectrum, color: str) -> None:
    grid, density, error = (np.array(v, dtype=float) for v in (one.grid, one.density, one.stderr))
    band = np.clip(density - 2 * error, 1e-300, None), density + 2 * error
    axes.fill_between(grid, *band, color=color, alpha=0.25, lw=0)
    axes.plot(grid, np.where(density > 0, density, math.nan), color=color, lw=1.2)
    places = [estimate.value for estimate in one.outliers]
    if places:
        axes.plot(
            places,
            [0.04] * len(places),
            "|",
            ms=11,
            mew=1.3,
            color=INK,
            transform=axes.get_xaxis_transform(),
            label="outliers",
        )
        known = f"{len(places)} apart from the bulk, up to {max(places):.3g}"
        axes.set_title(known, loc="right", fontsize=SMALL, color=GREY)
