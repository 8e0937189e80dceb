"""Figures as SVG text: readable on light and dark pages, without pyplot and its state."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

BLUE, ORANGE, GREEN, GREY = "#3f83d6", "#e07b39", "#2f9e74", "#8a8a8a"
COLORS = (BLUE, ORANGE, GREEN)
STYLE: dict[Any, Any] = {
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


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Our settings while a figure is drawn; those of matplotlib are given back."""
    with matplotlib.rc_context(STYLE):
        yield


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


@styled()
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


@styled()
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


@styled()
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


@styled()
def twins(outputs: Mapping[str, np.ndarray], train: np.ndarray, titles: Sequence[str]) -> str:
    """What two nets of the same trace say on every input: training points apart."""
    sheet = Sheet("twins", 2, width=4.0)
    for axes, (label, values), title in zip(sheet.axes, outputs.items(), titles, strict=True):
        places = np.arange(len(values))
        some = places[~train][::4]  # enough to see
        axes.plot(some, values[some], ".", color=BLUE, markersize=2.5, label="unseen")
        axes.plot(places[train], values[train], "o", color=ORANGE, markersize=4, label="training")
        axes.set_title(f"{label}: {title}")
        axes.set_xlabel("all inputs")
        axes.set_ylim(-1.35, 1.35)
        axes.axhline(0, color=GREY, linewidth=0.6)
    sheet.axes[0].set_ylabel("output times label")
    sheet.axes[0].legend(fontsize=9, loc="lower left")
    return sheet.svg()


@styled()
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


@styled()
def orbit_curve(
    alphas: Sequence[float], norms: Sequence[float], lower_bound: float, here: float
) -> str:
    """The spectral norm along a rescaling: unbounded above, bounded below."""
    sheet = Sheet("orbit", width=5.2)
    axes = sheet.axes[0]
    axes.loglog(alphas, norms, color=BLUE)
    axes.axhline(lower_bound, color=ORANGE, linestyle="--")
    axes.plot([1.0], [here], "o", color=GREEN)
    axes.text(1.0, here * 3, "as trained", color=GREEN, ha="center")
    text = f"no rescaling of any unit goes below {lower_bound:.3g}"
    axes.text(1.0, lower_bound / 1.4, text, color=ORANGE, ha="center", va="top")
    axes.set_ylim(lower_bound / 5, None)
    axes.set_xlabel("factor on one layer (its inverse on the next)")
    axes.set_ylabel("largest eigenvalue")
    return sheet.svg()


@styled()
def volumes(intervals: Sequence[tuple[float, float]], totals: Sequence[float]) -> str:
    """The boxes of a net of two weights, those of the network, and their volume."""
    sheet = Sheet("infinite_volume", 3, width=3.4)
    plane, left, right = sheet.axes
    _hyperbola(plane)
    shown = min(len(intervals), 12)
    for k, (low, high) in enumerate(intervals[:shown]):
        left.plot([low, high], [k, k], color=BLUE, linewidth=6, solid_capstyle="butt")
        # the interval of a small box would be a hair: a marker says where it is
        left.plot([math.sqrt(low * high)], [k], "|", color=BLUE, markersize=10)
    left.set_xscale("log")
    left.set_xlabel("largest weight of the layer")
    left.set_ylabel("box k")
    left.set_title("this network: disjoint boxes")
    right.plot(range(1, len(totals) + 1), np.array(totals) / math.log(10), color=ORANGE)
    right.set_xlabel("boxes")
    right.set_ylabel("log10 of their volume")
    right.set_title("volume without end")
    return sheet.svg()


def _hyperbola(axes: Axes) -> None:
    """L = (w1 w2 - 1)^2: one function on each hyperbola, and boxes of one area along one."""
    w = np.linspace(0.02, 3.4, 300)
    first, second = np.meshgrid(w, w)
    axes.contour(w, w, (first * second - 1) ** 2, [0.1, 0.5], colors=[GREY], linewidths=0.8)
    axes.plot(w, 1 / w, color=GREEN, linewidth=1.2)
    radius = 0.12
    alpha = 2 * (1 + radius) / (1 - radius)
    for k in (-1, 0, 1):
        a, side = alpha**k, 2 * radius
        corner = (a * (1 - radius), (1 - radius) / a)
        axes.add_patch(Rectangle(corner, a * side, side / a, color=BLUE, alpha=0.6))
    axes.set_xlim(0, 3.4)
    axes.set_ylim(0, 3.4)
    axes.set_xlabel("w1")
    axes.set_ylabel("w2")
    axes.set_title("w2 relu(w1 x): one function")


@styled()
def rankings(before: Sequence[float], after: Mapping[str, Sequence[float]]) -> str:
    """Spectral norms of the same minima as given and in each new order."""
    sheet = Sheet("reranking", width=6.6)
    axes = sheet.axes[0]
    columns = {"given": before, **after}
    for net, color in zip(range(len(before)), COLORS, strict=False):
        heights = [norms[net] for norms in columns.values()]
        axes.plot(range(1, len(columns)), heights[1:], "o", color=color, markersize=9)
        axes.plot([0], heights[:1], "D", color=color, markersize=8, label=f"net {net}")
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(columns)), list(columns), fontsize=9)
    axes.set_ylabel("spectral norm of the Hessian")
    axes.set_xlabel("order asked for, flattest to sharpest")
    axes.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return sheet.svg()


@styled()
def representations(
    rings: Sequence[Mapping[str, np.ndarray]], best: Sequence[Mapping[str, str]]
) -> str:
    """Level lines of the truth and of two models, in x and in u, and who is better by what."""
    sheet = Sheet("input_representation", 2, width=3.7, height=4.0)
    titles = ("in x", "in u = xi(x)")
    for axes, lines, winners, title in zip(sheet.axes, rings, best, titles, strict=True):
        for color, (label, points) in zip((GREY, BLUE, ORANGE), lines.items(), strict=True):
            for ring in points:
                axes.plot(ring[:, 0], ring[:, 1], color=color, linewidth=1)
            axes.plot(*points.mean((0, 1)), "X", color=color, markersize=9, label=label)
        axes.set_title(title)
        axes.set_aspect("equal", adjustable="datalim")
        text = [f"{criterion}: {name}" for criterion, name in winners.items()]
        axes.set_xlabel("nearer to the truth by\n" + "\n".join(text))
    sheet.axes[1].legend(fontsize=9, loc="upper left")
    return sheet.svg()


@styled()
def gradients(
    scales: Sequence[float], measured: Sequence[float], by_law: Sequence[float], bound: float | None
) -> str:
    """Gradients along an orbit against the law, and the bound on a ball."""
    sheet = Sheet("no_lipschitz_constant", width=5.0)
    axes = sheet.axes[0]
    axes.loglog(scales, by_law, color=BLUE, label="|D^-1 g|")
    axes.loglog(scales, measured, "o", color=ORANGE, label="gradient, measured")
    if bound is not None:
        axes.axhline(bound, color=GREEN, linestyle="--", label="bound on a ball")
    axes.set_xlabel("factor on one layer (its inverse on the next)")
    axes.set_ylabel("norm of the gradient")
    axes.legend(fontsize=9)
    return sheet.svg()


@styled()
def cuts(distances: Sequence[float], curves: Mapping[str, Sequence[float]]) -> str:
    """The loss on the way to the edge of a small ball, from two points of one network."""
    sheet = Sheet("epsilon_sharpness", width=5.0)
    axes = sheet.axes[0]
    for color, (label, values) in zip(COLORS, curves.items(), strict=False):
        axes.plot(distances, values, color=color, label=label)
    axes.set_xlabel("distance")
    axes.set_ylabel("loss")
    axes.legend(fontsize=9)
    return sheet.svg()
