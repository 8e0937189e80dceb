"""Pictures of the loss as figures: every value is drawn where it was measured, or left blank."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from spiritlevel.base.doors import file
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.bound import Bounds
from spiritlevel.results.history import History
from spiritlevel.results.landscape import Line, Surface
from spiritlevel.results.pictures.bounds import draw_bounds
from spiritlevel.results.pictures.courses import draw_history
from spiritlevel.results.pictures.curves import draw_line, draw_spectra
from spiritlevel.results.pictures.studies import draw_study
from spiritlevel.results.pictures.style import STYLE
from spiritlevel.results.pictures.surfaces import draw_surface
from spiritlevel.results.result import Result
from spiritlevel.results.spectra import Spectra
from spiritlevel.results.study import Findings

DRAWN: dict[str, Callable[[Any], Figure]] = {
    Surface.kind: draw_surface,
    Line.kind: draw_line,
    Spectra.kind: draw_spectra,
    History.kind: draw_history,
    Bounds.kind: draw_bounds,
    Findings.kind: draw_study,
}
DOTS = 200  # per inch, of a file of pixels


def drawn(result: Result, path: str | os.PathLike[str] | None = None) -> Figure:
    """The figure of a result, also written to `path`."""
    return figured(result, lambda: DRAWN[result.kind](result), path)


def figured(
    result: Result, draw: Callable[[], Figure], path: str | os.PathLike[str] | None
) -> Figure:
    """What `draw` makes, also written to `path`; matplotlib's state stays as it was."""
    place = None if path is None else _place(path)  # refused before anything is drawn
    with matplotlib.rc_context(STYLE):
        figure = draw()
        figure.draw_without_rendering()  # axes to scale find their places at the second time
    if place is not None:
        _save(figure, result, place, _ending(place))
    return figure


def svg(result: Result) -> str:
    """The figure as SVG text that a page can hold: the same result gives the same text."""
    stream = io.StringIO()
    _save(drawn(result), result, stream, "svg")
    text = stream.getvalue().strip()
    shown = (
        f'<svg role="img" aria-label="{escape(result.title)}" style="max-width:100%;height:auto"'
    )
    return shown + text[text.index("<svg") + len("<svg") :]


def _place(path: str | os.PathLike[str]) -> Path:
    """Where a figure can be written to, in a format that there is."""
    place = file(path)
    if _ending(place) not in FigureCanvasBase.get_supported_filetypes():
        raise SpiritlevelError(
            f"path={str(path)!r} ends in {place.suffix!r}, which is no format of a figure: "
            "use .svg, .png or .pdf"
        )
    return place


def _ending(place: Path) -> str:
    return place.suffix[1:].lower()


def _save(figure: Figure, result: Result, out: Any, ending: str) -> None:
    """Without a date and with ids that hang on the drawing only: the same twice."""
    dateless = {"svg": {"Date": None, "Title": result.title}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": result.kind}):
        figure.savefig(out, format=ending, dpi=DOTS, metadata=dateless.get(ending))
