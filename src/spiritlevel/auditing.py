"""Which numbers mean something for this network, and which only for its coordinates."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spiritlevel.console import RenderableType, Stack, Table, Text, plain
from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Estimate, format_value
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import MEASURES, checked
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit import balanced
from spiritlevel.progress import bar
from spiritlevel.scope import set_apart
from spiritlevel.sharpening import sharpen
from spiritlevel.symmetry import Certificate, Group, symmetries, verify
from spiritlevel.version import __version__

DEFAULT = (
    "loss",
    "hessian_spectral",
    "hessian_trace",
    "hessian_frobenius",
    "fisher_rao",
    "adaptive_spectral",
    "orbit_trace",
    "orbit_spectral",
)
SCHEMA = 1
SHARP = 1e6  # the least largest eigenvalue of the point that is sharpened
# Relative, beside the errors: what the rounding of parameters and products may do to a value
ALIKE = {torch.float64: 1e-6, torch.float32: 1e-3}


@dataclass(frozen=True)
class Verdict:
    """One measure at several points that are one network, and what follows."""

    name: str
    title: str
    values: dict[str, Estimate]
    factor: float  # largest over smallest value
    promised: bool
    moved: bool

    @property
    def here(self) -> Estimate:
        return next(iter(self.values.values()))

    @property
    def text(self) -> str:
        if self.promised:
            return "declared invariant but moved: a bug" if self.moved else "invariant"
        if self.moved:
            return f"moved x {self.factor:.3g} with identical predictions"
        return "did not move here"


@dataclass(frozen=True)
class Audit:
    """Measures against symmetries: what moved while the predictions did not."""

    rows: tuple[Verdict, ...]
    group: Group
    certificates: dict[str, Certificate]
    provenance: dict[str, Any]

    def __getitem__(self, name: str) -> Verdict:
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

    def __str__(self) -> str:
        return plain(self.__rich__())

    def __rich__(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        points = list(self.rows[0].values) if self.rows else []
        table.add_column("measure")
        for point in points:
            table.add_column(point, justify="right")
        table.add_column("verdict")
        for row in self.rows:
            cells = [_short(row.values[p]) for p in points]
            style = "green" if row.promised and not row.moved else "red" if row.moved else ""
            short = row.text.removesuffix(" with identical predictions")  # the summary says so
            table.add_row(row.title, *cells, Text(short, style=style))
        lines = [*self._summary(), *self.provenance["notes"]]
        return Stack(table, Text(), *(Text(line) for line in lines))

    def _summary(self) -> list[str]:
        if not self.group.dim:
            blocks = ", ".join(dict.fromkeys(str(b) for b in self.group.blocks))
            return [
                "This network has no rescaling that keeps its predictions, so there is nothing to "
                f"move (blocked by {blocks or 'nothing'})."
            ]
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.group.kinds.items())
        size = "identical bit for bit" if self.worst == 0 else f"equal to {self.worst:.0e}"
        p = self.provenance
        return [
            f"All columns are one network: predictions are {size} on {p['examples']} examples and "
            "on random inputs.",
            f"{self.group.dim} rescalings ({kinds}); balanced: to the least trace; moved: by "
            f"log-scales N(0, {p['strength']:g}^2); sharpened: to an eigenvalue of 1e6.",
            f"seed {p['seed']}, {p['seconds']:.0f} s, spiritlevel {p['versions']['spiritlevel']}, "
            f"torch {p['versions']['torch']}",
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "rows": [
                {
                    "name": row.name,
                    "title": row.title,
                    "values": {p: e.to_dict() for p, e in row.values.items()},
                    "factor": row.factor,
                    "promised": row.promised,
                    "moved": row.moved,
                    "verdict": row.text,
                }
                for row in self.rows
            ],
            "group": {
                "dim": self.group.dim,
                "kinds": self.group.kinds,
                "blocked": [{"by": str(b), "parameters": b.parameters} for b in self.group.blocks],
            },
            "certificates": {
                p: {"verdict": c.verdict, "relative": c.relative, "absolute": c.absolute}
                for p, c in self.certificates.items()
            },
            "provenance": dict(self.provenance),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        text = json.dumps(self.to_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text


@set_apart()
def audit(
    objective: Objective,
    measures: Sequence[str] = DEFAULT,
    *,
    strength: float = 1.0,
    seed: int = 0,
    group: Group | None = None,
) -> Audit:
    """Measure a network at several points that compute the same function, and compare.

    The points are the given one, the balanced one, one moved along every rescaling at random with
    log-scales N(0, strength^2), and one sharpened on purpose. That predictions stay is proved for
    each before anything is measured. A measure that promises to be invariant and moves is a bug.
    """
    only_objectives(objective)
    names = checked(measures)
    several = [name for name in names if MEASURES[name].parts]
    if several:
        raise SpiritlevelError(f"{several[0]} is several numbers; choose others to audit")
    if not strength > 0:
        raise SpiritlevelError(f"strength={strength}: give a positive number")
    begin = time.perf_counter()
    group = symmetries(objective) if group is None else group
    notes: list[str] = []
    points = _points(objective, group, strength, seed, notes)
    certificates = {
        name: verify(objective, point, group=group).require()
        for name, point in points.items()
        if point is not objective
    }
    values = _measured(points, names, group, seed, notes)
    alike = ALIKE[objective.dtype]
    rows = tuple(_verdict(name, found, alike) for name, found in values.items())
    provenance = {
        "examples": objective.examples,
        "parameters": objective.size,
        "seed": seed,
        "strength": strength,
        "seconds": time.perf_counter() - begin,
        "notes": notes,
        "versions": {"spiritlevel": __version__, "torch": torch.__version__},
    }
    return Audit(rows, group, certificates, provenance)


def _points(
    objective: Objective, group: Group, strength: float, seed: int, notes: list[str]
) -> dict[str, Objective]:
    """The network at the given point, balanced, moved at random, and sharpened on purpose."""
    ways: dict[str, Callable[[], Objective]] = {
        "balanced": lambda: balanced(objective, group),
        "moved": lambda: group.apply(objective, group.random(seed, strength)),
        "sharpened": lambda: sharpen(objective, target=SHARP, group=group).objective,
    }
    points = {"here": objective}
    for name, make in ways.items() if group.dim else ():
        try:
            points[name] = make()
        except SpiritlevelError as error:
            notes.append(f"not {name}: {error}")
    return points


def _measured(
    points: dict[str, Objective], names: list[str], group: Group, seed: int, notes: list[str]
) -> dict[str, dict[str, Estimate]]:
    """Every measure at every point; one that this objective does not have is left out, and said."""
    values: dict[str, dict[str, Estimate]] = {}
    instruments = {place: Instruments(p, seed=seed, group=group) for place, p in points.items()}
    with bar(len(names), "audit") as progress:
        for name in names:
            try:
                found = {place: MEASURES[name].function(i) for place, i in instruments.items()}
                values[name] = {p: e for p, e in found.items() if isinstance(e, Estimate)}
            except SpiritlevelError as error:
                notes.append(f"no {name}: {error}")
            progress.update()
    return values


def _verdict(name: str, values: dict[str, Estimate], alike: float) -> Verdict:
    low = min(values.values(), key=lambda e: abs(e.value))
    high = max(values.values(), key=lambda e: abs(e.value))
    noise = 3 * (low.error + high.error) + alike * abs(low.value)
    gap = abs(high.value) - abs(low.value)
    factor = abs(high.value) / abs(low.value) if low.value else math.inf if gap else 1.0
    entry = MEASURES[name]
    return Verdict(name, entry.title, values, factor, entry.invariant, gap > noise)


def _short(estimate: Estimate) -> str:
    error = max(estimate.error, 0.01 * abs(estimate.value))  # four digits are enough to compare
    return format_value(estimate.value, error)
