"""What is guaranteed: bounds as plain data, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spiritlevel.base.estimate import format_value
from spiritlevel.results.data import LIVE
from spiritlevel.results.grid import Cell, Column, Grid, cells
from spiritlevel.results.provenance import OfNetwork, interruption, remarks, versions_line
from spiritlevel.results.result import Result, by_name

COLUMNS = (Column("bound"), Column("point"), Column("value", right=True), Column("on"))


@dataclass(frozen=True)
class Term:
    """One number that a bound is made of."""

    name: str
    value: float


@dataclass(frozen=True)
class Bound:
    """`of` is at most `value`, but for a share `delta` of all draws of the data.

    Where `delta` is None the bound is one of a mean over the draws, or of no chance at all.
    `trivial` is what is known without it: a bound that is no smaller is vacuous.
    """

    told = ("vacuous",)

    name: str
    title: str
    value: float
    of: str
    terms: tuple[Term, ...]
    delta: float | None
    assumptions: tuple[str, ...]
    reference: str
    trivial: float = 1.0

    @property
    def vacuous(self) -> bool:
        return not self.value < self.trivial

    def __getitem__(self, name: str) -> float:
        return by_name(self.terms, name, "term").value

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        sure = "" if self.delta is None else f" with probability {1 - self.delta:g}"
        said = " (vacuous)" if self.vacuous else ""
        return f"{self.of} <= {format_value(self.value)}{sure}{said}"


@dataclass(frozen=True)
class Row:
    """A bound of a network, and the point of the orbit that it was computed at."""

    point: str
    bound: Bound

    @property
    def name(self) -> str:
        return self.bound.name


@dataclass(frozen=True)
class Drawn:
    """The mean error of networks drawn from a posterior.

    The mean over all networks is at most `above`, but for a share `delta` of such drawings.
    """

    error: float
    stderr: float
    draws: int
    above: float
    delta: float


@dataclass(frozen=True)
class Part:
    """What one parameter adds to a divergence: where the posterior is, and at the orbit's least."""

    name: str
    parameters: int
    kl: float
    least: float | None = None


@dataclass(frozen=True)
class Step:
    """An epoch of the training of a posterior: its surrogate loss, its divergence, their bound."""

    epoch: int
    surrogate: float
    kl: float
    bound: float


@dataclass(frozen=True)
class Origin:
    """Where a PAC-Bayes bound comes from: the error of the networks drawn, and the divergence.

    `least` is the divergence where it is least over the orbit, and no point of the orbit has one
    below `lower_bound`; both are None where the orbit was not asked for.
    """

    error: Drawn
    test: Drawn | None
    kl: float
    least: float | None
    lower_bound: float | None
    examples: int  # that the bound is over
    prior: str  # what it is centred at, in words
    prior_scale: float  # its standard deviation
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Bounds(Result, kind="bounds", schema=1):
    """Bounds of one network, and where the PAC-Bayes ones come from.

    `posterior` is what was bounded: the mean and the spread of every parameter; it is not written.
    """

    rows: tuple[Row, ...]
    origin: Origin | None
    provenance: OfNetwork
    posterior: Any = field(default=None, metadata=LIVE, compare=False)

    title = "What is guaranteed"  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Bound:
        return by_name(self.rows, name, "bound").bound

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def grid(self) -> Grid:
        rows = tuple(self._row(row) for row in self.rows)
        p = self.provenance
        notes = [f"note: {note}" for note in remarks(p)]
        below = cells(*notes, *interruption(p), versions_line(p), style="dim")
        return Grid(COLUMNS, rows, (), below)

    @staticmethod
    def _row(row: Row) -> tuple[Cell, ...]:
        bound = row.bound
        value = format_value(bound.value) + (" vacuous" if bound.vacuous else "")
        return cells(bound.title, row.point, value, bound.of, style="dim" if bound.vacuous else "")

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "point": row.point,
                "value": row.bound.value,
                "vacuous": row.bound.vacuous,
                "of": row.bound.of,
                "delta": row.bound.delta,
                "reference": row.bound.reference,
            }
            for row in self.rows
        ]
