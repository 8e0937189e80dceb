"""The course of a training as data: its epochs, and what the watch saw on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.estimate import Estimate, format_error, format_value
from spiritlevel.results.grid import Cell, Column, Grid, cells, filled
from spiritlevel.results.provenance import Provenance, interruption, remarks, versions_line
from spiritlevel.results.result import Result, by_name


class OfTraining(Provenance):
    """What was trained, by what, and how much of the time went into looking."""

    parameters: int
    examples: int
    dtype: str
    device: str
    optimizer: str  # "SAM(SGD)", empty where checkpoints were looked at
    seed: int | None
    stopped: str  # why it ended: "after 40 epochs", "at a training loss of 0.0099"
    watched: float  # seconds that the watch took, of all `seconds`


@dataclass(frozen=True)
class Epoch:
    """One pass over the data: its losses are those of the batches as they were met."""

    number: int  # the first is 1
    step: int  # steps made when it ended
    loss: float  # the mean over the examples of this epoch, each before its step
    rate: float  # the learning rate of its last step
    seconds: float
    full: float | None = None  # the loss over all the data after it, where that was asked for


@dataclass(frozen=True)
class Reading:
    """One measure at one moment; `least` is the same on the bottom of the orbit."""

    name: str
    estimate: Estimate
    least: Estimate | None = None


@dataclass(frozen=True)
class Moment:
    """What the watch saw at one step."""

    name: str  # "step 300", or the name of the checkpoint
    step: int
    loss: float
    rate: float | None
    readings: tuple[Reading, ...]
    seconds: float

    def __getitem__(self, name: str) -> Reading:
        return by_name(self.readings, name, "measure")


@dataclass(frozen=True, eq=False)
class History(Result, kind="history", schema=1):
    """The epochs of a training, and the measures along it, here and on the bottom of the orbit."""

    epochs: tuple[Epoch, ...]
    moments: tuple[Moment, ...]
    provenance: OfTraining

    title = "The course of a training"  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Moment]:
        return iter(self.moments)

    def __getitem__(self, name: str) -> Moment:
        return by_name(self.moments, name, "moment")

    def grid(self) -> Grid:
        names = list(dict.fromkeys(r.name for m in self.moments for r in m.readings))
        columns = (Column("moment"), Column("loss", right=True), *(Column(n) for n in names))
        rows = tuple(
            cells(m.name, f"{m.loss:.4g}", *(_shown(m, name) for name in names))
            for m in self.moments
        )
        return Grid(*filled(columns, rows), (), self.below())

    def below(self) -> tuple[Cell, ...]:
        told = self.provenance
        return cells(*interruption(told), *remarks(told), versions_line(told), style="dim")

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "moment": m.name,
                "step": m.step,
                "loss": m.loss,
                "rate": m.rate,
                "measure": r.name,
                "value": r.estimate.value,
                "error": r.estimate.error,
                "least": None if r.least is None else r.least.value,
            }
            for m in self.moments
            for r in m.readings
        ]


def _shown(moment: Moment, name: str) -> str:
    found = next((r.estimate for r in moment.readings if r.name == name), None)
    if found is None:
        return ""
    return f"{format_value(found.value, found.error)} ± {format_error(found.error)}"
