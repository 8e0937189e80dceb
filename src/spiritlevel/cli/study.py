"""spiritlevel study: run, status, report, export, protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Files, expanded, names
from spiritlevel.cli.writing import check_writable, say_written, write

if TYPE_CHECKING:
    from spiritlevel.results.study import Findings, Network
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
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Where runs are kept; the file's name with .db if left out."),
]
SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A store, a study's file, or a protocol.")
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
        self._refuse()
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

    def _refuse(self) -> None:
        """In the words of the shell, what Study.run would say in Python's."""
        from spiritlevel.base.errors import SpiritlevelError

        here, ray = self.engine is EngineOption.here, self.engine is EngineOption.ray
        if here and self.workers not in (None, 1):
            raise SpiritlevelError(
                f"--workers {self.workers} needs --engine pool or --engine ray: this process is one"
            )
        only = {"--ray-address": self.ray_address, "--gpus": self.gpus, "--memory": self.memory}
        given = [option for option, value in only.items() if value is not None]
        if given and not ray:
            raise SpiritlevelError(f"{given[0]} needs --engine ray")


@dataclass(frozen=True)
class Plan:
    """Which study, where a file has several or a protocol two sizes."""

    name: Annotated[
        str | None, typer.Option("--name", help="Which study of the file, of several.")
    ] = None
    full: Annotated[
        bool, typer.Option("--full", help="A protocol on Fashion-MNIST, not on the small digits.")
    ] = False
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="How many of a protocol; 5 if left out.", min=1)
    ] = None

    def study(self, where: str) -> Study:
        from spiritlevel.cli.planning import study_from

        return study_from(where, self.name, full=self.full, seeds=self.seeds)

    def refuse(self, source: str, what: str, store: Path | None) -> None:
        """Where networks are read, no study is chosen."""
        from spiritlevel.base.errors import SpiritlevelError

        asked = {"--store": store, "--name": self.name, "--seeds": self.seeds}
        given = [option for option, value in asked.items() if value is not None]
        given += ["--full"] if self.full else []
        if given:
            raise SpiritlevelError(
                f"{given[0]} is for the file of a study or a protocol, and {source} is {what}: "
                "leave it out"
            )


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

    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only networks with this value of an axis: width=32."),
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        """As analyse takes them."""
        from spiritlevel.cli.planning import conditions

        chosen = names(self.controls)
        given = {"outcome": self.outcome, "controls": None if chosen is None else tuple(chosen)}
        given["where"] = conditions(self.where) if self.where else None
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
    plan: Plan,
    work: Work,
    question: Question,
    files: Files,
    store: StoreOption = None,
) -> None:
    """Train and measure what the store does not hold yet, and rank the measures.

    Killed at any time, the same command goes on where it was; Ctrl-C keeps what is done. Two of
    them on one store share the work.
    """
    with one_line_errors() as console:
        from spiritlevel.base.errors import SpiritlevelError
        from spiritlevel.cli.planning import reported, store_of

        check_writable(files)
        planned, place, asked = plan.study(file), store_of(file, store), question.options
        with planned.run(place, **work.options) as kept:
            _say(kept, planned, console)
            told = reported(file, planned, kept)
            for line in told:
                console.print(line, highlight=False, markup=False)
            try:
                found = planned.findings(kept, **asked)
            except SpiritlevelError as error:
                if not told or any(vars(files).values()):
                    raise
                console.print(f"no ranking: {error}", highlight=False, markup=False)
                return
        console.print(found)
        write(found, files, console)


@study.command()
@expanded
def status(file: SourceArgument, plan: Plan, store: StoreOption = None) -> None:
    """What is done, what failed and why, what is missing, and about how long it will take."""
    with one_line_errors() as console:
        planned, kept = _source(file, store, plan)
        with kept:
            _say(kept, planned, console)


@study.command()
@expanded
def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A store, a study's file, a protocol, a CSV of networks, or what --json wrote.",
        ),
    ],
    plan: Plan,
    question: Question,
    files: Files,
    store: StoreOption = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Rank the measures of networks that are there already, and draw the page."""
    with one_line_errors() as console:
        check_writable(files)
        found = _found(source, store, plan, question.options)
        console.print(found)
        write(found, files, console, title=title)


@study.command()
@expanded
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A store, a study's file, a protocol, or a CSV of networks."
        ),
    ],
    plan: Plan,
    tables: Tables,
    store: StoreOption = None,
) -> None:
    """All networks of a store as a table, one line each: configuration, numbers, measures."""
    with one_line_errors() as console:
        from spiritlevel.base.errors import SpiritlevelError
        from spiritlevel.studies.exports import to_csv, to_parquet

        check_writable(tables)
        if tables.csv is None and tables.parquet is None:
            raise SpiritlevelError("say where to: --csv networks.csv or --parquet networks.parquet")
        networks = _networks(source, store, plan)
        if tables.csv is not None:
            to_csv(networks, tables.csv)
        if tables.parquet is not None:
            to_parquet(networks, tables.parquet)
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
        table.add_column("after", style="dim")
        for name, one in known().items():
            table.add_row(name, one.title, one.source)
        console.print(table, highlight=False)


def _source(source: str, store: Path | None, plan: Plan) -> tuple[Study | None, Store]:
    """A store alone, or a study with its store."""
    from spiritlevel.cli.planning import is_store, store_of
    from spiritlevel.studies.store import Store

    if is_store(Path(source)):
        plan.refuse(source, "a store", store)
        return None, Store(source)
    planned = plan.study(source)
    return planned, Store(store_of(source, store))


def _networks(source: str, store: Path | None, plan: Plan) -> Sequence[Network]:
    from spiritlevel.studies.exports import read_csv

    if Path(source).suffix == ".csv":
        plan.refuse(source, "a CSV of networks", store)
        return read_csv(source)
    planned, kept = _source(source, store, plan)
    with kept:
        if planned is None:
            kept.refuse_mixtures()
        return kept.networks(planned)


def _found(source: str, store: Path | None, plan: Plan, asked: dict[str, Any]) -> Findings:
    from spiritlevel.cli.planning import read_findings
    from spiritlevel.studies.analysis import analyse

    path = Path(source)
    if path.suffix == ".json":
        plan.refuse(source, "what --json wrote", store)
        known = read_findings(path)
        told = {"name": known.name, "outcome": known.outcome, "controls": known.controls}
        told |= {name: known.provenance[name] for name in ("planned", "failed")}
        return analyse(known.networks, **{**told, **asked}) if asked else known
    if path.suffix == ".csv":
        return analyse(_networks(source, store, plan), name=path.stem, **asked)
    planned, kept = _source(source, store, plan)
    with kept:
        if planned is not None:
            return planned.findings(kept, **asked)
        kept.refuse_mixtures()
        failed = len(kept.status().failed) or None  # of how many, a store alone does not know
        return analyse(kept.networks(), name=path.stem, failed=failed, **asked)


def _say(kept: Store, planned: Study | None, console: Any) -> None:
    console.print(str(kept.status(planned)), highlight=False, markup=False)
