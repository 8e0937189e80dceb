"""Rows of estimates and where they come from; prints itself."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status, format_error, format_value
from spiritlevel.measures.rest import Rest
from spiritlevel.results.files import csv_text, json_text, written
from spiritlevel.results.terminal import RenderableType, Stack, Text, plain
from spiritlevel.results.terminal import Table as RichTable

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One measure: its name, its title, its estimate; `shared` if a row above paid for it."""

    name: str
    title: str
    estimate: Estimate
    shared: bool = False

    def cells(self) -> tuple[str, str, str, str, str]:
        """Title, value, error, products, seconds as text."""
        e = self.estimate
        exact = e.stderr is None and e.residual is None
        if self.shared:
            cost, seconds = "shared", ""
        else:
            cost, seconds = f"{e.matvecs:.3g}" if e.matvecs else "", f"{e.seconds:.2f}"
        error = "" if exact else f"± {format_error(e.error)}"
        if e.status is Status.LOWER_BOUND:
            error = "or more"
        return self.title, format_value(e.value, e.error), error, cost, seconds


@dataclass(frozen=True)
class Table:
    """The result of `measure`: rows, whether the point is a minimum, and the provenance."""

    rows: tuple[Row, ...]
    rest: Rest | None
    footer: dict[str, Any]

    @property
    def verdict(self) -> str:
        """Whether the point is a minimum, in words; empty if nothing was asked of curvature."""
        return "" if self.rest is None else self.rest.text

    def __getitem__(self, name: str) -> Estimate:
        for row in self.rows:
            if row.name == name:
                return row.estimate
        raise SpiritlevelError(
            f"no row {name!r}; there are: {', '.join(row.name for row in self.rows)}"
        )

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __str__(self) -> str:
        return plain(self.__rich__())

    def __rich__(self) -> RenderableType:
        table = RichTable(box=None, pad_edge=False, header_style="bold")
        table.add_column("measure")
        table.add_column("value", justify="right")
        table.add_column("error")
        table.add_column("products", justify="right")
        table.add_column("seconds", justify="right")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row.cells()))
            if not row.estimate.converged:
                e = row.estimate
                table.add_row(Text(f"  {e.status.value}: {e.remedy}", style="yellow"))
        parts: list[RenderableType] = [table]
        if self.verdict:
            parts += [Text(), Text(self.verdict, style="bold")]
        parts += [Text(), *(Text(line, style="dim") for line in self._footer_lines())]
        return Stack(*parts)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data; see the README for the schema."""
        rows = [
            {"name": r.name, "title": r.title, "shared": r.shared, **r.estimate.to_dict()}
            for r in self.rows
        ]
        return {
            "schema": SCHEMA,
            "rows": rows,
            "verdict": self.verdict,
            "rest": None if self.rest is None else self.rest.to_dict(),
            "provenance": self.footer,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON text, also written to `path` if one is given."""
        return written(json_text(self.to_dict()), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line per row, as CSV text, also written to `path` if one is given."""
        head = "name value stderr residual status matvecs seconds shared"
        rows = []
        for row in self.rows:
            e = row.estimate
            numbers = [e.value, e.stderr, e.residual, e.status.value, e.matvecs, e.seconds]
            rows.append([row.name, *numbers, row.shared])
        return written(csv_text(head, rows), path)

    def to_html(self) -> str:
        """An HTML table for notebooks; `write_report` makes a page."""
        columns = ("measure", "value", "error", "products", "seconds")
        head = "".join(f"<th>{column}</th>" for column in columns)
        body = ""
        for row in self.rows:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells())
            body += f"<tr>{cells}</tr>"
            if not row.estimate.converged:
                remark = html.escape(f"{row.estimate.status.value}: {row.estimate.remedy}")
                body += f'<tr><td colspan="{len(columns)}"><em>{remark}</em></td></tr>'
        lines = [line for line in (self.verdict, *self._footer_lines()) if line]
        below = "<br>".join(html.escape(line) for line in lines)
        return f"<table><tr>{head}</tr>{body}</table><p>{below}</p>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _footer_lines(self) -> list[str]:
        f = self.footer
        lines = [
            f"{f['parameters']:,} parameters, {f['examples']:,} examples, {f['mode']} mode, "
            f"{f['dtype']}, {f['device']}",
            f"seed {f['seed']}, {f['products']:.4g} products in {f['seconds']:.1f} s",
        ]
        if "product" in f:
            lines.append(
                f"product: {f['product']}; against finite differences {f['product_check']:.0e}, "
                f"rounding {f['product_rounding']:.0e}"
            )
        lines += [f"note: {note}" for note in f.get("notes", [])]
        if "interrupted" in f:
            lines.append(f"interrupted: {f['interrupted']}")
        versions = ", ".join(f"{name} {version}" for name, version in f["versions"].items())
        return [*lines, versions]
