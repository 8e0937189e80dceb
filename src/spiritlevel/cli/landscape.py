"""spiritlevel landscape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Files, Trained, expanded
from spiritlevel.cli.writing import check_writable, say_written, write

if TYPE_CHECKING:
    from spiritlevel.objective import Objective
    from spiritlevel.results import Line, Spectra, Surface


class Drawn(str, Enum):
    plane = "plane"
    line = "line"
    spectra = "spectra"
    convexity = "convexity"


class KindOption(str, Enum):
    filter = "filter"
    layer = "layer"
    gaussian = "gaussian"
    orbit = "orbit"
    hessian = "hessian"
    gradient = "gradient"
    generator = "generator"


class StatisticsOption(str, Enum):
    frozen = "frozen"
    recomputed = "recomputed"


@dataclass(frozen=True)
class Pictures(Files):
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Also draw it here, as .svg, .pdf or .png.")
    ] = None
    npz: Annotated[Path | None, typer.Option("--npz", help="Also write its arrays here.")] = None
    vtk: Annotated[
        Path | None, typer.Option("--vtk", help="Also write a plane for ParaView here.")
    ] = None


@dataclass(frozen=True)
class View:
    """What is looked at."""

    draw: Annotated[Drawn, typer.Option("--draw", help="What to draw.")] = Drawn.plane
    kind: Annotated[
        KindOption | None, typer.Option("--kind", help="Of the directions; filter if left out.")
    ] = None
    steps: Annotated[
        int | None, typer.Option("--steps", help="Points along an axis, an odd number.")
    ] = None
    span: Annotated[float, typer.Option("--span", help="How far to look.", min=0)] = 1.0
    orbit: Annotated[
        int | None,
        typer.Option(
            "--orbit", help="Further points of the orbit; 4 on the default network.", min=0
        ),
    ] = None
    strength: Annotated[
        float, typer.Option("--strength", help="Of that rescaling, in log-scales.")
    ] = 1.0
    refine: Annotated[
        int, typer.Option("--refine", help="How often to halve where it bends.", min=0)
    ] = 0
    statistics: Annotated[
        StatisticsOption, typer.Option("--statistics", help="Of BatchNorm, at every place.")
    ] = StatisticsOption.frozen
    journal: Annotated[
        Path | None,
        typer.Option("--journal", help="Keep values here, and go on from there after a kill."),
    ] = None
    layers: Annotated[bool, typer.Option("--layers", help="Spectra of every layer, too.")] = False


@app.command()
@expanded
def landscape(network: Trained, view: View, files: Pictures) -> None:
    """A picture of the loss around a network, here and elsewhere on its orbit.

    Without --model it runs on a small net trained on the 8x8 digits. -o writes a page with a
    surface to turn; --kind orbit gives every point of the orbit the same picture.
    """
    with one_line_errors() as console:
        check_writable(files)
        _check(view, files)
        found = _made(network.objective(), view, network.seed, default=network.model is None)
        console.print(found)
        write(found, Files(files.out, files.json, files.csv), console)
        _draw(found, files)
        for path in (files.picture, files.npz, files.vtk):
            say_written(path, console)


def _check(view: View, files: Pictures) -> None:
    from spiritlevel.base.errors import SpiritlevelError

    if files.vtk is not None and view.draw not in (Drawn.plane, Drawn.convexity):
        raise SpiritlevelError("--vtk takes a plane: use --draw plane, or --npz")
    if files.picture is not None and files.picture.suffix.lower() not in (".svg", ".pdf", ".png"):
        raise SpiritlevelError(f"--picture is {files.picture}; name a .svg, .pdf or .png file")
    given = {
        "--orbit": (view.orbit is not None, (Drawn.plane, Drawn.spectra)),
        "--refine": (view.refine > 0, (Drawn.plane, Drawn.line)),
        "--journal": (view.journal is not None, (Drawn.plane, Drawn.line)),
        "--statistics": (view.statistics is not StatisticsOption.frozen, (Drawn.plane, Drawn.line)),
        "--kind": (view.kind is not None, (Drawn.plane, Drawn.line, Drawn.convexity)),
        "--layers": (view.layers, (Drawn.spectra,)),
    }
    for option, (asked, fits) in given.items():
        if asked and view.draw not in fits:
            there = " or ".join(f"--draw {one.value}" for one in fits)
            raise SpiritlevelError(f"{option} goes with {there}: leave it out")


def _made(
    objective: Objective, view: View, seed: int, *, default: bool
) -> Line | Surface | Spectra:
    from spiritlevel import landscape as rooms

    kind = (view.kind or KindOption.filter).value
    sizes: dict[str, Any] = {} if view.steps is None else {"steps": view.steps}
    orbit = (4 if default else 0) if view.orbit is None else view.orbit
    along: dict[str, Any] = {"orbit": orbit, "strength": view.strength}
    looked = {"span": view.span, "seed": seed, **sizes}
    kept = {
        "refine": view.refine,
        "statistics": view.statistics.value,
        "journal": view.journal,
    }
    if view.draw is Drawn.spectra:
        return rooms.spectra(objective, layers=view.layers, seed=seed, **along, **sizes)
    if view.draw is Drawn.convexity:
        return rooms.convexity(objective, kind, **looked)
    if view.draw is Drawn.line:
        return rooms.line(objective, kind, **looked, **kept)
    return rooms.plane(objective, kind, **looked, **kept, **along)


def _draw(found: Line | Surface | Spectra, files: Pictures) -> None:
    from spiritlevel.results import Surface

    if files.picture is not None:
        found.plot(files.picture)
    if files.npz is not None:
        found.to_npz(files.npz)
    if files.vtk is not None and isinstance(found, Surface):
        found.to_vtk(files.vtk)
