"""Figures as SVG text: readable on light and dark pages, without pyplot and its state."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#3f83d6", "#e07b39", "#2f9e74", "#8a8a8a"
COLORS = (BLUE, ORANGE, GREEN)
STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "font.size": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.color": GREY,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


class Sheet:
    """Some axes side by side, and their SVG."""

    def __init__(
        self, name: str, columns: int = 1, width: float = 4.2, height: float = 3.0
    ) -> None:
        self.name = name
        with matplotlib.rc_context(STYLE):
            self.figure = Figure(figsize=(width * columns, height), layout="constrained")
            self.axes: list[Axes] = list(np.atleast_1d(self.figure.subplots(1, columns)))

    def svg(self) -> str:
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": self.name}):
            stream = io.StringIO()
            metadata = {"Date": None, "Creator": None, "Title": self.name.replace("_", " ")}
            self.figure.savefig(stream, format="svg", transparent=True, metadata=metadata)
        text = stream.getvalue()
        return text[text.index("<svg") :]


def note(axes: Axes, text: str, x: float, y: float, **options: Any) -> None:
    """Text in units of the axes."""
    axes.text(x, y, text, transform=axes.transAxes, fontsize=9, **options)


def log_log(axes: Axes, series: Series, x: str, y: str) -> None:
    """Curves on two logarithmic axes, each named by a legend."""
    for color, (label, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        axes.loglog(xs, ys, "o-", color=color, label=label, markersize=4)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize=9)


def orbit_curve(
    alphas: Sequence[float], norms: Sequence[float], lower_bound: float, here: float
) -> str:
    """The spectral norm along a rescaling: unbounded above, bounded below."""
    sheet = Sheet("orbit", width=5.2)
    axes = sheet.axes[0]
    axes.loglog(alphas, norms, color=BLUE)
    axes.axhline(lower_bound, color=ORANGE, linestyle="--")
    axes.plot([1.0], [here], "o", color=GREEN)
    axes.annotate(
        "as trained",
        (1.0, here),
        xytext=(0, 10),
        textcoords="offset points",
        color=GREEN,
        ha="center",
    )
    note(axes, f"no rescaling goes below {lower_bound:.3g}", 0.5, 0.07, color=ORANGE, ha="center")
    axes.set_ylim(lower_bound / 3, None)
    axes.set_xlabel("factor on one layer (its inverse on the next)")
    axes.set_ylabel("largest eigenvalue")
    return sheet.svg()


def volumes(intervals: Sequence[tuple[float, float]], totals: Sequence[float]) -> str:
    """Where the boxes lie, and the volume of all of them."""
    sheet = Sheet("infinite_volume", 2)
    left, right = sheet.axes
    shown = min(len(intervals), 12)
    for k, (low, high) in enumerate(intervals[:shown]):
        # an interval of a small box would be a hair: a marker says where it is
        left.plot([low, high], [k, k], color=BLUE, linewidth=6, solid_capstyle="butt")
        left.plot([math.sqrt(low * high)], [k], "|", color=BLUE, markersize=10)
    left.set_xscale("log")
    left.set_xlabel("largest weight of the scaled layer")
    left.set_ylabel("box k")
    left.set_title("disjoint boxes, one function")
    right.plot(range(1, len(totals) + 1), np.array(totals) / math.log(10), color=ORANGE)
    right.set_xlabel("boxes")
    right.set_ylabel("log10 of their volume")
    right.set_title("the volume grows without end")
    return sheet.svg()


def three_wells(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    minima: Mapping[str, tuple[float, float, float]],
) -> str:
    """One loss in three coordinates: (eta, L) curves and (eta, L, curvature) of the minimum."""
    sheet = Sheet("one_loss_three_coordinates", 3, width=3.1, height=2.8)
    for axes, color, (label, (xs, ys)) in zip(sheet.axes, COLORS, curves.items(), strict=True):
        eta, low, curvature = minima[label]
        axes.plot(xs, ys, color=color)
        axes.plot([eta], [low], "o", color=color)
        note(axes, f"curvature {curvature:.3g}", 0.5, 0.9, color=color, ha="center")
        axes.set_title(label)
        axes.set_xlabel("eta" if axes is not sheet.axes[0] else "theta")
        axes.set_ylim(-0.25, 1.9)
    sheet.axes[0].set_ylabel("loss")
    return sheet.svg()


def radial_map(
    radii: Sequence[float],
    images: Sequence[float],
    lines: Sequence[tuple[Sequence[float], Sequence[float]]],
    circles: Mapping[str, float],
) -> str:
    """psi(r), and what the map does to a grid of the plane."""
    sheet = Sheet("radial_map", 2, width=3.8, height=3.4)
    left, right = sheet.axes
    left.plot(radii, radii, color=GREY, linewidth=1, linestyle=":")
    left.plot(radii, images, color=BLUE)
    for label, radius in circles.items():
        left.axvline(radius, color=ORANGE, linewidth=0.8, linestyle="--")
        left.annotate(
            label, (radius, 0), xytext=(3, 4), textcoords="offset points", color=ORANGE, fontsize=9
        )
    left.set_xlabel("r in theta")
    left.set_ylabel("psi(r) in eta")
    for xs, ys in lines:
        right.plot(xs, ys, color=BLUE, linewidth=0.8)
    turn = np.linspace(0, 2 * np.pi, 200)
    outer = max(circles.values())
    right.plot(outer * np.cos(turn), outer * np.sin(turn), color=ORANGE, linewidth=1)
    right.set_aspect("equal")
    right.set_axis_off()
    right.set_title("the grid of theta, drawn in eta")
    return sheet.svg()


def rankings(before: Sequence[float], after: Mapping[str, Sequence[float]]) -> str:
    """Spectral norms of the same minima as given and in each new order."""
    sheet = Sheet("reranking", width=6.4)
    axes = sheet.axes[0]
    columns = {"as trained": before, **after}
    for net, color in zip(range(len(before)), COLORS, strict=False):
        heights = [norms[net] for norms in columns.values()]
        axes.plot(range(1, len(columns)), heights[1:], "o", color=color, markersize=9)
        axes.plot([0], heights[:1], "D", color=color, markersize=8, label=f"net {net}")
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_ylabel("spectral norm of the Hessian")
    axes.set_xlabel("order asked for, flattest to sharpest")
    axes.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return sheet.svg()


def representations(
    clouds: Sequence[Mapping[str, np.ndarray]], best: Sequence[Mapping[str, str]]
) -> str:
    """Draws of the truth and of two models, in x and in u, and who is better by what."""
    sheet = Sheet("input_representation", 2, width=3.9, height=3.6)
    for axes, cloud, winners, title in zip(
        sheet.axes, clouds, best, ("in x", "in u = xi(x)"), strict=True
    ):
        for color, (label, points) in zip((GREY, BLUE, ORANGE), cloud.items(), strict=True):
            axes.plot(points[:, 0], points[:, 1], ".", color=color, markersize=3, alpha=0.6)
            axes.plot(*points.mean(0), "X", color=color, markersize=11, label=label)
        axes.set_title(title)
        axes.set_aspect("equal", adjustable="datalim")
        lines = [f"{criterion}: {name}" for criterion, name in winners.items()]
        axes.set_xlabel("nearer to the truth by\n" + "\n".join(lines))
    sheet.axes[0].legend(fontsize=9, loc="upper left")
    return sheet.svg()


def zigzag(
    x: Sequence[float], y: Sequence[float], points: tuple[Sequence[float], Sequence[float]]
) -> str:
    """A net through random labels, along the one direction that it looks at."""
    sheet = Sheet("any_labels", width=6.0)
    axes = sheet.axes[0]
    axes.plot(x, y, color=BLUE, linewidth=1)
    axes.plot(*points, "o", color=ORANGE, markersize=4)
    axes.set_xlabel("a.x, the direction that the first layer looks at")
    axes.set_ylabel("output, and random labels")
    return sheet.svg()


def twins(outputs: Mapping[str, np.ndarray], train: np.ndarray, titles: Sequence[str]) -> str:
    """What two nets of the same trace say on every input: training points apart."""
    sheet = Sheet("twins", 2, width=4.0)
    for axes, (label, values), title in zip(sheet.axes, outputs.items(), titles, strict=True):
        places = np.arange(len(values))
        axes.plot(places[~train], values[~train], ".", color=BLUE, markersize=2.5, label="unseen")
        axes.plot(places[train], values[train], "o", color=ORANGE, markersize=4, label="training")
        axes.set_title(f"{label}: {title}")
        axes.set_xlabel("all inputs")
        axes.set_ylim(-1.35, 1.35)
        axes.axhline(0, color=GREY, linewidth=0.6)
    sheet.axes[0].set_ylabel("output times label")
    sheet.axes[0].legend(fontsize=9, loc="lower left")
    return sheet.svg()


def distances(curves: Mapping[str, Sequence[float]]) -> str:
    """How far gradient descent is from a minimum, step by step."""
    sheet = Sheet("stability_edge", width=5.0)
    axes = sheet.axes[0]
    for color, (label, values) in zip(COLORS, curves.items(), strict=False):
        axes.semilogy(range(len(values)), values, color=color)
        axes.annotate(
            label,
            (len(values) - 1, values[-1]),
            xytext=(4, 0),
            textcoords="offset points",
            color=color,
            va="center",
        )
    axes.set_xlabel("steps of gradient descent")
    axes.set_ylabel("distance from the start, relative")
    axes.margins(x=0.2)
    return sheet.svg()


def loglog(name: str, series: Series, x: str, y: str, line: tuple[str, float] | None = None) -> str:
    """Some curves on logarithmic axes, and a level."""
    sheet = Sheet(name, width=5.0)
    log_log(sheet.axes[0], series, x, y)
    if line is not None:
        sheet.axes[0].axhline(line[1], color=GREEN, linestyle="--", label=line[0])
        sheet.axes[0].legend(fontsize=9)
    return sheet.svg()


def spectra(before: np.ndarray, after: np.ndarray, target: float) -> str:
    """Positive eigenvalues, largest first, before and after a rescaling."""
    sheet = Sheet("deep_theorem", width=5.2)
    axes = sheet.axes[0]
    for values, color, label in ((before, BLUE, "as trained"), (after, ORANGE, "rescaled")):
        positive = np.sort(values[values > 1e-10 * values.max()])[::-1]
        axes.semilogy(np.arange(1, len(positive) + 1), positive, color=color, label=label)
    axes.axhline(target, color=GREEN, linestyle="--", label=f"target {target:g}")
    axes.set_xlabel("rank of the eigenvalue")
    axes.set_ylabel("eigenvalue of the Hessian")
    axes.legend(fontsize=9)
    return sheet.svg()
