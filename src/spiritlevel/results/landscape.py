"""Pictures of the loss as data: lines, planes and spectra, with their coordinates."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from spiritlevel.base.doors import file
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, format_error, format_value
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.grid import Cell, Column, Grid, cells, filled
from spiritlevel.results.places import array, ends, vtk, write_npz
from spiritlevel.results.provenance import OfNetwork, interruption, remarks, versions_line
from spiritlevel.results.result import Result, by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = tuple[float | None, ...]  # None where nothing was evaluated: it was interrupted


class OfLandscape(OfNetwork):
    """How the points were evaluated, and how far that was from a plain pass over the data."""

    engine: str
    check: float
    statistics: str


@dataclass(frozen=True)
class Direction:
    """One axis of a picture: what it is, and the Euclidean length of a unit step along it."""

    name: str
    kind: str
    norm: float


@dataclass(frozen=True)
class Curve:
    """Losses along a line, with the numbers that are read from them."""

    name: str
    axis: tuple[float, ...]
    losses: Values
    accuracies: Values | None
    direction: Direction
    barrier: Estimate | None = None
    radius: Estimate | None = None  # at which the loss has risen by `rise`
    certificate: Certificate | None = None  # that the moved end predicts what the given one did
    rise: float | None = None


@dataclass(frozen=True)
class Sheet:
    """Values over a plane, one row for each place on the second axis.

    `errors` belong to values that are estimated; losses over all the data are not.
    """

    name: str
    values: tuple[Values, ...]
    accuracies: tuple[Values, ...] | None = None
    errors: tuple[Values, ...] | None = None
    certificate: Certificate | None = None  # that this point predicts what the first one does


@dataclass(frozen=True)
class Step:
    """One point of a path: where it lies in the plane, how far off it, and its own loss."""

    name: str
    x: float
    y: float
    off: float  # distance from the plane
    loss: float


class Drawable:
    """What a result has that can be drawn; in a notebook it shows itself."""

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """A matplotlib figure in the style of the reports, also written to `path` (.svg, .png)."""
        from spiritlevel.results.pictures import drawn

        return drawn(self, path)  # type: ignore[arg-type]

    def to_html(self) -> str:
        """The picture and its table for notebooks; `write_report` makes a page."""
        from spiritlevel.results.pictures import svg

        return f"<figure>{svg(self)}</figure>{super().to_html()}"  # type: ignore[misc,arg-type]


class Picture(Drawable):
    """A picture of the loss: what stands under its table is of one network."""

    provenance: OfLandscape

    def below(self) -> tuple[Cell, ...]:
        """What stands under its table."""
        told = self.provenance
        lines = [
            *interruption(told),
            f"{told['parameters']:,} parameters, {told['examples']:,} examples, "
            f"{told['dtype']} on {told['device']}, seed {told['seed']}, {told['seconds']:.1f} s",
            *([f"points {told['engine']}"] if told["engine"] else []),
            *remarks(told),
            versions_line(told),
        ]
        return cells(*lines, style="dim")


@dataclass(frozen=True, eq=False)
class Line(Picture, Result, kind="line", schema=1):
    """Losses along one or several lines from a point, or from one network to another."""

    curves: tuple[Curve, ...]
    provenance: OfLandscape

    title = "Losses along a line"  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Curve:
        return by_name(self.curves, name, "curve")

    def __iter__(self) -> Iterator[Curve]:
        return iter(self.curves)

    def grid(self) -> Grid:
        columns = (
            Column("line"),
            Column("points", right=True),
            Column("least", right=True),
            Column("largest", right=True),
            Column("barrier", right=True),
            Column("flat radius", right=True),
            Column("predictions"),
        )
        rows = tuple(
            cells(
                curve.name,
                f"{len(curve.axis)}",
                *(_number(value) for value in ends(curve.losses)),
                _estimate(curve.barrier),
                _estimate(curve.radius),
                kept(curve.certificate),
            )
            for curve in self.curves
        )
        rises = dict.fromkeys(c.rise for c in self.curves if c.rise is not None)
        said = [f"flat radius: the distance at which the loss has risen by {r:g}" for r in rises]
        return Grid(*filled(columns, rows), (), (*cells(*said), *self.below()))

    def records(self) -> list[dict[str, Any]]:
        return [
            {"curve": c.name, "place": at, "loss": loss, "accuracy": accuracy}
            for c in self.curves
            for at, loss, accuracy in zip(
                c.axis, c.losses, c.accuracies or [None] * len(c.axis), strict=True
            )
        ]

    def to_npz(self, path: str | os.PathLike[str]) -> None:
        """Arrays for numpy: axis_0, losses_0, accuracies_0 of the first curve, and so on."""
        arrays: dict[str, Any] = {}
        for number, curve in enumerate(self.curves):
            arrays |= {f"axis_{number}": curve.axis, f"losses_{number}": array(curve.losses)}
            if curve.accuracies is not None:
                arrays[f"accuracies_{number}"] = array(curve.accuracies)
        write_npz(path, arrays)


@dataclass(frozen=True, eq=False)
class Surface(Picture, Result, kind="surface", schema=1):
    """Values over a plane through a point, for one or several points of its orbit.

    `quantity` is "loss", or "convexity": |lambda_min / lambda_max| of the Hessian at each place.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    directions: tuple[Direction, Direction]
    sheets: tuple[Sheet, ...]
    provenance: OfLandscape
    quantity: Literal["loss", "convexity"] = "loss"
    path: tuple[Step, ...] = ()
    explained: tuple[float, float] | None = None  # shares of the path's variance

    title = "A plane through the loss"  # type: ignore[assignment]

    @property
    def axes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.x, self.y

    @property
    def values(self) -> tuple[Values, ...]:
        """Those of the first sheet, values[j][i] at (x[i], y[j])."""
        return self.sheets[0].values

    @property
    def losses(self) -> tuple[Values, ...]:
        """The losses of the first sheet, losses[j][i] at (x[i], y[j])."""
        if self.quantity != "loss":
            raise SpiritlevelError(f"this surface is one of {self.quantity}: read .values")
        return self.values

    def __getitem__(self, name: str) -> Sheet:
        return by_name(self.sheets, name, "sheet")

    def __iter__(self) -> Iterator[Sheet]:
        return iter(self.sheets)

    def grid(self) -> Grid:
        columns = (
            Column("plane"),
            Column("points", right=True),
            Column("least", right=True),
            Column("centre", right=True),
            Column("largest", right=True),
            Column("finite", right=True),
            Column("predictions"),
        )
        rows = tuple(self._row(sheet) for sheet in self.sheets)
        axes = [
            f"{letter}: {one.name}, {one.norm:.3g} long"
            for letter, one in zip("xy", self.directions, strict=True)
        ]
        if self.explained is not None:
            first, second = self.explained
            axes.append(f"the path: {first:.1%} and {second:.1%} of its variance lie in the plane")
        return Grid(*filled(columns, rows), (), (*cells(*axes), *self.below()))

    def _row(self, sheet: Sheet) -> tuple[Cell, ...]:
        flat = tuple(value for row in sheet.values for value in row)
        least, largest = ends(flat)
        done = [value for value in flat if value is not None]
        finite = sum(math.isfinite(value) for value in done)
        return cells(
            sheet.name,
            f"{len(self.x)} x {len(self.y)}",
            _number(least),
            _number(self.centre(sheet.name)),
            _number(largest),
            f"{finite:,} of {len(done):,}",
            kept(sheet.certificate),
        )

    def centre(self, name: str | None = None) -> float | None:
        """The value at (0, 0) of a sheet, the first if None, if that place is on the axes."""
        if 0.0 not in self.x or 0.0 not in self.y:
            return None
        sheet = self.sheets[0] if name is None else self[name]
        return sheet.values[self.y.index(0.0)][self.x.index(0.0)]

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "sheet": sheet.name,
                "x": x,
                "y": y,
                self.quantity: sheet.values[j][i],
                "error": None if sheet.errors is None else sheet.errors[j][i],
                "accuracy": None if sheet.accuracies is None else sheet.accuracies[j][i],
            }
            for sheet in self.sheets
            for j, y in enumerate(self.y)
            for i, x in enumerate(self.x)
        ]

    def to_npz(self, path: str | os.PathLike[str]) -> None:
        """Arrays for numpy: x, y, values_0 (y by x), accuracies_0, and so on; nan for no value."""
        arrays: dict[str, Any] = {"x": self.x, "y": self.y}
        for number, sheet in enumerate(self.sheets):
            arrays[f"values_{number}"] = [array(row) for row in sheet.values]
            if sheet.accuracies is not None:
                arrays[f"accuracies_{number}"] = [array(row) for row in sheet.accuracies]
        if self.path:
            arrays["path"] = [(s.x, s.y, s.off, s.loss) for s in self.path]
        write_npz(path, arrays)

    def to_vtk(self, path: str | os.PathLike[str]) -> None:
        """The first sheet for ParaView: a rectilinear grid (.vtk, legacy format in ASCII)."""
        file(path).write_text(vtk(self), encoding="ascii")


def kept(certificate: Certificate | None) -> str:
    """How far the predictions of a moved point are from those of the given one."""
    if certificate is None:
        return ""
    return f"{certificate.relative:.0e} off, {certificate.verdict}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if math.isfinite(value) else "not finite"


def _estimate(value: Estimate | None) -> str:
    return (
        ""
        if value is None
        else f"{format_value(value.value, value.error)} ± {format_error(value.error)}"
    )
