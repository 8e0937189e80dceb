"""What is shown of a result: one table with words around it, for terminals and notebooks alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.terminal import RenderableType, Stack, Table, Text


class Cell(NamedTuple):
    text: str
    style: str = ""


class Column(NamedTuple):
    title: str
    right: bool = False
    wraps: bool = True


@dataclass(frozen=True)
class Grid:
    """Columns and rows, with paragraphs above and below; a row of one cell is a remark."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    above: tuple[Cell, ...] = ()
    below: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) not in (1, len(self.columns)) for row in self.rows):
            raise SpiritlevelError("a row of a grid has a cell for every column, or is one remark")


def filled(
    columns: tuple[Column, ...], rows: tuple[tuple[Cell, ...], ...]
) -> tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]:
    """Without the columns that say nothing in any row."""
    kept = [i for i in range(len(columns)) if any(row[i].text for row in rows)]
    return tuple(columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows)


def cells(*texts: str, style: str = "") -> tuple[Cell, ...]:
    return tuple(Cell(text, style) for text in texts)


def for_terminal(grid: Grid) -> RenderableType:
    titled = any(column.title for column in grid.columns)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=titled)
    for column in grid.columns:
        side = "right" if column.right else "left"
        # unescaped: names come from outside
        table.add_column(
            Text(column.title), justify=side, no_wrap=not column.wraps, overflow="fold"
        )
    for row in grid.rows:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    above = [*_paragraphs(grid.above), Text()] if grid.above else []
    below = [Text(), *_paragraphs(grid.below)] if grid.below else []
    return Stack(*above, table, *below)


def _paragraphs(lines: Sequence[Cell]) -> list[Text]:
    return [Text(line.text, style=line.style) for line in lines]


def for_notebook(grid: Grid) -> str:
    """An HTML table without styles: the notebook has its own."""
    head = "".join(f"<th>{escape(column.title)}</th>" for column in grid.columns)
    body = "".join(_row(row, len(grid.columns)) for row in grid.rows)
    above, below = _paragraph(grid.above), _paragraph(grid.below)
    return f"{above}<table><tr>{head}</tr>{body}</table>{below}"


def _paragraph(lines: Sequence[Cell]) -> str:
    shown = [escape(line.text) for line in lines if line.text]
    return f"<p>{'<br>'.join(shown)}</p>" if shown else ""


def _row(row: Sequence[Cell], width: int) -> str:
    if len(row) == 1 < width:
        return f'<tr><td colspan="{width}"><em>{escape(row[0].text.strip())}</em></td></tr>'
    return f"<tr>{''.join(f'<td>{escape(cell.text)}</td>' for cell in row)}</tr>"
