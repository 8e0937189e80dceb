"""spiritlevel study: run, status, report, export, protocols."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Files, expanded, names
from spiritlevel.cli.writing import check_writable, say_written, write

if TYPE_CHECKING:
    from spiritlevel.results.study import Findings
    from spiritlevel.studies.store import Store
    from spiritlevel.studies.study import Study

GIB = 1024**3
study = typer.Typer(
    help="Networks over a grid: train, measure, and ask which measure ranks them.",
    no_args_is_help=True,
)
app.add_typer(study, name="study")

FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A Python file that defines a Study, or a protocol.")
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Which study of the file, where it defines several.")
]
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Where runs are kept; the file's name with .db if left out."),
]
SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A store, a study's file, or a CSV of networks.")
]


class EngineOption(str, Enum):
    here = "here"
    pool = "pool"
    ray = "ray"


@dataclass(frozen=True)
class Work:
    """Where the networks are trained."""

    engine: Annotated[
        EngineOption,
        typer.Option("--engine", help="This process, a pool of processes, or Ray."),
    ] = EngineOption.here
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="How many at once; all cores if left out.", min=1),
    ] = None
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="Of a Ray cluster; a local one if left out.")
    ] = None
    gpus: Annotated[
        float | None, typer.Option("--gpus", help="GPUs of one training, on Ray.", min=0)
    ] = None
    memory: Annotated[
        float | None, typer.Option("--memory", help="GiB of memory of one training, on Ray.", min=0)
    ] = None
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False

    @property
    def options(self) -> dict[str, Any]:
        """As Study.run takes them."""
        asked = {
            "num_gpus": self.gpus,
            "memory": None if self.memory is None else self.memory * GIB,
        }
        resources = {name: value for name, value in asked.items() if value is not None}
        return {
            "engine": self.engine.value,
            "workers": self.workers,
            "ray_address": self.ray_address,
            "resources": resources or None,
            "retry": self.retry,
        }


@dataclass(frozen=True)
class Question:
    """What is ranked, where the study's own answer is not wanted or not known."""

    outcome: Annotated[
        str | None,
        typer.Option("--outcome", help="The number that is ranked; the study's, or gap."),
    ] = None
    controls: Annotated[
        str | None,
        typer.Option("--controls", help="Axes or numbers held fixed, separated by commas."),
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        """As analyse takes them."""
        chosen = names(self.controls)
        given = {"outcome": self.outcome, "controls": None if chosen is None else tuple(chosen)}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Tables:
    csv: Annotated[Path | None, typer.Option("--csv", help="One line a network, as CSV.")] = None
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="The same as Parquet; needs pyarrow.")
    ] = None


@study.command()
@expanded
def run(
    file: FileArgument,
    work: Work,
    question: Question,
    files: Files,
    store: StoreOption = None,
    name: NameOption = None,
) -> None:
    """Train and measure what the store does not hold yet, and rank the measures.

    Killed at any time, the same command goes on where it was; Ctrl-C keeps what is done. Two of
    them on one store share the work.
    """
    with one_line_errors() as console:
        from spiritlevel.cli.planning import store_of, study_from

        check_writable(files)
        planned, place = study_from(file, name), store_of(file, store)
        with planned.run(place, **work.options) as kept:
            _say(kept, planned, console)
            found = planned.findings(kept, **question.options)
        console.print(found)
        write(found, files, console)


@study.command()
@expanded
def status(file: SourceArgument, store: StoreOption = None, name: NameOption = None) -> None:
    """What is done, what failed and why, what is missing, and about how long it will take."""
    with one_line_errors() as console:
        planned, kept = _source(file, store, name)
        with kept:
            _say(kept, planned, console)


@study.command()
@expanded
def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A store, a study's file, a CSV of networks, or what --json wrote.",
        ),
    ],
    question: Question,
    files: Files,
    store: StoreOption = None,
    name: NameOption = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Rank the measures of networks that are there already, and draw the page."""
    with one_line_errors() as console:
        check_writable(files)
        found = _found(source, store, name, question.options)
        console.print(found)
        write(found, files, console, title=title)


@study.command()
@expanded
def export(
    source: SourceArgument,
    tables: Tables,
    store: StoreOption = None,
    name: NameOption = None,
) -> None:
    """All networks of a store as a table, one line each: configuration, numbers, measures."""
    with one_line_errors() as console:
        from spiritlevel.base.errors import SpiritlevelError

        check_writable(tables)
        if tables.csv is None and tables.parquet is None:
            raise SpiritlevelError("say where to: --csv networks.csv or --parquet networks.parquet")
        planned, kept = _source(source, store, name)
        with kept:
            if tables.csv is not None:
                kept.to_csv(tables.csv, planned)
            if tables.parquet is not None:
                kept.to_parquet(tables.parquet, planned)
        for path in (tables.csv, tables.parquet):
            say_written(path, console)


@study.command()
def protocols() -> None:
    """Studies of the literature that are ready to run, by name."""
    with one_line_errors() as console:
        from spiritlevel.cli.planning import protocols as known
        from spiritlevel.results.terminal import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("name", no_wrap=True)
        table.add_column("study")
        for name, make in known().items():
            table.add_row(name, (make.__doc__ or "").partition("\n")[0])
        console.print(table, highlight=False)


def _source(source: str, store: Path | None, name: str | None) -> tuple[Study | None, Store]:
    """A store alone, or a study with its store."""
    from spiritlevel.cli.planning import is_store, store_of, study_from
    from spiritlevel.studies.store import Store

    if is_store(Path(source)):
        return None, Store(source)
    planned = study_from(source, name)
    return planned, Store(store_of(source, store))


def _found(source: str, store: Path | None, name: str | None, asked: dict[str, Any]) -> Findings:
    from spiritlevel.cli.planning import read_findings
    from spiritlevel.studies.analysis import analyse

    path = Path(source)
    if path.suffix == ".json":
        known = read_findings(path)
        told = {"name": known.name, "outcome": known.outcome, "controls": known.controls}
        return analyse(known.networks, **{**told, **asked}) if asked else known
    if path.suffix == ".csv":
        from spiritlevel.studies.exports import read_csv

        return analyse(read_csv(path), name=path.stem, **asked)
    planned, kept = _source(source, store, name)
    with kept:
        if planned is not None:
            return planned.findings(kept, **asked)
        told = kept.status()
        counts = {"planned": told.planned, "failed": len(told.failed)}
        return analyse(kept.networks(), name=path.stem, **counts, **asked)


def _say(kept: Store, planned: Study | None, console: Any) -> None:
    console.print(str(kept.status(planned)), highlight=False, markup=False)
