"""What is guaranteed: bounds as plain data, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spiritlevel.base.spoken import at_most
from spiritlevel.results.bound_words import MAIN, legend, sentences
from spiritlevel.results.data import LIVE
from spiritlevel.results.grid import Cell, Column, Grid, cells
from spiritlevel.results.landscape import Picture
from spiritlevel.results.provenance import OfNetwork, interruption, remarks, versions_line
from spiritlevel.results.result import Result, by_name

COLUMNS = (
    Column("bound"),
    Column("point", wraps=False),
    Column("at most", right=True, wraps=False),
    Column("", wraps=False),
)


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
        return f"{self.of} <= {at_most(self.value)}{sure}{said}"


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

    `least` is the divergence where it is least over the orbit, and with its prior no point of the
    orbit has one below `lower_bound`; both are None where the orbit was not asked for.
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
class Bounds(Picture, Result, kind="bounds", schema=1):
    """Bounds of one network, and where the PAC-Bayes ones come from.

    `posterior` is what was bounded: the mean and the spread of every parameter; it is not written.
    """

    told = ("headline", "sentences")

    rows: tuple[Row, ...]
    origin: Origin | None
    provenance: OfNetwork  # type: ignore[assignment]
    posterior: Any = field(default=None, metadata=LIVE, compare=False)

    title = "What is guaranteed"  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Bound:
        """The bound of this name; the least, where it was computed at several points."""
        by_name(self.rows, name, "bound")
        return min((r.bound for r in self.rows if r.name == name), key=lambda b: b.value)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def main(self) -> Row | None:
        """The guarantee of networks that are drawn, where it is least."""
        known = [row for row in self.rows if row.name == MAIN] if self.origin else []
        return min(known, key=lambda row: row.bound.value, default=None)

    @property
    def informed(self) -> bool:
        """Whether some of the examples went into the prior: the posterior then starts there."""
        known = self.origin
        return known is not None and known.examples < self.provenance["examples"]

    # What it says -----------------------------------------------------------------------------

    @property
    def sentences(self) -> tuple[str, ...]:
        """What may be said, the guarantee first."""
        return sentences(self)

    @property
    def headline(self) -> str:
        """The first thing to say."""
        return self.sentences[0]

    # How it is shown --------------------------------------------------------------------------

    def grid(self) -> Grid:
        """Under each thing that is bounded its bounds, the points of one under each other."""
        rows: list[tuple[Cell, ...]] = []
        for of, members in grouped(self.rows, lambda row: row.bound.of).items():
            rows.append((Cell(of, "bold"),))
            for same in grouped(members, lambda row: row.name).values():
                rows += [_row(row, first=row is same[0]) for row in same]
        return Grid(COLUMNS, tuple(rows), (), self.below())

    def below(self) -> tuple[Cell, ...]:
        told = self.provenance
        network = (
            f"{told['parameters']:,} parameters, {told['examples']:,} examples, "
            f"{told['dtype']} on {told['device']}, seed {told['seed']}, {told['seconds']:.1f} s"
        )
        lines = [*interruption(told), *legend(self), *remarks(told), network, versions_line(told)]
        return (*cells(*self.sentences), *cells(*lines, style="dim"))

    def to_html(self) -> str:
        """The picture and its table for notebooks; `write_report` makes a page."""
        return super().to_html() if self.rows else Result.to_html(self)

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "title": row.bound.title,
                "point": row.point,
                "value": row.bound.value,
                "vacuous": row.bound.vacuous,
                "trivial": row.bound.trivial,
                "of": row.bound.of,
                "delta": row.bound.delta,
                "reference": row.bound.reference,
            }
            for row in self.rows
        ]


def grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows with the same key together, in the order in which the keys come first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _row(row: Row, *, first: bool) -> tuple[Cell, ...]:
    bound = row.bound
    name, said = f"  {bound.title}" if first else "", "vacuous" if bound.vacuous else ""
    texts = (name, row.point, at_most(bound.value), said)
    return cells(*texts, style="dim" if bound.vacuous else "")
