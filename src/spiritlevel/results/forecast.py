"""The result of `estimate`: what a piece of work will take, before it is begun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.spoken import duration
from spiritlevel.results.grid import Column, Grid, cells
from spiritlevel.results.provenance import OfNetwork, remarks, versions_line
from spiritlevel.results.result import Result, by_name

COLUMNS = (
    Column("part"),
    Column("points", right=True),
    Column("products", right=True),
    Column("gradients", right=True),
    Column("passes", right=True),
    Column("seconds", right=True),
)


@dataclass(frozen=True)
class Share:
    """One part of the work: passes over all the data of each kind, and the time they take."""

    name: str
    title: str
    points: int
    products: float
    gradients: float
    passes: float
    seconds: float

    def cells(self) -> tuple[str, ...]:
        counts = (self.products, self.gradients, self.passes)
        numbers = (f"{count:.3g}" if count else "" for count in counts)
        return self.title, str(self.points), *numbers, f"{self.seconds:.2g}"


@dataclass(frozen=True, eq=False)
class Forecast(Result, kind="forecast", schema=1):
    """What `measure` or an audit would take: usually right to a factor of two.

    `memory` is what is needed beside the model and the data, in bytes; `units` are the seconds of
    one pass of each kind over all the data, as timed.
    """

    of: str
    rows: tuple[Share, ...]
    memory: float
    units: dict[str, float]
    provenance: OfNetwork

    title = "Work ahead"  # type: ignore[assignment]

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def products(self) -> float:
        return sum(row.products for row in self.rows)

    def __getitem__(self, name: str) -> Share:
        return by_name(self.rows, name, "part")

    def __iter__(self) -> Iterator[Share]:
        return iter(self.rows)

    def grid(self) -> Grid:
        p = self.provenance
        total = f"{self.of}: about {duration(self.seconds)}, {self.products:.3g} products"
        room = f"and {_size(self.memory)} beside the model and its data; usually to a factor of two"
        timed = ", ".join(f"{kind} {seconds:.2g} s" for kind, seconds in self.units.items())
        rest = [
            f"{p['parameters']:,} parameters, {p['examples']:,} examples, {p['dtype']}, "
            f"{p['device']}; timed over the data: {timed}",
            *(f"note: {note}" for note in remarks(p)),
            versions_line(p),
        ]
        below = (*cells(f"{total}, {room}", "", style="bold"), *cells(*rest, style="dim"))
        return Grid(COLUMNS, tuple(cells(*row.cells()) for row in self.rows), (), below)

    def records(self) -> list[dict[str, Any]]:
        names = ("name", "points", "products", "gradients", "passes", "seconds")
        return [{name: getattr(row, name) for name in names} for row in self.rows]


def _size(count: float) -> str:
    return f"{count / 2**30:.2g} GiB" if count >= 2**29 else f"{count / 2**20:.2g} MiB"
