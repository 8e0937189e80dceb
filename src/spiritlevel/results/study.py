"""The result of a study: networks, what was measured of them, and how well it ranks them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spiritlevel.base.errors import SpiritlevelError, writable
from spiritlevel.results.grid import Cell, Column, Grid, cells, filled
from spiritlevel.results.landscape import Drawable
from spiritlevel.results.provenance import Provenance, interruption, remarks, versions_line
from spiritlevel.results.result import Result, by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.05  # what is called beyond chance has a smaller adjusted p
COLUMNS = (
    Column("measure"),
    Column("tau", right=True, wraps=False),
    Column("95 %", wraps=False),
    Column("p", right=True, wraps=False),
    Column("Psi", right=True, wraps=False),
    Column("K", right=True, wraps=False),
    Column("sign", right=True, wraps=False),
    Column("given", right=True, wraps=False),
    Column("least", right=True, wraps=False),
)
LEGEND = {
    "95 %": "interval of tau, from resampled configurations with all their seeds",
    "p": "of configurations that are permuted, adjusted for the number of measures (Holm)",
    "Psi": "mean tau along one axis while the others stand still (Jiang et al., 2020)",
    "K": "least information about the order, given two axes or fewer (Jiang et al., 2020)",
    "sign": "largest sign error of pairs of configurations that differ in one axis "
    "(Dziugaite et al., 2020)",
    "given": "partial tau given {controls}",
    "least": "tau of the same with the orbit divided out, minus this tau",
    "*": "no rescaling of units moves it",
}


class OfStudy(Provenance):
    """How many networks were planned, and how many of them failed: None where nobody says."""

    planned: int | None
    failed: int | None


@dataclass(frozen=True)
class Network:
    """One trained network: what it was made of, what came of it, and what was measured."""

    key: str
    config: dict[str, Any]  # axis -> value: a number, a text or a boolean
    seed: int
    numbers: dict[str, float]  # "gap", "test_error", "train_loss", ...
    values: dict[str, float]  # label of a measure -> value, NaN where it was refused
    errors: dict[str, float]  # label -> half-width of its error

    def __post_init__(self) -> None:
        """Numbers of numpy and torch as Python's own, which every file and page takes."""
        for part in ("config", "numbers", "values", "errors"):
            own = {name: _own(value) for name, value in getattr(self, part).items()}
            object.__setattr__(self, part, own)
        object.__setattr__(self, "seed", _own(self.seed))


@dataclass(frozen=True)
class Ranked:
    """A number with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether zero lies outside of the interval."""
        return self.low > 0 or self.high < 0

    @property
    def text(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Signs:
    """The sign error over environments: its mean, its 90th percentile and the largest."""

    mean: float
    p90: float
    largest: float
    environments: int


@dataclass(frozen=True)
class Row:
    """How one measure ranks the outcome.

    It is `invariant` if no rescaling of units moves it: by its promise, or because it was taken at
    the representative of the orbit. `bottom` is the row of the same with the orbit divided out, and
    `gain` is the tau of that one minus the tau of this, on the same resamples.
    """

    name: str
    title: str
    family: str
    invariant: bool
    n: int  # networks that have it
    tau: Ranked  # tau-b
    tau_a: float
    p: float  # of the permutation test, adjusted over all rows
    psi: float | None  # the mean of `by_axis`
    by_axis: dict[str, float]
    information: float | None
    signs: Signs | None
    partial: Ranked | None  # partial tau given the controls
    bottom: str = ""
    gain: Ranked | None = None


@dataclass(frozen=True, eq=False)
class Findings(Drawable, Result, kind="study", schema=1):
    """A study: its networks, and how well each measure ranks them by the outcome."""

    told = ("headline",)

    name: str
    outcome: str  # which of a network's numbers is ranked
    axes: dict[str, list[Any]]  # those that vary, with their values
    controls: tuple[str, ...]  # what `partial` is given
    rows: tuple[Row, ...]  # the largest |tau| first
    networks: tuple[Network, ...]
    provenance: OfStudy

    @property
    def title(self) -> str:
        return f"What ranks the {_words(self.outcome)}: {self.name}"

    def __getitem__(self, name: str) -> Row:
        return by_name(self.rows, name, "measure")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    # In words ---------------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """What ranks best, and what dividing out the orbit does to the others."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        """As much as the intervals allow."""
        return tuple(filter(None, [self._best(), self._chance(), self._divided()]))

    def _known(self) -> list[Row]:
        """Rows that have a tau, the largest first."""
        known = [row for row in self.rows if math.isfinite(row.tau.value)]
        return sorted(known, key=lambda row: -abs(row.tau.value))

    def _best(self) -> str:
        known, outcome = self._known(), _words(self.outcome)
        if not known:
            return f"No measure could be ranked against the {outcome}."
        best, *others = known
        found = f"{best.tau.text}, of {best.title}"
        largest = all(row.tau.value <= best.tau.value for row in others)
        which = "largest tau" if largest else "tau farthest from zero"
        if not best.tau.clear:
            return f"No measure is shown to rank the {outcome}: the {which} is {found}."
        least = min(abs(best.tau.low), abs(best.tau.high))
        close = sum(max(abs(row.tau.low), abs(row.tau.high)) >= least for row in others)
        rest = f"; the intervals of {close} of {len(others)} others reach as far" if close else ""
        return f"The {which} with the {outcome} is {found}{rest}."

    def _chance(self) -> str:
        known = self._known()
        beyond = sum(row.p < LEVEL for row in known)
        said = f"{beyond} of {len(known)} measures rank it beyond chance (Holm, {LEVEL:.0%})."
        return said if known else ""

    def _divided(self) -> str:
        moved = [row for row in self._known() if not row.invariant]
        gains = [(row.tau.value, row.gain, row.title) for row in moved if row.gain is not None]
        if not gains:
            return ""
        up = sum(gain.low > 0 for _, gain, _ in gains)
        down = sum(gain.high < 0 for _, gain, _ in gains)
        below = sum(gain.clear and max(tau, tau + gain.value) < 0 for tau, gain, _ in gains)
        _, most, title = max(gains, key=lambda one: abs(one[1].value))
        share = "all" if len(gains) == len(moved) else f"{len(gains)} of the"
        return (
            f"Dividing out the orbit, in {share} {len(moved)} measures that rescaling moves, "
            f"raises the tau of {up}, lowers that of {down} and leaves "
            f"{len(gains) - up - down} open; the largest change is {most.text}, of {title}."
        ) + (
            f" {below} of those that change are below zero, where a higher tau ranks less."
            if below
            else ""
        )

    # How it is shown --------------------------------------------------------------------------

    def grid(self) -> Grid:
        columns, rows = filled(COLUMNS, tuple(cells(*_shown(row)) for row in self.rows))
        used = {column.title for column in columns}
        return Grid(
            columns,
            rows,
            (),
            self.below(used | {"*"} if any(row.invariant for row in self.rows) else used),
        )

    def below(self, columns: set[str]) -> tuple[Cell, ...]:
        given = ", ".join(map(_words, self.controls))
        legend = [f"{k}: {v.format(controls=given)}" for k, v in LEGEND.items() if k in columns]
        told = self.provenance
        lines = [*interruption(told), *legend, *remarks(told), self.made(), versions_line(told)]
        return (*cells(*self.sentences), *cells(*lines, style="dim"))

    def made(self) -> str:
        """How many networks, of what."""
        told = self.provenance
        failed = f", {told['failed']} failed" if told["failed"] else ""
        axes = "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in self.axes.items())
        planned = "" if told["planned"] is None else f" of {told['planned']:,}"
        return f"{len(self.networks):,}{planned} networks{failed}" + (f" ({axes})" if axes else "")

    def scatter(
        self,
        measure: str,
        path: str | os.PathLike[str] | None = None,
        *,
        by: str | None = None,
    ) -> Figure:
        """A measure against the outcome, beside it with the orbit divided out; colours by an axis.

        Also written to `path` (.svg, .png, .pdf); `plot` draws the ranking of all measures.
        """
        from spiritlevel.results.pictures import figured
        from spiritlevel.results.pictures.studies import draw_scatter

        return figured(self, lambda: draw_scatter(self, measure, by), path)

    def records(self) -> list[dict[str, Any]]:
        """One line a network, with the columns that `networks_from_csv` reads."""
        parts = ("config", "numbers", "values", "errors")
        names = {part: _union(self.networks, part) for part in parts}
        return [
            {"key": network.key, "seed": network.seed}
            | {
                f"{part}.{name}": _written(getattr(network, part).get(name))
                for part in parts
                for name in names[part]
            }
            for network in self.networks
        ]


def networks_from_csv(text: str) -> tuple[Network, ...]:
    """The networks of `Findings.to_csv`, to be analysed anew."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    if not {"key", "seed"} <= set(rows.fieldnames or ()):
        raise SpiritlevelError("these are no networks: use the text that Findings.to_csv wrote")
    return tuple(_network(row) for row in rows)


def _network(row: dict[str, str]) -> Network:
    parts: dict[str, dict[str, Any]] = {p: {} for p in ("config", "numbers", "values", "errors")}
    for column, text in row.items():
        part, _, name = column.partition(".")
        if part in parts and text:
            parts[part][name] = _value(text) if part == "config" else float(text)
    return Network(row["key"], seed=int(row["seed"]), **parts)


def _own(value: Any) -> Any:
    single = hasattr(value, "item") and not getattr(value, "ndim", 0)
    return value.item() if single else value


def _written(value: Any) -> Any:
    """As CSV holds it: a text that reads like a number is quoted."""
    if isinstance(value, str):
        bare = value and _value(value) == value and writable(value) == value
        return value if bare else json.dumps(value)
    endless = isinstance(value, float) and math.isinf(value)
    return json.dumps(value) if endless or isinstance(value, (bool, list, tuple)) else value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _union(networks: tuple[Network, ...], part: str) -> list[str]:
    return list(dict.fromkeys(name for network in networks for name in getattr(network, part)))


def _shown(row: Row) -> tuple[str, ...]:
    title = row.title + (" *" if row.invariant else "")
    return (
        title,
        f"{row.tau.value:.2f}",
        f"{row.tau.low:.2f} to {row.tau.high:.2f}",
        f"{row.p:.2g}",
        _number(row.psi),
        _number(row.information),
        _number(row.signs.largest if row.signs else None),
        _number(row.partial.value if row.partial else None),
        f"{row.gain.value:+.2f}" if row.gain else "",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
