"""Pages: one self-contained HTML file each, from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spiritlevel.report.audit import audit_words
from spiritlevel.report.claims import claims_words
from spiritlevel.report.comparison import comparison_words
from spiritlevel.report.table import table_words
from spiritlevel.results.files import json_ready


def audit_page(audit: Mapping[str, Any], journey: Mapping[str, Any] | None, *, title: str) -> str:
    """The report of an audit, with the figure that walks along the orbit if there is a journey."""
    return render("audit.html", title=title, **audit_words(audit), journey=json_ready(journey))


def table_page(table: Mapping[str, Any], *, title: str) -> str:
    """The result of `measure`: one network at one point."""
    return render("measure.html", title=title, **table_words(table))


def comparison_page(comparison: Mapping[str, Any], *, title: str) -> str:
    """Several networks side by side, with what survives their symmetries."""
    return render("compare.html", title=title, **comparison_words(comparison))


def claims_page(claims: Mapping[str, Any], figures: Mapping[str, str], *, title: str) -> str:
    """Claims with their numbers, verdicts and figures, which are SVG texts by name."""
    return render("claims.html", title=title, **claims_words(claims, figures))


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
