"""How figures look: the colours of the pages, dark ink on white."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

# Told apart by readers who confuse red and green (Okabe and Ito), darkened for thin lines
COLORS = ("#0b6e5b", "#cf5f1c", "#2f6fc4", "#a8326f", "#8a6d00", "#4b9bbd", "#454d55")
DASHES = ("-", (0, (6, 2)), (0, (1, 1.5)))  # for more curves than there are colours
INK, GREY, FAINT, PATH = "#1b1f23", "#8b939b", "#ebece8", "#d5451b"
WHOLE, SINGLE = 7.4, 5.2  # inches: the width of a page, and of one pair of axes
SMALL, TINY = 8.5, 7.0
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "auto",
    "axes.facecolor": "white",
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titlepad": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.unicode_minus": True,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "text.color": INK,
    "text.usetex": False,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.6,
}


def pens() -> Iterator[dict[str, Any]]:
    """A colour for each curve, and other dashes when they are used up."""
    for dash in cycle(DASHES):
        for color in COLORS:
            yield {"color": color, "linestyle": dash}
