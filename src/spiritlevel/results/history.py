"""The course of a training as data: its epochs, and what the watch saw on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.results.course import Change, change, edge_text
from spiritlevel.results.grid import Cell, Grid, cells, for_notebook, for_terminal
from spiritlevel.results.landscape import Picture
from spiritlevel.results.provenance import Provenance, interruption, remarks, versions_line
from spiritlevel.results.result import Result, by_name
from spiritlevel.results.terminal import RenderableType, Stack, Text


class _OfTraining(Provenance):
    parameters: int
    examples: int
    dtype: str
    device: str
    optimizer: str  # "SAM(SGD)", empty where checkpoints were looked at
    seed: int | None
    stopped: str  # why it ended: "after 40 epochs", "at a training loss of 0.0099"
    watched: float  # seconds that the watch took, of all `seconds`


class OfTraining(_OfTraining, total=False):
    """What was trained, by what, and how much of the time went into looking."""

    put_off: int  # looks, to stay within the watch's share of the time
    watch_seed: int  # of what the watch draws


@dataclass(frozen=True)
class Epoch:
    """One pass over the data: its losses are those of the batches as they were met."""

    number: int  # the first is 1
    step: int  # steps made when it ended
    # the mean over this epoch, each batch before its step; of steps with several, over their first
    loss: float
    rate: float  # the learning rate of its last step
    seconds: float
    full: float | None = None  # the loss over all the data after it, where that was asked for


@dataclass(frozen=True)
class Reading:
    """One measure at one moment; `least` is the same on the bottom of the orbit.

    An `invariant` one promises that no rescaling moves it: it is on the bottom everywhere.
    """

    name: str
    estimate: Estimate
    least: Estimate | None = None
    title: str = ""
    invariant: bool = False

    @property
    def shown(self) -> str:
        return self.title or self.name


@dataclass(frozen=True)
class Moment:
    """What the watch saw at one step."""

    told = ("edge", "edge_share")

    name: str  # "step 300", or the name of the checkpoint
    step: int
    loss: float
    rate: float | None
    readings: tuple[Reading, ...]
    seconds: float
    notes: tuple[str, ...] = ()  # what could not be read, and why

    def __getitem__(self, name: str) -> Reading:
        return by_name(self.readings, name, "measure")

    def get(self, name: str) -> Reading | None:
        """The reading of this name, if there is one."""
        return next((r for r in self.readings if r.name == name), None)

    @property
    def edge(self) -> float | None:
        """2 / rate: a largest eigenvalue beyond it is left by plain gradient descent."""
        return 2 / self.rate if self.rate else None

    @property
    def edge_share(self) -> Estimate | None:
        """lambda_max * rate / 2, beyond 1 past the edge (Cohen et al., 2021)."""
        top = self.get("lambda_max")
        if top is None or not self.rate:
            return None
        e, half = top.estimate, self.rate / 2
        widths = {
            name: None if width is None else half * width
            for name, width in (("stderr", e.stderr), ("residual", e.residual), ("bound", e.bound))
        }
        return replace(e, value=half * e.value, matvecs=0, seconds=0.0, **widths)


@dataclass(frozen=True, eq=False)
class History(Picture, Result, kind="history", schema=1):
    """The epochs of a training, and the measures along it, here and on the bottom of the orbit."""

    told = ("headline", "sentences")

    epochs: tuple[Epoch, ...]
    moments: tuple[Moment, ...]
    provenance: OfTraining  # type: ignore[assignment]

    title = "The course of a training"  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Moment]:
        return iter(self.moments)

    def __getitem__(self, name: str) -> Moment:
        return by_name(self.moments, name, "moment")

    @property
    def names(self) -> tuple[str, ...]:
        """Of all measures that were read at some moment."""
        return tuple(dict.fromkeys(r.name for m in self.moments for r in m.readings))

    def readings(self, name: str) -> list[tuple[Moment, Reading]]:
        """One measure along the course, where it is known."""
        if name not in self.names:
            known = ", ".join(self.names) or "none"
            raise SpiritlevelError(f"no measure {name!r}; there are: {known}")
        found = [(m, m.get(name)) for m in self.moments]
        return [(m, r) for m, r in found if r is not None and math.isfinite(r.estimate.value)]

    # What it says -----------------------------------------------------------------------------

    @property
    def changes(self) -> tuple[Change, ...]:
        """From the first to the last moment, of every measure that has a bottom on the orbit."""
        found = []
        for name in self.names:
            known = self.readings(name)
            if len(known) < 2 or not any(r.least is not None for _, r in known):
                continue
            (a, first), (b, last) = known[0], known[-1]
            pair, dtype = (a.name, b.name), self.provenance["dtype"]
            found.append(change(name, first.shown, pair, (first, last), dtype))
        return tuple(one for one in found if one is not None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the course allows one to say of each measure, or of the loss, and of the edge."""
        shares = [(m.name, e) for m in self.moments if (e := m.edge_share) is not None]
        said = [_capital(one.text) for one in self.changes] or [self._losses]
        return (*said, *filter(None, [edge_text(shares)]))

    @property
    def headline(self) -> str:
        """The first thing to say."""
        return self.sentences[0]

    @property
    def _losses(self) -> str:
        known = [(m.name, m.loss) for m in self.moments if math.isfinite(m.loss)]
        known = known or [
            (f"epoch {e.number}", e.loss) for e in self.epochs if math.isfinite(e.loss)
        ]
        if not known:
            return "No finite loss was seen."
        if len(known) == 1:
            return f"The loss is {known[0][1]:.4g} at {known[0][0]}."
        (a, first), (b, last) = known[0], known[-1]
        return f"The loss went from {first:.4g} at {a} to {last:.4g} at {b}."

    # How it is shown --------------------------------------------------------------------------

    def grid(self) -> Grid:
        """The moments, or the epochs where nobody looked, and what there is to say of them."""
        first = self.tables()[0]
        return replace(first, below=self.below())

    def tables(self) -> list[Grid]:
        """Tables that a terminal has room for: moments by measures, then epochs."""
        from spiritlevel.results.history_tables import tables

        return tables(self)

    def below(self) -> tuple[Cell, ...]:
        told = self.provenance
        lines = [*interruption(told), *self.legend(), *self.remarks(), self.cost()]
        said = cells(*self.sentences)
        return (*said, *cells(*lines, versions_line(told), style="dim"))

    def legend(self) -> list[str]:
        """How to read it."""
        found = []
        readings = [r for m in self.moments for r in m.readings]
        if any(r.least is not None for r in readings):
            found.append("least: over all rescalings of the weights that change no prediction")
        still = dict.fromkeys(r.shown for r in readings if r.invariant)
        if still:
            found.append(f"no rescaling moves: {', '.join(still)}")
        if any(m.edge is not None for m in self.moments):
            found.append("of edge: lambda_max * rate / 2, 1 at the edge of plain gradient descent")
        return found

    def remarks(self) -> list[str]:
        """Notes of the whole, and those of moments with where they were made."""
        places: dict[str, list[str]] = {}
        for moment in self.moments:
            for note in moment.notes:
                places.setdefault(note, []).append(moment.name)
        each = [f"{note} ({_places(names)})" for note, names in places.items()]
        return [*remarks(self.provenance), *each]

    def cost(self) -> str:
        told = self.provenance
        what = f"{told['parameters']:,} parameters, {told['examples']:,} examples"
        by = f", {told['optimizer']}" if told["optimizer"] else ""
        end = f", {told['stopped']}" if told["stopped"] else ""
        seed = "" if told["seed"] is None else f", seed {told['seed']}"
        watched = f", of which the watch took {told['watched']:.1f} s ({self.share:.0%})"
        took = f"{told['seconds']:.1f} s{watched if self.moments else ''}"
        return f"{what}, {told['dtype']} on {told['device']}{by}{end}{seed}, {took}"

    @property
    def share(self) -> float:
        """Of the time, that the watch took."""
        whole = self.provenance["seconds"]
        return min(self.provenance["watched"] / whole, 1.0) if whole > 0 else 0.0

    def __rich__(self) -> RenderableType:
        *others, last = [for_terminal(grid) for grid in self._stacked()]
        parts = [part for grid in others for part in (grid, Text())]
        return Stack(*parts, last)

    def to_html(self) -> str:
        """The picture and its tables for notebooks; `write_report` makes a page."""
        from spiritlevel.results.pictures import svg

        drawn = f"<figure>{svg(self)}</figure>" if self.moments or self.epochs else ""
        return drawn + "".join(for_notebook(grid) for grid in self._stacked())

    def _stacked(self) -> list[Grid]:
        """All tables; what there is to say stands under the last."""
        *others, last = self.tables()
        return [*others, replace(last, below=self.below())]

    def records(self) -> list[dict[str, Any]]:
        epochs = [
            _record(f"epoch {e.number}", e.step, e.loss, e.rate, full=e.full) for e in self.epochs
        ]
        looks = [
            _record(m.name, m.step, m.loss, m.rate, **read)
            for m in self.moments
            for read in ([_read(r) for r in m.readings] or [{}])
        ]
        return [*epochs, *looks]


COLUMNS = ("full", "measure", "value", "error", "status", "least", "least_error", "invariant")


def _record(name: str, step: int, loss: float, rate: float | None, **more: Any) -> dict[str, Any]:
    told = {"moment": name, "step": step, "loss": loss, "rate": rate}
    return {**told, **{column: more.get(column) for column in COLUMNS}}


def _read(reading: Reading) -> dict[str, Any]:
    e, least = reading.estimate, reading.least
    return {
        "measure": reading.name,
        "value": e.value,
        "error": e.error,
        "status": e.status.value,
        "least": None if least is None else least.value,
        "least_error": None if least is None else least.error,
        "invariant": reading.invariant,
    }


def _places(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
