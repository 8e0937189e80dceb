"""Figures as SVG text, all for one width of column, without pyplot and its state."""

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

# Dark ink on nothing: a light page shows them as they are, a dark one turns lightness around.
BLUE, ORANGE, GREEN, INK, GREY = "#2f6fc4", "#cf5f1c", "#1f8a63", "#454d55", "#9aa1a8"
COLORS = (BLUE, ORANGE, GREEN)
WHOLE, SINGLE = 7.4, 4.8  # inches: the width of a page's column, and of one pair of axes in it
SMALL = 9
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9.5,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "legend.columnspacing": 1.2,
    "legend.handlelength": 1.5,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Our settings while a figure is drawn; those of matplotlib are given back."""
    with matplotlib.rc_context(STYLE):
        yield


class Sheet:
    """Some axes side by side, and their SVG."""

    def __init__(self, name: str, columns: int = 1, height: float = 3.0, **options: Any) -> None:
        self.name = name
        with matplotlib.rc_context(STYLE):
            size = (SINGLE if columns == 1 else WHOLE, height)
            self.figure = Figure(figsize=size, layout="constrained")
            self.figure.get_layout_engine().set(wspace=0.08)  # type: ignore[union-attr]
            self.axes: list[Axes] = list(np.atleast_1d(self.figure.subplots(1, columns, **options)))

    def svg(self) -> str:
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": self.name}):
            stream = io.StringIO()
            metadata = {"Date": None, "Creator": None, "Title": self.name.replace("_", " ")}
            self.figure.savefig(stream, format="svg", transparent=True, metadata=metadata)
        text = stream.getvalue()
        return text[text.index("<svg") :]


def note(axes: Axes, text: str, x: float, y: float, **options: Any) -> None:
    """Text in units of the axes."""
    axes.text(x, y, text, transform=axes.transAxes, fontsize=SMALL, **options)


def label(
    axes: Axes, text: str, x: float, y: float, offset: tuple[float, float], **options: Any
) -> None:
    """Text beside a point of the data, some points of type away from it."""
    axes.annotate(text, (x, y), offset, textcoords="offset points", fontsize=SMALL, **options)


@styled()
def three_wells(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    minima: Mapping[str, tuple[float, float, float]],
) -> str:
    """One loss in three coordinates: (eta, L) curves and (eta, L, curvature) of the minimum."""
    sheet = Sheet("one_loss_three_coordinates", 3, height=2.6, sharey=True)
    for axes, color, (name, (xs, ys)) in zip(sheet.axes, COLORS, curves.items(), strict=True):
        eta, low, curvature = minima[name]
        axes.plot(xs, ys, color=color)
        axes.plot([eta], [low], "o", color=color)
        note(axes, f"curvature {curvature:.3g}", 0.5, 0.9, color=color, ha="center")
        axes.set_title(name)
        axes.set_xlabel("η" if axes is not sheet.axes[0] else "θ")
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
    sheet = Sheet("radial_map", 2, height=3.4)
    left, right = sheet.axes
    left.plot(radii, radii, color=GREY, linewidth=1, linestyle=":")
    left.plot(radii, images, color=BLUE)
    for name, radius in circles.items():
        left.axvline(radius, color=ORANGE, linewidth=0.8, linestyle="--")
        label(left, f"r = {name}", radius, 0, (4, 3), color=ORANGE)
    left.set_xlim(0, radii[-1])
    left.set_ylim(0, radii[-1])
    left.set_xlabel("distance from the minimum in θ, r")
    left.set_ylabel("distance in η, ψ(r)")
    for xs, ys in lines:
        right.plot(xs, ys, color=BLUE, linewidth=0.7)
    turn = np.linspace(0, 2 * np.pi, 200)
    outer = max(circles.values())
    right.plot(outer * np.cos(turn), outer * np.sin(turn), color=ORANGE, linewidth=1.4)
    right.set_aspect("equal")
    right.set_axis_off()
    right.set_title("a square grid of θ, drawn in η")
    return sheet.svg()


@styled()
def zigzag(
    x: Sequence[float], y: Sequence[float], points: tuple[Sequence[float], Sequence[float]]
) -> str:
    """A net through random labels, along the one direction that it looks at."""
    sheet = Sheet("any_labels", height=3.2)
    axes = sheet.axes[0]
    axes.plot(x, y, color=BLUE, linewidth=0.9, label="output of the net")
    axes.plot(*points, "o", color=ORANGE, markersize=3.5, label="random labels")
    axes.set_xlabel("a·x, the direction that the first layer looks at")
    axes.set_ylabel("output and labels")
    axes.legend(loc="lower left", ncols=2, bbox_to_anchor=(0.0, 1.0), borderaxespad=0)
    return sheet.svg()


@styled()
def twins(outputs: Mapping[str, np.ndarray], train: np.ndarray, titles: Sequence[str]) -> str:
    """What two nets of the same trace say on every input: training points apart."""
    sheet = Sheet("twins", 2, height=2.8, sharey=True)
    for axes, (name, values), title in zip(sheet.axes, outputs.items(), titles, strict=True):
        places = np.arange(len(values))
        some = places[~train][::4]  # enough to see
        axes.axhline(0, color=GREY, linewidth=0.6)
        axes.plot(some, values[some], ".", color=BLUE, markersize=2.5, label="unseen inputs")
        axes.plot(places[train], values[train], "o", color=ORANGE, markersize=4, label="training")
        axes.set_title(f"{name}: {title}")
        axes.set_xlabel(f"all {len(values):,} inputs, by number")
        axes.set_ylim(-1.35, 1.35)
    sheet.axes[0].set_ylabel("output × label (right if > 0)")
    sheet.axes[0].legend(loc="lower left", markerscale=1.5)
    return sheet.svg()


@styled()
def distances(curves: Mapping[str, Sequence[float]]) -> str:
    """How far gradient descent is from a minimum, step by step."""
    sheet = Sheet("stability_edge")
    axes = sheet.axes[0]
    last = len(next(iter(curves.values()))) - 1
    for color, (name, values) in zip(COLORS, curves.items(), strict=False):
        axes.semilogy(range(last + 1), values, color=color)
        label(axes, f"rate {name}", last, values[-1], (6, 0), color=color, va="center")
    axes.set_xlabel("steps of gradient descent")
    axes.set_ylabel("distance from the minimum ÷ first")
    axes.set_xlim(0, 1.3 * last)
    axes.set_xticks(range(0, last + 1, 10))
    return sheet.svg()


@styled()
def orbit_curve(
    alphas: Sequence[float], norms: Sequence[float], lower_bound: float, here: float
) -> str:
    """The spectral norm along a rescaling: unbounded above, bounded below."""
    sheet = Sheet("orbit")
    axes = sheet.axes[0]
    axes.loglog(alphas, norms, color=BLUE)
    axes.axhline(lower_bound, color=ORANGE, linestyle="--", linewidth=1.4)
    axes.plot([1.0], [here], "o", color=GREEN)
    label(axes, f"as trained, {here:.3g}", 1.0, here, (0, 26), color=GREEN, ha="center")
    text = f"no rescaling of any unit goes below {lower_bound:.3g}"
    label(axes, text, 1.0, lower_bound, (0, -6), color=ORANGE, ha="center", va="top")
    axes.set_ylim(lower_bound / 5, None)
    axes.set_xlabel("factor on one layer (its inverse on the next)")
    axes.set_ylabel("largest eigenvalue")
    return sheet.svg()


@styled()
def volumes(intervals: Sequence[tuple[float, float]], totals: Sequence[float]) -> str:
    """The boxes of a net of two weights, those of the network, and their volume."""
    sheet = Sheet("infinite_volume", 3, height=2.8)
    plane, left, right = sheet.axes
    _hyperbola(plane)
    shown = min(len(intervals), 12)
    for k, (low, high) in enumerate(intervals[:shown], start=1):
        left.plot([low, high], [k, k], color=BLUE, linewidth=6, solid_capstyle="butt")
        # the interval of a small box would be a hair: a marker says where it is
        left.plot([math.sqrt(low * high)], [k], "|", color=BLUE, markersize=9)
    left.set_xscale("log")
    left.set_xlabel("largest weight of a layer")
    left.set_ylabel(f"box, 1 to {shown}")
    left.set_title("this network: disjoint boxes")
    right.plot(range(1, len(totals) + 1), np.array(totals) / math.log(10), color=ORANGE)
    right.set_xlabel("boxes counted")
    right.set_ylabel("log₁₀ of their volume", labelpad=0)
    right.set_title("their volume has no end")
    right.yaxis.set_major_formatter("{x:,.0f}")
    return sheet.svg()


def _hyperbola(axes: Axes) -> None:
    """L = (w1 w2 - 1)^2: one function on each hyperbola, and boxes of one area along one."""
    w = np.linspace(0.02, 3.4, 300)
    first, second = np.meshgrid(w, w)
    axes.contour(w, w, (first * second - 1) ** 2, [0.1, 0.5], colors=[GREY], linewidths=0.7)
    axes.plot(w, 1 / w, color=GREEN, linewidth=1.2)
    label(axes, "w₁w₂ = 1", 0.8, 2.75, (0, 0), color=GREEN)
    radius = 0.12
    alpha = 2 * (1 + radius) / (1 - radius)
    for k in (-1, 0, 1):
        a, side = alpha**k, 2 * radius
        corner = (a * (1 - radius), (1 - radius) / a)
        axes.add_patch(Rectangle(corner, a * side, side / a, color=BLUE, alpha=0.6, linewidth=0))
    axes.set_xlim(0, 3.4)
    axes.set_ylim(0, 3.4)
    axes.set_xlabel("w₁")
    axes.set_ylabel("w₂")
    axes.set_title("w₂ relu(w₁x): equal areas")


@styled()
def rankings(before: Sequence[float], after: Mapping[str, Sequence[float]]) -> str:
    """Spectral norms of the same minima as given and in each new order."""
    sheet = Sheet("reranking", height=3.1)
    axes = sheet.axes[0]
    columns = {"given": before, **after}
    for net, color in zip(range(len(before)), COLORS, strict=False):
        heights = [norms[net] for norms in columns.values()]
        axes.plot(range(1, len(columns)), heights[1:], "o", color=color, markersize=8)
        axes.plot([0], heights[:1], "D", color=color, markersize=7, label=f"net {net}")
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_yscale("log", base=2)
    axes.margins(x=0.06, y=0.15)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(columns)), list(columns), fontsize=SMALL)
    axes.set_ylabel("spectral norm of the Hessian")
    axes.set_xlabel("order asked for, flattest to sharpest")
    axes.legend(loc="lower left", ncols=len(before), bbox_to_anchor=(0.0, 1.0), borderaxespad=0)
    return sheet.svg()


@styled()
def representations(
    rings: Sequence[Mapping[str, np.ndarray]], best: Sequence[Mapping[str, str]]
) -> str:
    """Level lines of the truth and of two models, in x and in u, and who is better by what."""
    sheet = Sheet("input_representation", 2, height=4.6, sharey=True)
    everything = np.concatenate([p.reshape(-1, 2) for lines in rings for p in lines.values()])
    low, high = everything.min(0) - 0.2, everything.max(0) + 0.2
    colors = dict(zip(rings[0], (INK, BLUE, ORANGE), strict=True))
    titles = ("inputs as they are, x", "inputs scaled, u = ξ(x)")
    for axes, lines, winners, title in zip(sheet.axes, rings, best, titles, strict=True):
        for name, points in lines.items():
            for ring in points:
                axes.plot(ring[:, 0], ring[:, 1], color=colors[name], linewidth=1)
            axes.plot(*points.mean((0, 1)), "X", color=colors[name], markersize=8, label=name)
        axes.set(title=title, xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
        words = [("nearer to the truth:", INK)]
        words += [(f"{name}, by {c}", colors[name]) for c, name in winners.items()]
        for row, (text, color) in enumerate(words):
            place = {"xytext": (0, -26 - 14 * row), "textcoords": "offset points"}
            axes.annotate(text, (0, 0), xycoords="axes fraction", color=color, va="top", **place)
    sheet.axes[1].legend(loc="upper right", borderaxespad=0)
    return sheet.svg()


@styled()
def gradients(
    scales: Sequence[float], measured: Sequence[float], by_law: Sequence[float], bound: float | None
) -> str:
    """Gradients along an orbit against the law, and the bound on a ball around its start."""
    sheet = Sheet("no_lipschitz_constant")
    axes = sheet.axes[0]
    axes.loglog(scales, by_law, color=BLUE, label="law, |D⁻¹g|")
    axes.loglog(scales, measured, "o", color=ORANGE, label="measured")
    if bound is not None:
        axes.loglog(scales[:1], [bound], "v", color=GREEN, label="bound on a ball there")
    axes.set_xlabel("factor on one layer (its inverse on the next)")
    axes.set_ylabel("norm of the gradient")
    axes.legend(loc="lower left", ncols=3, bbox_to_anchor=(0.0, 1.0), borderaxespad=0)
    return sheet.svg()


@styled()
def cuts(distances: Sequence[float], curves: Mapping[str, Sequence[float]]) -> str:
    """The loss on the way to the edge of a small ball, from two points of one network."""
    sheet = Sheet("epsilon_sharpness")
    axes = sheet.axes[0]
    for color, (name, values) in zip(COLORS, curves.items(), strict=False):
        axes.plot(distances, values, color=color, label=name, clip_on=False)
    axes.set_xlabel("distance from the point")
    axes.set_ylabel("loss")
    axes.set_xlim(0, distances[-1])
    axes.set_xticks([distances[-1] * k / 4 for k in range(5)])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left")
    return sheet.svg()
