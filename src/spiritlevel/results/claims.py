"""The result of claims: what was built, what was found, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from spiritlevel.results.grid import Cell, Column, Grid, cells
from spiritlevel.results.provenance import Provenance, interruption
from spiritlevel.results.result import Result, by_name

NAMES = {"hessian": "Hessian", "lipschitz": "Lipschitz"}  # of people: with a capital
About = Literal["network", "example"]
Verdict = Literal["holds", "fails", "own example", "not checked"]
# In the table: what is said, and its style
SIGNS: dict[Verdict, tuple[str, str]] = {
    "holds": ("yes", "green"),
    "fails": ("NO", "bold red"),
    "own example": ("own", "cyan"),
    "not checked": ("-", "dim"),
}
# two lines for each claim: five columns would not fit into 80 characters
COLUMNS = (
    Column("claim, and its source"),
    Column("what was built, and the number"),
    Column("holds", wraps=False),
)


@dataclass(frozen=True)
class Finding:
    """What a check found: the headline, every number that was asserted, and whether it holds."""

    shown: str
    numbers: dict[str, float]
    holds: bool


@dataclass(frozen=True)
class Checked:
    """One claim after its check; `skipped` says why nothing was found."""

    told = ("title", "verdict", "holds")

    name: str
    statement: str
    source: str
    built: str
    about: About
    finding: Finding | None
    seconds: float
    skipped: str = ""
    caption: str = ""

    @property
    def title(self) -> str:
        return " ".join(NAMES.get(word, word) for word in self.name.split("_"))

    @property
    def shown(self) -> str:
        return self.finding.shown if self.finding else self.skipped

    @property
    def verdict(self) -> Verdict:
        if self.finding is None:
            return "not checked"
        if not self.finding.holds:
            return "fails"
        return "holds" if self.about == "network" else "own example"

    @property
    def holds(self) -> bool | None:
        """What it says of the network: nothing where it was shown on an example of its own."""
        return {"holds": True, "fails": False}.get(self.verdict)


@dataclass(frozen=True, eq=False)
class Claims(Result, kind="claims", schema=3):
    """The claims that were run, as a table; `figures` are SVG texts by name."""

    told = ("holds", "headline")

    network: str
    rows: tuple[Checked, ...]
    figures: dict[str, str]
    provenance: Provenance

    @property
    def title(self) -> str:
        return f"Theorems on {self.network.partition(',')[0]}"

    def __getitem__(self, name: str) -> Checked:
        return by_name(self.rows, name, "claim")

    def __iter__(self) -> Iterator[Checked]:
        return iter(self.rows)

    @property
    def holds(self) -> bool:
        """Whether everything that could be checked holds, on the network or on its own example."""
        return all(row.verdict != "fails" for row in self.rows)

    @property
    def headline(self) -> str:
        """How many hold, and of what, in one sentence."""
        verdicts = [row.verdict for row in self.rows]
        right, wrong, own = (verdicts.count(v) for v in ("holds", "fails", "own example"))
        elsewhere = ""
        where = "an example of its own" if own == 1 else "examples of their own"
        if own:
            were = "One more was" if own == 1 else f"{own} more were"
            elsewhere = f" {were} shown on {where}."
        if wrong:
            return f"{right} of {right + wrong} claims hold.{elsewhere}"
        if right:
            every = "The claim holds" if right == 1 else f"All {right} claims hold"
            return f"{every} on this network.{elsewhere}"
        if own:
            return f"Shown on {where}."
        return "No claim could be checked on this network."

    def grid(self) -> Grid:
        rows = []
        for row in self.rows:
            sign, style = SIGNS[row.verdict]
            rows.append((*cells(row.name, row.built), Cell(sign, style)))
            rows.append((Cell(f"  {row.source}", "dim"), *cells(row.shown, "")))
        return Grid(COLUMNS, tuple(rows), (), cells(*self.lines()))

    def lines(self) -> list[str]:
        """How many hold, on which network, and how many on examples of their own."""
        found = interruption(self.provenance)
        for about, where in (("network", self.network), ("example", "examples of their own")):
            checked = [row for row in self.rows if row.finding and row.about == about]
            right = sum(row.verdict != "fails" for row in checked)
            if checked or about == "network":
                found.append(f"{right} of {len(checked)} hold on {where}")
        return [*found, *self.provenance["notes"], f"{self.provenance['seconds']:.0f} s"]

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "source": row.source,
                "about": row.about,
                "verdict": row.verdict,
                "shown": row.shown,
                "seconds": row.seconds,
            }
            for row in self.rows
        ]
