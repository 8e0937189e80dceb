"""The result of an audit: rows with verdicts, in the terminal, as JSON and as CSV."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from spiritlevel.console import RenderableType, Stack, Table, Text, plain
from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Estimate, Status, format_error, format_value
from spiritlevel.measures.base import Measure
from spiritlevel.objective import Objective
from spiritlevel.plain import csv_text, json_text, written
from spiritlevel.symmetry import Certificate, Group

SCHEMA = 2
LAYERWISE = ("here", "layers", "sharpened")  # points that whole layers lead to
VAGUE = 0.5  # relative: an error that is no error bar but an excuse
NEARLY = 0.05  # relative: how far the eps of norms may move what is invariant without them


@dataclass(frozen=True)
class Infimum:
    """The least value over the orbit: proved, with a lower bound, or the least one found."""

    value: float
    lower_bound: float | None
    proved: bool


@dataclass(frozen=True)
class Row:
    """One measure at several points that are one network, and what follows."""

    name: str
    title: str
    family: str
    values: dict[str, Estimate]
    infimum: Infimum
    promised: bool
    moved: bool
    text: str

    @classmethod
    def judged(
        cls,
        name: str,
        measure: Measure,
        values: dict[str, Estimate],
        alike: float,
        infimum: Infimum,
        equality: str = "identical predictions",
    ) -> Row:
        """A row whose verdict follows from the values, their errors and what was promised."""
        wild = [p for p, e in values.items() if not math.isfinite(e.value)]
        moved = bool(wild) or differ(values.values(), alike)
        promised = measure.promises("unit")
        if wild:
            text = f"overflows at the point {wild[0]}"
        elif promised:
            text = _promise(values, moved, approximate=not equality.startswith("identical"))
        elif not moved:
            text = "did not move here"
        elif not measure.promises("layer"):
            text = f"moved x {times(spread(values.values()))} with {equality}"
        elif differ([values[p] for p in LAYERWISE if p in values], alike):
            text = "declared invariant by layers but moved: a bug"
        else:
            text = f"moved x {times(spread(values.values()))} by units, not by layers"
        title = measure.title.strip()
        return cls(name, title, measure.family, values, infimum, promised, moved, text)

    @property
    def here(self) -> Estimate:
        return self.values["here"]

    @property
    def factor(self) -> float:
        """The largest over the smallest value, in magnitude."""
        return spread(self.values.values())

    @property
    def largest(self) -> float:
        values = [e.value for e in self.values.values()]
        return max([v for v in values if not math.isnan(v)], default=math.nan)

    @property
    def bug(self) -> bool:
        return self.text.endswith("a bug")

    def cells(self) -> tuple[str, str, str, str, str]:
        """Title, value here, least on the orbit, largest reached and verdict, as text."""
        e, least = self.here, self.infimum
        value = format_value(e.value, max(e.error, 0.01 * abs(e.value)))
        if e.status is Status.LOWER_BOUND:
            value = f"≥ {value}"
        elif e.error > 1e-3 * abs(e.value):
            value += f" ± {format_error(e.error)}"
        if not self.moved:
            return self.title, value, "", "", self.text
        sign = "" if least.proved else "≤ "
        return self.title, value, sign + digits(least.value), digits(self.largest), self.short

    @property
    def short(self) -> str:
        """The verdict as far as a narrow column holds it; the summary says the rest."""
        if self.bug or not self.moved:
            return self.text
        if self.text.endswith("not by layers"):
            return f"x {times(self.factor)} by units"
        return self.text.partition(" with ")[0]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "family": self.family,
            "here": self.here.to_dict(),
            "values": {p: e.to_dict() for p, e in self.values.items()},
            "infimum": vars(self.infimum).copy(),
            "largest": self.largest,
            "factor": self.factor,
            "promised": self.promised,
            "moved": self.moved,
            "verdict": self.text,
        }


@dataclass(frozen=True)
class Audit:
    """Measures against symmetries: what moved while the predictions did not.

    `elements` are the log-scales that lead from the objective to each of the other points.
    """

    rows: tuple[Row, ...]
    objective: Objective
    group: Group
    elements: dict[str, Tensor]
    certificates: dict[str, Certificate]
    provenance: dict[str, Any]

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise SpiritlevelError(
            f"no row {name!r}; there are: {', '.join(row.name for row in self.rows)}"
        )

    @property
    def worst(self) -> float:
        """The largest change of a prediction at any of the points, relative."""
        return max((c.relative for c in self.certificates.values()), default=0.0)

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if not self.group.dim:
            return "No rescaling keeps the predictions of this network: there is nothing to move."
        moved = [row for row in self.rows if row.moved and not row.promised]
        if any(row.bug for row in self.rows):
            return "A measure that promises to be invariant moved: a bug."
        if not moved:
            return "Nothing that was measured moves along the rescalings of this network."
        far = max(moved, key=lambda row: row.factor)
        text = f"The {far.title} moved by a factor of {times(far.factor)} while no prediction did"
        still = [row for row in self.rows if row.name == "orbit_spectral"]
        if still:
            text += f"; the sharpness that is left is {digits(still[0].here.value)}"
        return text + "."

    def __str__(self) -> str:
        return plain(self.__rich__())

    def __rich__(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("measure", no_wrap=True)
        for column in ("here", "least", "largest"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("verdict")
        for row in self.rows:
            style = "bold red" if row.bug else "green" if not row.moved else "red"
            *cells, text = row.cells()
            table.add_row(*cells, Text(text, style=style))
        return Stack(
            table, Text(), Text(self.headline, style="bold"), *(Text(t) for t in self.lines())
        )

    def lines(self) -> list[str]:
        """What was done and how well it is known, in words."""
        p = self.provenance
        cost = f"seed {p['seed']}, {p['products']:.0f} products, {p['seconds']:.0f} s"
        versions = ", ".join(f"{name} {version}" for name, version in p["versions"].items())
        last = [*p["notes"], f"{cost}, {versions}"]
        if p["interrupted"]:
            last.insert(0, f"interrupted: {p['interrupted']}")
        if not self.group.dim:
            blocks = ", ".join(dict.fromkeys(str(b) for b in self.group.blocks))
            blocks = blocks or "parameters that are not chosen"
            return [f"(Rescalings are blocked by {blocks}.)", *last]
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.group.kinds.items())
        sharp = ", one sharpened to an eigenvalue of 1e6" if "sharpened" in self.elements else ""
        size = "identical bit for bit" if self.worst == 0 else f"equal to {self.worst:.0e}"
        return [
            f"Predictions are {size} on {p['examples']} examples and on random inputs, at "
            f"{len(self.certificates)} points along {self.group.dim} rescalings ({kinds}).",
            "least: over all such networks, proved; ≤ the least of these points. largest: of these "
            f"points{sharp}.",
            *last,
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data; see the README for the schema."""
        blocked = [{"by": str(b), "parameters": list(b.parameters)} for b in self.group.blocks]
        return {
            "schema": SCHEMA,
            "headline": self.headline,
            "rows": [row.to_dict() for row in self.rows],
            "group": {"dim": self.group.dim, "kinds": self.group.kinds, "blocked": blocked},
            "certificates": {
                p: {"verdict": c.verdict, "relative": c.relative, "absolute": c.absolute}
                for p, c in self.certificates.items()
            },
            "provenance": dict(self.provenance),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        return written(json_text(self.to_dict()), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line per measure."""
        rows = []
        for r in self.rows:
            e, i = r.here, r.infimum
            numbers = [e.value, e.error, e.status.value, i.value, i.proved, r.largest, r.factor]
            rows.append([r.name, r.family, *numbers, r.moved, r.text])
        head = "name family here error status least proved largest factor moved verdict"
        return written(csv_text(head, rows), path)


def _promise(values: dict[str, Estimate], moved: bool, approximate: bool) -> str:
    """What became of a promise to be invariant."""
    if len(values) == 1:
        return "invariant by promise"
    factor = spread(values.values())
    if moved and approximate and factor <= 1 + NEARLY:
        return f"approximately invariant (eps of norms, {factor - 1:.0e})"
    if moved:
        return "declared invariant but moved: a bug"
    if any(e.error > VAGUE * abs(e.value) for e in values.values()):
        return "undecided: too uncertain"
    return "invariant"


def differ(values: Any, alike: float) -> bool:
    """Whether estimates differ by more than their errors and the rounding."""
    found = list(values)
    low = min(found, key=lambda e: e.value)
    high = max(found, key=lambda e: e.value)
    noise = 3 * (low.error + high.error) + alike * max(abs(low.value), abs(high.value))
    return high.value - low.value > noise


def spread(values: Any) -> float:
    """The largest over the smallest in magnitude; infinite across zero."""
    found = [e.value for e in values]
    sizes = [abs(v) for v in found]
    if not all(map(math.isfinite, found)) or min(found) < 0 < max(found):
        return math.inf
    if min(sizes) == 0:
        return math.inf if max(sizes) else 1.0
    return max(sizes) / min(sizes)


def times(factor: float) -> str:
    """A factor, as roughly as it is spoken of."""
    if factor < 100:
        return f"{factor:.2g}"
    return f"{factor:.0f}" if factor < 1e5 else f"{factor:.1e}"


def digits(value: float) -> str:
    """Three digits: enough to compare."""
    return format_value(value, 0.1 * abs(value))
