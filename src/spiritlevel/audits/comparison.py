"""Which of two networks is flatter, and whether the answer survives their symmetries."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

import torch

from spiritlevel.audits.least import Bottoms, Interval
from spiritlevel.audits.verdicts import ALIKE, SURE, differ
from spiritlevel.base.doors import a, accuracy
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import heard_interrupts, set_apart
from spiritlevel.base.spoken import digits
from spiritlevel.base.version import __version__
from spiritlevel.measures.base import Measure
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import MEASURES, checked
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit import Supremum, supremum
from spiritlevel.orbit.program import Kind
from spiritlevel.results.files import csv_text, json_text, written
from spiritlevel.results.terminal import RenderableType, Stack, Table, Text, plain

COMPARED = (
    "loss",
    "hessian_spectral",
    "hessian_trace",
    "expected_sharpness",
    "adaptive_spectral",
    "orbit_trace",
    "orbit_spectral",
)
SEARCHED = 1.5  # times: lower bounds that are closer do not say which maximum is larger
EQUAL = 0.02  # relative: orbit minima that are known to be this close are called equal
SCHEMA = 2
SYMBOLS: dict[Kind, str] = {"hessian": "H", "ggn": "G"}
Answer = Literal["survives", "coordinates", "equal", "undecided"]


@dataclass(frozen=True)
class Pair:
    """One measure of two networks: which is larger here, and what that is worth.

    `least` holds, for each, the interval of the least value over its orbit; it is of the `matrix`,
    and to `order` 2 only if that is not None. `turned` is a network that computes what the smaller
    one does and has a larger value than the larger one: plain numbers can be put in any order.
    """

    name: str
    title: str
    sharper: str
    other: str
    values: tuple[Estimate, Estimate]
    least: tuple[Interval, Interval] | None
    matrix: Kind | None
    order: Literal[2] | None
    turned: Supremum | None
    answer: Answer

    @property
    def text(self) -> str:
        more = "sharper" if _sharpness(MEASURES[self.name]) else "larger"
        order = ", to second order" if self.order == 2 and self.least is not None else ""
        return {
            "survives": f"{self.sharper} is {more}, and it survives{order}",
            "coordinates": f"{self.sharper} is {more} only in these coordinates{order}",
            "equal": "equal",
            "undecided": self._doubt(),
        }[self.answer]

    def _doubt(self) -> str:
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
            cells[name] = f"{'≤ ' if not interval.low else ''}{digits(value)}"
        return cells

    @property
    def ratio(self) -> float:
        """The larger over the smaller; infinite unless both are positive."""
        high, low = (e.value for e in self.values)
        return high / low if low > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "family": MEASURES[self.name].family,
            "sharper": self.sharper,
            "other": self.other,
            "values": [e.to_dict() for e in self.values],
            "ratio": self.ratio,
            "least": self.least and [[i.low, i.high] for i in self.least],
            "matrix": self.matrix,
            "order": self.order,
            "turned": None if self.turned is None else self.turned.outcome,
            "turned_value": None if self.turned is None else self.turned.value,
            "answer": self.answer,
            "verdict": self.text,
        }


@dataclass(frozen=True)
class Comparison:
    """Measures of several networks, pair by pair, with what survives their symmetries."""

    names: tuple[str, ...]
    values: dict[str, dict[str, Estimate]]
    pairs: tuple[Pair, ...]
    provenance: dict[str, Any]

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

    def __str__(self) -> str:
        return plain(self.__rich__())

    def __rich__(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("measure", no_wrap=True)
        for name in self.names:
            table.add_column(Text(name), justify="right")
        table.add_column("verdict")
        colours = {"survives": "green", "coordinates": "red", "undecided": "yellow", "equal": ""}
        for name, found in self.values.items():
            rows = [pair for pair in self.pairs if pair.name == name]
            cells = [digits(found[n].value) for n in self.names]
            for i, pair in enumerate(rows):
                text = Text(pair.text, style=colours[pair.answer])
                shown = [MEASURES[name].title.strip(), *cells] if i == 0 else [""] * len(self.names)
                table.add_row(*shown, *([""] if i else []), text)
            least = {n: cell for pair in rows for n, cell in pair.least_cells().items()}
            matrix = rows[0].matrix if rows else None
            if least and matrix:
                cells = [least.get(n, "") for n in self.names]
                table.add_row(f"  least, of {SYMBOLS[matrix]}", *cells, "", style="dim")
        return Stack(table, Text(), *(Text(line) for line in self._lines()))

    def _lines(self) -> list[str]:
        p = self.provenance
        turned = [pair for pair in self.pairs if pair.turned and pair.turned.outcome == "reached"]
        lines = []
        if any(pair.least for pair in self.pairs):
            lines.append(
                "least: over all networks with the same predictions, which is what survives; H is "
                "the Hessian, G the Gauss-Newton matrix."
            )
        if turned:
            names = ", ".join(dict.fromkeys(pair.title for pair in turned))
            lines.append(
                "Plain numbers can be put in either order: with identical predictions the smaller "
                f"one was given the larger {names}."
            )
        versions = ", ".join(f"{name} {version}" for name, version in p["versions"].items())
        return [*lines, *p["notes"], f"seed {p['seed']}, {p['seconds']:.0f} s, {versions}"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "names": list(self.names),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "provenance": dict(self.provenance),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        return written(json_text(self.to_dict()), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line per measure and pair."""
        head = "name sharper other value_sharper value_other ratio matrix verdict"
        rows = [
            [p.name, p.sharper, p.other, *(e.value for e in p.values), p.ratio, p.matrix, p.text]
            for p in self.pairs
        ]
        return written(csv_text(head, rows), path)

    def to_html(self) -> str:
        """An HTML table for notebooks; `write_report` makes a page."""
        head = "".join(f"<th>{escape(c)}</th>" for c in ("measure", *self.names, "verdict"))
        body = ""
        for name, found in self.values.items():
            pairs = [pair for pair in self.pairs if pair.name == name]
            cells = [pairs[0].title, *(str(found[n]) for n in self.names)]
            verdicts = "<br>".join(escape(pair.text) for pair in pairs)
            shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            body += f"<tr>{shown}<td>{verdicts}</td></tr>"
        lines = "<br>".join(escape(line) for line in self._lines())
        return f"<table><tr>{head}</tr>{body}</table><p>{lines}</p>"

    def _repr_html_(self) -> str:
        return self.to_html()


@set_apart()
def compare(
    objectives: Mapping[str, Objective],
    measures: Sequence[str] = COMPARED,
    *,
    seed: int = 0,
    tol: float = 1e-3,
    rtol: float = 0.05,
    budget: int = 200,
) -> Comparison:
    """Which network is sharper by each measure, and does the answer mean anything?

    "sharper, and it survives": the least values over the two orbits, of the measure's own matrix,
    are in the same order, apart by more than their errors, or the measure is invariant. "sharper
    only in these coordinates": they are equal, or in the other order. "undecided": neither, or
    nothing is known of what is left. Architectures may differ. `tol`, `rtol` and `budget` are those
    of `measure`.
    """
    a("objectives", objectives, Mapping, 'Objectives by name, {"a": a, "b": b}')
    only_objectives(*objectives.values())
    accuracy(tol, rtol, budget, seed)
    if len(objectives) < 2:
        raise SpiritlevelError('compare needs at least two networks: compare({"a": a, "b": b})')
    names = checked(measures, single=True)
    begin = time.perf_counter()
    settings = {"seed": seed, "tol": tol, "rtol": rtol, "budget": budget}
    work = _Work(
        {n: Bottoms(Instruments(o, **settings)) for n, o in objectives.items()},
        [f"{n}: {note}" for n, o in objectives.items() for note in o.notes],
    )
    values, pairs = _compared(work, names)
    if len({o.examples for o in objectives.values()}) > 1:
        work.notes.append("The networks were given data of different sizes.")
    provenance = {
        "seed": seed,
        "seconds": time.perf_counter() - begin,
        "notes": list(dict.fromkeys(work.notes)),
        "refused": work.refused,
        "versions": {"spiritlevel": __version__, "torch": torch.__version__},
    }
    return Comparison(tuple(objectives), values, tuple(pairs), provenance)


def _compared(work: _Work, names: list[str]) -> tuple[dict[str, dict[str, Estimate]], list[Pair]]:
    """Measure by measure; interrupted, what is done."""
    values: dict[str, dict[str, Estimate]] = {}
    pairs: list[Pair] = []
    with bar(len(names), "compare") as progress, heard_interrupts() as heard:
        try:
            for name in names:
                progress.set_postfix_str(name)
                try:
                    found = work.measured(name)
                except SpiritlevelError as error:
                    work.notes.append(f"no {name}: {error}")
                    work.refused[name] = str(error)
                    continue
                both = itertools.combinations(work.networks, 2)
                rows = [_pair(work, name, found, *two) for two in both]
                if heard:
                    raise KeyboardInterrupt
                values[name] = found
                pairs += rows
                progress.update()
        except KeyboardInterrupt:
            if not pairs:
                raise
            work.notes.append(f"interrupted: {len(values)} of {len(names)} measures were done")
    return values, pairs


@dataclass
class _Work:
    networks: dict[str, Bottoms]
    notes: list[str]
    refused: dict[str, str] = field(default_factory=dict)  # measures, and why

    def measured(self, name: str) -> dict[str, Estimate]:
        found = {n: MEASURES[name].function(b.instruments) for n, b in self.networks.items()}
        return {n: e for n, e in found.items() if isinstance(e, Estimate)}

    def least(self, name: str, network: str, here: Estimate) -> Interval | None:
        """Where the least value over one network's orbit lies."""
        bottom = MEASURES[name].bottom
        if bottom is None:
            return None
        try:
            return self.networks[network].interval(bottom, here)
        except SpiritlevelError as error:
            self.notes.append(f"no least {MEASURES[name].title.strip()} of {network}: {error}")
            return None

    def alike(self, *networks: str) -> float:
        return max(ALIKE[self.networks[n].instruments.objective.dtype] for n in networks)


def _pair(work: _Work, name: str, values: dict[str, Estimate], one: str, two: str) -> Pair:
    sharper, other = (one, two) if values[one].value >= values[two].value else (two, one)
    high, low = values[sharper], values[other]
    decided = differ((high, low), work.alike(one, two))
    if Status.LOWER_BOUND in (high.status, low.status):  # two searches, not two maxima
        decided = high.value > SEARCHED * low.value
    measure = MEASURES[name]
    invariant, bottom = measure.promises("unit"), measure.bottom
    least, turned = None, None
    if decided and not invariant:
        intervals = work.least(name, sharper, high), work.least(name, other, low)
        least = None if None in intervals else intervals
        turned = _turned(work, name, other, high)
    if decided:
        answer = _answer(invariant, least)
    else:
        answer: Answer = "equal" if _known_equal(high, low) else "undecided"
    return Pair(
        name,
        measure.title.strip(),
        sharper,
        other,
        (high, low),
        least,  # type: ignore[arg-type]
        None if bottom is None else bottom.matrix,
        None if bottom is None else bottom.order,
        turned,
        answer,
    )


def _sharpness(measure: Measure) -> bool:
    """Whether more of it is sharper: not of a loss, a smallest eigenvalue, a rank."""
    curved = measure.family == "curvature" and bool(measure.invariances)
    return measure.bottom is not None or curved or measure.family in ("worst case", "noise")


def _known_equal(high: Estimate, low: Estimate) -> bool:
    apart = high.value - low.value + high.error + low.error
    return apart <= EQUAL * abs(low.value)


def _turned(work: _Work, name: str, other: str, high: Estimate) -> Supremum | None:
    """The smaller one made larger than the larger one, with its predictions."""
    instruments, measure = work.networks[other].instruments, MEASURES[name]
    target = 1.1 * (high.value + SURE * high.error)
    if not target > 0:
        return None
    try:
        return supremum(
            instruments.objective,
            instruments.group,
            measure,
            target=target,
            seed=instruments.seed,
        )
    except SpiritlevelError as error:
        work.notes.append(f"{name} of {other} was not turned: {error}")
        return None


def _answer(invariant: bool, least: Any) -> Answer:
    """Of two networks that differ here."""
    if invariant:
        return "survives"
    if least is None:  # it may be turned around, but what is left is unknown
        return "undecided"
    sharper, other = least
    if sharper.low > other.high:
        return "survives"
    if sharper.high < other.low:
        return "coordinates"
    widest = max(sharper.high, other.high)
    known_equal = widest <= (1 + EQUAL) * min(sharper.low, other.low)
    return "coordinates" if known_equal else "undecided"
