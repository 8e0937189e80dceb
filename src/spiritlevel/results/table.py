"""The result of `measure`: rows of estimates, and whether the point is a minimum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.estimate import Estimate, Status, format_error, format_value
from spiritlevel.results.grid import Cell, Column, Grid, cells
from spiritlevel.results.provenance import OfNetwork, interruption, remarks, versions_line
from spiritlevel.results.rest import Rest
from spiritlevel.results.result import Result, by_name

COLUMNS = (
    Column("measure"),
    Column("value", right=True),
    Column("error"),
    Column("keeps"),
    Column("products", right=True),
    Column("seconds", right=True),
)


MARKS = {"layer": "L", "unit": "U", "diagonal": "D", "permutation": "P", "output": "O"}
LEGEND = (
    "what leaves a measure as it is: L rescaling whole layers, U single units too, D every "
    "parameter in other units too; P renumbering hidden units; O multiplying all outputs"
)


class OfTable(OfNetwork, total=False):
    """How products were made, and how far they are from finite differences and from exact."""

    product: str
    product_check: float | None
    product_rounding: float | None


@dataclass(frozen=True)
class Row:
    """One measure: its name, its title, its estimate.

    It is `shared` if a row above paid for it, and a `part` of the measure if that is several.
    `invariances` are what leaves it as it is, by its promise.
    """

    name: str
    title: str
    estimate: Estimate
    shared: bool = False
    part: bool = False
    family: str = ""
    invariances: tuple[str, ...] = ()

    @property
    def marks(self) -> str:
        """The invariances by their first letters: L, U, D, P, O."""
        return " ".join(MARKS[name] for name in self.invariances)

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Title, value, error, marks, products, seconds as text."""
        e = self.estimate
        exact = e.stderr is None and e.residual is None and e.bound is None
        if self.shared:
            cost, seconds = "shared", ""
        else:
            cost, seconds = f"{e.matvecs:.3g}" if e.matvecs else "", f"{e.seconds:.2f}"
        error = "" if exact else f"± {format_error(e.error)}"
        if e.status is Status.LOWER_BOUND:
            error = "or more"
        title = f"  {self.title}" if self.part else self.title
        return title, format_value(e.value, e.error), error, self.marks, cost, seconds


@dataclass(frozen=True, eq=False)
class Table(Result, kind="table", schema=2):
    """Measures of one network at one point."""

    told = ("verdict",)

    rows: tuple[Row, ...]
    rest: Rest | None
    provenance: OfTable

    title = "Measures at one point"  # type: ignore[assignment]

    @property
    def verdict(self) -> str:
        """Whether the point is a minimum, in words; empty if nothing was asked of curvature."""
        return "" if self.rest is None else self.rest.text

    def __getitem__(self, name: str) -> Estimate:
        return by_name(self.rows, name).estimate

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def grid(self) -> Grid:
        rows: list[tuple[Cell, ...]] = []
        families = self.families()
        grouped = len(families) > 1
        for family, members in families.items():
            if grouped:
                rows.append((Cell(family, "bold"),))
            for row in members:
                title, *rest = row.cells()
                rows.append(cells("  " * grouped + title, *rest))
        open_ = cells(*self.unfinished(), style="yellow")
        verdict = cells(self.verdict, "", style="bold") if self.verdict else ()
        legend = (
            cells(f"keeps: {LEGEND}", style="dim") if any(row.marks for row in self.rows) else ()
        )
        below = (*open_, *verdict, *legend, *cells(*self.lines(), style="dim"))
        return Grid(COLUMNS, tuple(rows), (), below)

    def unfinished(self) -> list[str]:
        """What did not get as far as was asked, and what to do: once for all rows alike."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            e = row.estimate
            if not e.converged:
                found.setdefault(f"{e.status.value}: {e.remedy}", []).append(row.title)
        return [f"{what} ({', '.join(titles)})" for what, titles in found.items()]

    def families(self) -> dict[str, list[Row]]:
        """The rows by family, in the order in which families come."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.family, []).append(row)
        return found

    def lines(self) -> list[str]:
        """What was done and how well it is known, in words."""
        p = self.provenance
        lines = [
            f"{p['parameters']:,} parameters, {p['examples']:,} examples, {p['mode']} mode, "
            f"{p['dtype']}, {p['device']}",
            f"seed {p['seed']}, {p['products']:.4g} products in {p['seconds']:.1f} s",
        ]
        if facts := self.product():
            lines.append(f"product: {'; '.join(' '.join(fact).strip() for fact in facts)}")
        notes = [f"note: {note}" for note in remarks(p)]
        return [*lines, *notes, *interruption(p), versions_line(p)]

    def product(self) -> list[tuple[str, str]]:
        """How the products were made, and how well; nothing where none were."""
        p = self.provenance
        checks = {
            "against finite differences": p.get("product_check"),
            "rounding": p.get("product_rounding"),
        }
        known = [(what, f"{size:.0e}") for what, size in checks.items() if size is not None]
        return [("", p["product"]), *known] if "product" in p else []

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "family": row.family,
                "value": row.estimate.value,
                "stderr": row.estimate.stderr,
                "residual": row.estimate.residual,
                "status": row.estimate.status.value,
                "matvecs": row.estimate.matvecs,
                "seconds": row.estimate.seconds,
                "shared": row.shared,
            }
            for row in self.rows
        ]
