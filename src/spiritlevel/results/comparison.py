"""The result of a comparison: pairs with answers, and what they are worth."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from spiritlevel.base.doors import a, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.matrices import SYMBOLS, Kind
from spiritlevel.base.spoken import at_most, digits
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.data import LIVE
from spiritlevel.results.grid import Cell, Column, Grid, cells
from spiritlevel.results.provenance import Provenance, interruption, remarks, versions_line
from spiritlevel.results.result import Result


class Answer(str, enum.Enum):
    """What a difference between two networks is worth."""

    SURVIVES = "survives"
    COORDINATES = "coordinates"
    EQUAL = "equal"
    UNDECIDED = "undecided"


COLOURS = {
    Answer.SURVIVES: "green",
    Answer.COORDINATES: "red",
    Answer.EQUAL: "",
    Answer.UNDECIDED: "yellow",
}


COORDINATES_ONLY = (
    "No difference in sharpness survives rescaling: those that are known are of the coordinates."
)


@dataclass(frozen=True)
class Interval:
    """The least value over an orbit as it was found, and two ends between which it lies."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        return Interval(factor * self.value, factor * self.low, factor * self.high)


@dataclass(frozen=True)
class Turned:
    """Whether the smaller network was made the larger one, with its predictions, and by what.

    `objective` is that twin, where one was made and the comparison was not read from a file.
    """

    outcome: Literal["reached", "bounded", "not reached"]
    value: float
    reason: str
    certificate: Certificate | None
    objective: Any = field(default=None, repr=False, compare=False, metadata=LIVE)


class OfComparison(Provenance):
    seed: int


@dataclass(frozen=True)
class Pair:
    """One measure of two networks: which is larger here, and what that is worth.

    `least` holds, for each, the interval of the least value over its orbit; it is of the `matrix`,
    and to `order` 2 only if that is not None. `turned` is a network that computes what the smaller
    one does and has a larger value than the larger one: plain numbers can be put in any order.
    Undecided by what is `hidden`, it would survive the rescalings that were found.
    More of it is sharper if it `is_sharpness`, which a loss is not.
    """

    told = ("ratio", "text")

    name: str
    title: str
    family: str
    is_sharpness: bool
    sharper: str
    other: str
    values: tuple[Estimate, Estimate]
    least: tuple[Interval, Interval] | None
    matrix: Kind | None
    order: Literal[2] | None
    turned: Turned | None
    answer: Answer
    hidden: bool = False

    @property
    def text(self) -> str:
        more = "sharper" if self.is_sharpness else "larger"
        order = ", to second order" if self.order == 2 and self.least is not None else ""
        return {
            Answer.SURVIVES: f"{self.sharper} is {more}, and it survives rescaling{order}",
            Answer.COORDINATES: f"{self.sharper} is {more} only in these coordinates{order}",
            Answer.EQUAL: "equal",
            Answer.UNDECIDED: self._doubt(),
        }[self.answer]

    def _doubt(self) -> str:
        if self.hidden:
            return "undecided: rescalings may be hidden"
        if self.turned is not None and self.least is None:
            return "undecided: what is left is unknown"
        return "undecided at this accuracy"

    def least_cells(self) -> dict[str, str]:
        """The least value of each of the two, as text."""
        cells = {}
        for name, interval, here in zip(
            (self.sharper, self.other), self.least or (), self.values, strict=False
        ):
            # what is least is not shown above the value here, whose error may be larger
            value = interval.value if self.order else min(interval.value, here.value)
            cells[name] = digits(value) if interval.low else f"≤ {at_most(value, 3)}"
        return cells

    @property
    def ratio(self) -> float:
        """The larger over the smaller; infinite unless both are positive."""
        high, low = (e.value for e in self.values)
        return high / low if low > 0 else math.inf


@dataclass(frozen=True, eq=False)
class Comparison(Result, kind="comparison", schema=3):
    """Measures of several networks, pair by pair, with what survives their symmetries."""

    told = ("headline",)

    names: tuple[str, ...]
    values: dict[str, dict[str, Estimate]]
    pairs: tuple[Pair, ...]
    provenance: OfComparison

    def __post_init__(self) -> None:
        whole = all(set(found) == set(self.names) for found in self.values.values())
        paired = all(self.of(measure) for measure in self.values)
        known = all({p.sharper, p.other} <= set(self.names) for p in self.pairs)
        if len(self.names) < 2 or not (whole and paired and known):
            raise SpiritlevelError("a comparison has every measure of two networks or more")

    @property
    def title(self) -> str:
        return f"Comparison of {', '.join(self.names[:-1])} and {self.names[-1]}"

    def __getitem__(self, key: str | tuple[str, str, str]) -> Pair:
        """The pair of a measure, or of (measure, name, name) where there are more than two."""
        a("key", key, (str, tuple), "a measure, or (measure, name, name)")
        name, *two = (key,) if isinstance(key, str) else key or ("",)
        for pair in self.pairs:
            if pair.name == name and (not two or {pair.sharper, pair.other} == set(two)):
                return pair
        if name in self.provenance["refused"]:
            raise SpiritlevelError(f"no {name}: {self.provenance['refused'][name]}")
        known = ", ".join(dict.fromkeys(pair.name for pair in self.pairs)) or "none"
        raise SpiritlevelError(f"no comparison {key!r}; there are: {known}")

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def of(self, measure: str) -> list[Pair]:
        """All pairs of a measure."""
        one_of("measure", measure, self.values)
        return [pair for pair in self.pairs if pair.name == measure]

    @property
    def headline(self) -> str:
        """What is known of the sharpness of the networks, in one sentence."""
        pairs = [pair for pair in self.pairs if pair.is_sharpness]
        answers = Counter(pair.answer for pair in pairs)
        lasting, count = answers[Answer.SURVIVES], len(pairs)
        if not pairs:
            return "No sharpness was compared."
        if len(self.names) > 2:
            verb = "survives" if lasting == 1 else "survive"
            return f"Of {count} comparisons of sharpness, {lasting} {verb} rescaling."
        sharper = Counter(pair.sharper for pair in pairs if pair.answer is Answer.SURVIVES)
        if len(sharper) > 1:
            return "The measures disagree on which network is sharper, also after rescaling."
        if sharper:
            (one,) = sharper
            other = next(name for name in self.names if name != one)
            by = f"by {lasting} of {count} measures" if count > 1 else "by the one measure"
            return f"{one} is sharper than {other} {by}, and that survives rescaling."
        if answers[Answer.COORDINATES]:
            return COORDINATES_ONLY
        if answers[Answer.EQUAL] == count:
            return f"{' and '.join(self.names)} are equally sharp."
        return "Which network is sharper is undecided."

    def grid(self) -> Grid:
        columns = (
            Column("measure", wraps=False),
            *(Column(name, right=True) for name in self.names),
            Column("verdict"),
        )
        rows = [row for name in self.values for row in self._rows(name)]
        above = cells(self.headline, style="bold") if self.pairs else ()
        return Grid(columns, tuple(rows), above, cells(*self.lines()))

    def _rows(self, measure: str) -> Iterator[tuple[Cell, ...]]:
        """The values of all networks, an answer for each two of them, and the least values."""
        pairs, found = self.of(measure), self.values[measure]
        values = [digits(found[n].value) for n in self.names]
        for i, pair in enumerate(pairs):
            shown = [pair.title, *values] if i == 0 else [""] * (len(self.names) + 1)
            yield *cells(*shown), Cell(pair.text, COLOURS[pair.answer])
        least = {n: cell for pair in pairs for n, cell in pair.least_cells().items()}
        if least and pairs[0].matrix:
            label = f"  least, of {SYMBOLS[pairs[0].matrix]}"
            yield cells(label, *(least.get(n, "") for n in self.names), "", style="dim")

    def lines(self) -> list[str]:
        """How to read it, and what was done, in words."""
        p = self.provenance
        turned = [pair for pair in self.pairs if pair.turned and pair.turned.outcome == "reached"]
        lines = []
        if any(pair.least for pair in self.pairs):
            lines.append(
                "least: over all rescalings of a network, which keep its predictions; H is the "
                "Hessian, G the Gauss-Newton matrix."
            )
        if turned:
            names = ", ".join(dict.fromkeys(pair.title for pair in turned))
            lines.append(
                "Plain numbers can be put in either order: with identical predictions the smaller "
                f"one was given the larger {names}."
            )
        cost = f"seed {p['seed']}, {p['seconds']:.0f} s, {versions_line(p)}"
        return [*lines, *interruption(p), *remarks(p), cost]

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "name": pair.name,
                "sharper": pair.sharper,
                "other": pair.other,
                "value_sharper": pair.values[0].value,
                "value_other": pair.values[1].value,
                "ratio": pair.ratio,
                "matrix": pair.matrix or "",
                "verdict": pair.text,
            }
            for pair in self.pairs
        ]
