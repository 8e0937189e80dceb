"""Pages: one self-contained HTML file for each kind of result."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spiritlevel.base.doors import a, file
from spiritlevel.base.errors import SpiritlevelError, writable
from spiritlevel.report.audit import audit_words
from spiritlevel.report.bound import bounds_words
from spiritlevel.report.claims import claims_words
from spiritlevel.report.comparison import comparison_words
from spiritlevel.report.curves import line_words, spectra_words
from spiritlevel.report.history import history_words
from spiritlevel.report.landscape import surface_words
from spiritlevel.report.plain import grid_words
from spiritlevel.report.study import study_words
from spiritlevel.report.table import table_words
from spiritlevel.results.result import Result

PAGES: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "audit": ("audit.html", audit_words),
    "table": ("measure.html", table_words),
    "comparison": ("compare.html", comparison_words),
    "claims": ("claims.html", claims_words),
    "surface": ("surface.html", surface_words),
    "line": ("line.html", line_words),
    "spectra": ("spectra.html", spectra_words),
    "history": ("history.html", history_words),
    "bounds": ("bound.html", bounds_words),
    "study": ("study.html", study_words),
}
PLAIN = ("plain.html", grid_words)  # for kinds that have no page of their own


def write_report(result: Result, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Any result as one HTML page that needs nothing else: neither a model nor torch."""
    found = file(path)
    found.write_text(writable(page(result, title=title)), encoding="utf-8")
    return found


def page(result: Result, *, title: str | None = None) -> str:
    """The page of a result, as HTML."""
    if not isinstance(result, Result):
        raise SpiritlevelError(
            f"give a result, not a {type(result).__name__}: what audit, measure, compare, claims "
            "or load returned"
        )
    a("title", title, (str, type(None)), "a text")
    template, words = PAGES.get(result.kind, PLAIN)
    return render(template, title=title or result.title, **words(result))


def render(template: str, **context: Any) -> str:
    """A template of this package, everything that is put into it escaped."""
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("spiritlevel.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def inline(name: str) -> Markup:
        """A style sheet or script of this package as it is: braces in it are not a template's."""
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])

    environment.globals["inline"] = inline
    return environment
