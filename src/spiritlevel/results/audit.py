"""The result of an audit: rows with verdicts, in the terminal, as JSON and as CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status, format_error, format_value
from spiritlevel.base.matrices import CALLED, Kind
from spiritlevel.base.spoken import at_least, at_most, digits, share, share_at_least, times
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.data import LIVE
from spiritlevel.results.grid import Cell, Column, Grid, cells
from spiritlevel.results.provenance import OfNetwork, interruption, remarks, versions_line
from spiritlevel.results.rest import Rest
from spiritlevel.results.result import Result, by_name
from spiritlevel.results.symmetry import Freedom, Left
from spiritlevel.results.verdicts import ERRORS, STAYED, Infimum, Outcome, spread
from spiritlevel.results.way import Way

SURE = 2  # errors: one in forty is off by more to that side
SLIGHT = 0.01  # a share that is not worth speaking of
PINNED = "Each rescaling of the parameters that are chosen would change an output."
COLUMNS = (
    Column("measure", wraps=False),
    *(Column(name, right=True, wraps=False) for name in ("here", "least", "largest")),
    Column("verdict"),
)


class OfAudit(OfNetwork):
    """How far the random point is, in log-scales, and how long it took to find the points."""

    strength: float
    seconds_for_points: float


@dataclass(frozen=True)
class Row:
    """One measure at several points that are one network, and what follows.

    `apart` is the largest relative change of a prediction at these points where an eps changes
    them, else zero.
    """

    told = ("largest", "largest_at", "factor", "moved", "text")

    name: str
    title: str
    family: str
    values: dict[str, Estimate]
    infimum: Infimum
    promised: bool
    outcome: Outcome
    apart: float = 0.0

    def __post_init__(self) -> None:
        if "here" not in self.values:
            raise SpiritlevelError("a row of an audit has a value at the point here")

    @property
    def here(self) -> Estimate:
        return self.values["here"]

    @property
    def moved(self) -> bool:
        return self.outcome not in STAYED

    @property
    def factor(self) -> float:
        """The largest over the smallest value, in magnitude."""
        return spread(self.values.values())

    @property
    def least(self) -> float:
        """The least value; if it is not proved with its error, and never above the value here."""
        least, point = self.infimum, self.infimum.point
        if least.proved or point not in self.values:
            return least.value
        return min(self.values[point].value + SURE * self.values[point].error, self.here.value)

    @property
    def largest_at(self) -> str:
        """The point of the largest value."""
        return max(self.values, key=lambda p: _or_least(self.values[p].value))

    @property
    def largest(self) -> float:
        return self.values[self.largest_at].value

    @property
    def bug(self) -> bool:
        return self.outcome in ERRORS

    @property
    def text(self) -> str:
        """The verdict in words."""
        return self.sentence + self._equality

    @property
    def sentence(self) -> str:
        """The verdict without how equal the predictions are."""
        return _sentence(self)

    @property
    def short(self) -> str:
        """The verdict as far as a narrow column holds it; the summary says the rest."""
        if self.outcome is Outcome.UNITS:
            return f"x {times(self.factor)} by units"
        return self.sentence

    @property
    def _equality(self) -> str:
        if self.outcome not in (Outcome.MOVED, Outcome.TURNED):
            return ""
        how = f"predictions equal to {self.apart:.0e}" if self.apart else "identical predictions"
        return f" with {how}"

    def cells(self) -> tuple[str, str, str, str, str]:
        """Title, value here, least on the orbit, largest reached and verdict, as text."""
        e, least = self.here, self.infimum
        value = format_value(e.value, max(e.error, 0.01 * abs(e.value)))
        if e.status is Status.LOWER_BOUND:
            value = f"≥ {at_least(e.value)}"
        elif e.error > 1e-3 * abs(e.value):
            value += f" ± {format_error(e.error)}"
        if not self.moved:
            return self.title, value, "", "", self.text
        known = "" if least.unsearched else digits(least.value)
        if known and not least.proved:  # the least of some searched maxima bounds nothing
            searched = e.status is Status.LOWER_BOUND
            known = f"~ {known}" if searched else f"≤ {at_most(self.least, 3)}"
        return self.title, value, known, digits(self.largest), self.short


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _sentence(row: Row) -> str:
    """What became of a measure, in words."""
    finite = [e.value for e in row.values.values() if math.isfinite(e.value)] or [math.nan]
    way = f"from {digits(min(finite))} to {digits(max(finite))}"
    wild = [p for p, e in row.values.items() if not math.isfinite(e.value)]
    moved = f"moved x {times(row.factor)}" if math.isfinite(row.factor) else f"moved {way}"
    # how far that is was our choice
    purpose = " on purpose" if row.largest_at == "sharpened" else ""
    return {
        Outcome.INVARIANT: "invariant",
        Outcome.PROMISED: "invariant by promise",
        Outcome.NEARLY: f"approximately invariant (eps of norms, {row.factor - 1:.0e})",
        Outcome.VAGUE: "undecided: too uncertain",
        Outcome.STILL: "did not move here",
        Outcome.MOVED: moved + purpose,
        Outcome.UNITS: f"{moved} by units, not by layers",
        Outcome.TURNED: f"changed sign, {way}",
        Outcome.OVERFLOW: f"overflows at the point {', '.join(wild[:1])}",
        Outcome.BROKEN: "declared invariant but moved: a bug",
        Outcome.LAYERS_BROKEN: "declared invariant by layers but moved: a bug",
        Outcome.REFUTED: f"below its proved bound at the point {row.infimum.refuted}: a bug",
    }[row.outcome]


@dataclass(frozen=True)
class Head:
    """What a reader can use: one measure as trained, and with the rescalings taken away.

    `part` of the value was coordinates: if nothing is proved, at least that, with the error here.
    """

    told = ("subject", "left")

    name: str
    title: str
    matrix: Kind
    here: float
    least: float
    proved: bool
    dim: int
    part: float
    unsearched: str = ""

    @property
    def most(self) -> str:
        """The least value in three digits; if nothing is proved, it is no larger than that."""
        return digits(self.least) if self.proved else at_most(self.least, 3)

    @property
    def subject(self) -> str:
        """With the name of its matrix."""
        return f"Sharpness ({self.title} of the {CALLED[self.matrix]})"

    @property
    def left(self) -> str:
        """What is left, in words."""
        rescalings = f"{self.dim:,} rescalings are" if self.dim > 1 else "one rescaling is"
        if self.unsearched:
            return f"and no least value was searched for: {self.unsearched}"
        if self.part < SLIGHT:
            known = "is the least" if self.proved else "was the least that was found"
            return f"and that {known} when {rescalings} taken away"
        least, part = f"at most {self.most}", f"at least {share_at_least(self.part)}"
        if self.proved:
            least, part = self.most, share(self.part)
        return f"{least} when {rescalings} taken away: {part} of it was coordinates"

    def __str__(self) -> str:
        return f"{self.subject}: {digits(self.here)} as trained, {self.left}."


@dataclass(frozen=True, eq=False)
class Audit(Result, kind="audit", schema=4):
    """Measures against symmetries: what moved while the predictions did not.

    `way` is what a report draws. `points` is what the numbers were measured at: the objective, its
    group and the elements that lead to the other points; None where the audit was read from a file.
    """

    told = ("headline", "head")

    network: str
    rows: tuple[Row, ...]
    group: Freedom
    certificates: dict[str, Certificate]
    rest: Rest | None
    way: Way | None
    provenance: OfAudit
    left: tuple[Left, ...] = ()  # freedoms that are no rescalings
    points: Any = field(default=None, repr=False, metadata=LIVE)

    @property
    def title(self) -> str:
        return f"Audit of {self.network}"

    def __getitem__(self, name: str) -> Row:
        return by_name(self.rows, name)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def worst(self) -> float:
        """The largest change of a prediction at any of the points, relative."""
        return max((c.relative for c in self.certificates.values()), default=0.0)

    @property
    def inputs(self) -> str:
        """What predictions were compared on beside the data."""
        return next((c.inputs for c in self.certificates.values()), "")

    @property
    def head(self) -> Head | None:
        """The first measure of curvature that moved, as trained and as it may be."""
        for row in self.rows:
            here, least = row.here.value, row.least
            known = math.isfinite(here) and math.isfinite(least) and 0 < least <= here
            if row.outcome is Outcome.MOVED and row.infimum.matrix and known:
                proved = row.infimum.proved
                low = here if proved else here - SURE * (row.here.stderr or 0.0)
                part = 1 - least / low if low > least else 0.0
                found = (row.name, row.title, row.infimum.matrix, here, least, proved)
                return Head(*found, self.group.dim, part, row.infimum.unsearched)
        return None

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        moved = [row for row in self.rows if row.moved and not row.promised]
        if any(row.outcome is Outcome.REFUTED for row in self.rows):
            return "A value lies below a bound that is proved: an error of spiritlevel's, a bug."
        if any(row.bug for row in self.rows):
            return "A measure that promises to be invariant moved: a bug."
        if not self.group.dim:
            return "No rescaling keeps the predictions of this network: there is nothing to move."
        if not moved and self.provenance["interrupted"]:
            return "The audit was interrupted: nothing follows for what was not measured."
        if not moved:
            return "Nothing that was measured moves along the rescalings of this network."
        if self.head is not None:
            return str(self.head)
        row = moved[0]
        return f"The {row.title} is {digits(row.here.value)} as trained and {row.text}."

    def grid(self) -> Grid:
        rows = []
        for row in self.rows:
            style = "bold red" if row.bug else "green" if not row.moved else "red"
            *numbers, text = row.cells()
            rows.append((*cells(*numbers), Cell(text, style)))
        above = ()
        if self.rest is not None:
            above = cells(self.rest.text, style="" if self.rest.calm else "bold yellow")
        below = (Cell(self.headline, "bold"), *cells(*self.lines()))
        return Grid(COLUMNS, tuple(rows), above, below)

    def lines(self) -> list[str]:
        """What was done and how well it is known, in words."""
        p = self.provenance
        cost = f"seed {p['seed']}, {p['products']:.0f} products, {p['seconds']:.0f} s"
        freedoms = [f"Left as they are: {'; '.join(one.text for one in self.left)}."]
        last = [*interruption(p), *remarks(p), f"{cost}, {versions_line(p)}"]
        last = [*(freedoms if self.left else ()), *last]
        if not self.group.dim:
            blocks = ", ".join(dict.fromkeys(str(b) for b in self.group.blocked))
            why = f"Rescalings are blocked by {blocks}." if blocks else PINNED
            return [f"({why})", *last]
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.group.kinds.items())
        sharp = ""
        if "sharpened" in self.certificates:
            sharp = ", one of them sharpened on purpose to an eigenvalue of 1e6"
        size = "identical bit for bit" if self.worst == 0 else f"equal to {self.worst:.0e}"
        legend = [f"largest: of these points{sharp}."] if any(row.moved for row in self) else []
        if any(row.moved and not row.infimum.unsearched for row in self):
            proved = "least: over all rescalings, proved; ≤ the least that was measured at these"
            legend = [f"{proved} points. {legend[0]}"]
        return [
            f"Predictions are {size} on {p['examples']} examples and on {self.inputs}, at "
            f"{len(self.certificates)} points along {self.group.dim} rescalings ({kinds}).",
            *legend,
            *last,
        ]

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "family": row.family,
                "here": row.here.value,
                "error": row.here.error,
                "status": row.here.status.value,
                "least": row.infimum.value,
                "proved": row.infimum.proved,
                "matrix": row.infimum.matrix or "",
                "largest": row.largest,
                "factor": row.factor,
                "moved": row.moved,
                "verdict": row.text,
            }
            for row in self.rows
        ]
