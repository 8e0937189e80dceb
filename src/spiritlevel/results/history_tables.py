"""The course of a training as tables that a terminal has room for."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from spiritlevel.base.estimate import Estimate, Status, format_error, format_value
from spiritlevel.base.spoken import at_least, at_most, short_power
from spiritlevel.results.grid import Cell, Column, Grid, cells, filled

if TYPE_CHECKING:
    from spiritlevel.results.history import Epoch, History, Moment

LINE = 80  # characters: digits that a narrow terminal cuts off would make another number
ROOM = 2  # between columns
MOST = 24  # rows: more are thinned out
NOISY = 0.02  # relative: an error that is worth its place

T = TypeVar("T")
Block = list[tuple[Column, list[str]]]  # columns that belong together


def tables(history: History) -> list[Grid]:
    """Moments by measures, in as many tables as are needed, then epochs."""
    found: list[Grid] = []
    if history.moments or not history.epochs:
        found += _moments(history)
    if history.epochs:
        found.append(_epochs(history.epochs))
    return found


def _moments(history: History) -> list[Grid]:
    kept = thinned(history.moments)
    lead: Block = [(Column("moment"), [m.name for m in kept])]
    if any(m.name != f"step {m.step}" for m in kept):
        lead.append((_figures("step"), [str(m.step) for m in kept]))
    first: Block = [
        (_figures("loss"), [_plain(m.loss) for m in kept]),
        (_figures("rate"), ["" if m.rate is None else _plain(m.rate) for m in kept]),
    ]
    blocks = [first, *(_measure(kept, name) for name in history.names if name != "loss")]
    left = len(history.moments) - len(kept)
    return [_grid(lead, some, left) for some in _packed(lead, blocks)]


def _measure(kept: Sequence[Moment], name: str) -> Block:
    """A measure, its share of the edge, and its least value."""
    found = [m.get(name) for m in kept]
    title = next((r.shown for r in found if r is not None), name)
    block: Block = [
        (_figures(title), _shown([None if r is None else r.estimate for r in found])),
        (
            _figures("least"),
            ["" if r is None or r.least is None else least(r.least) for r in found],
        ),
    ]
    if name == "lambda_max":
        shares = [m.edge_share for m in kept]
        block.insert(
            1, (_figures("of edge"), ["" if e is None else f"{e.value:.2f}" for e in shares])
        )
    return block


def _packed(lead: Block, blocks: Sequence[Block]) -> list[Block]:
    """Blocks side by side as far as a line goes; a block that is alone may be wider."""
    rows: list[Block] = [[]]
    for block in (_said(block) for block in blocks):
        if rows[-1] and _width([*lead, *rows[-1], *block]) > LINE:
            rows.append([])
        rows[-1] += block
    return rows


def _said(block: Block) -> Block:
    return [(column, texts) for column, texts in block if any(texts)]


def _width(columns: Block) -> int:
    widths = [max(_title_width(c.title), *map(len, texts), 0) for c, texts in columns]
    return sum(widths) + ROOM * (len(columns) - 1)


def _title_width(title: str) -> int:
    return max((len(word) for word in title.split()), default=0)


def _broken(column: Column, texts: list[str]) -> Column:
    """Its title in lines that are no longer than what stands below, if words allow."""
    width = max(_title_width(column.title), *map(len, texts), 1)
    lines = textwrap.wrap(column.title, width, break_long_words=False, break_on_hyphens=False)
    return column._replace(title="\n".join(lines))


def _grid(lead: Block, some: Block, left: int) -> Grid:
    columns = [*lead, *some]
    rows = tuple(cells(*row) for row in zip(*(texts for _, texts in columns), strict=True))
    titles = tuple(_broken(*column) for column in columns)
    shown_columns, shown_rows = filled(titles, rows) if rows else ((), ())
    above = cells(f"{left} moments between these are left out", style="dim") if left else ()
    return Grid(shown_columns, shown_rows, above)


def _epochs(epochs: Sequence[Epoch]) -> Grid:
    kept = thinned(epochs)
    rows = tuple(
        cells(
            str(e.number),
            str(e.step),
            _plain(e.loss),
            "" if e.full is None else _plain(e.full),
            _plain(e.rate),
            f"{e.seconds:.2f}",
        )
        for e in kept
    )
    titles = ("epoch", "step", "loss as met", "loss after", "rate", "seconds")
    left = len(epochs) - len(kept)
    above: tuple[Cell, ...] = (
        cells(f"{left} epochs between these are left out", style="dim") if left else ()
    )
    return Grid(*filled(tuple(_figures(t) for t in titles), rows), above)


def thinned(rows: Sequence[T], most: int = MOST) -> list[T]:
    """The first, the last, and some in between."""
    if len(rows) <= most:
        return list(rows)
    places = {round(i * (len(rows) - 1) / (most - 1)) for i in range(most)}
    return [rows[i] for i in sorted(places)]


def _shown(column: Sequence[Estimate | None]) -> list[str]:
    """With errors where one of them is worth its place."""
    noisy = any(e is not None and e.error > NOISY * abs(e.value) for e in column)
    return ["" if e is None else shown(e, noisy) for e in column]


def shown(estimate: Estimate, noisy: bool) -> str:
    """Four digits at most, and the error if it is wanted."""
    e = estimate
    if not math.isfinite(e.value):
        return str(e.value)
    value = short_power(format_value(e.value, max(e.error, 0.01 * abs(e.value))))
    if e.status is Status.LOWER_BOUND:
        return f"≥ {at_least(e.value)}"
    if e.status is Status.UPPER_BOUND:
        return f"≤ {at_most(e.value)}"
    return f"{value} ± {format_error(e.error)}" if noisy and e.error else value


def least(estimate: Estimate) -> str:
    """The least value, with its error if that is seen in its digits."""
    return shown(estimate, estimate.error > NOISY * abs(estimate.value))


def _figures(title: str) -> Column:
    return Column(title, right=True)


def _plain(value: float) -> str:
    return short_power(f"{value:.4g}")
