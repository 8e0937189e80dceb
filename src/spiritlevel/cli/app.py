"""The application that commands join, and errors in one line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from spiritlevel.base.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

ORDER = (
    *("audit", "compare", "measure", "symmetries", "sharpen", "landscape", "train", "watch"),
    *("bound", "study", "claims", "report"),
)


class InOrder(TyperGroup):
    """The main job first, as in the README; commands of other packages last."""

    def list_commands(self, ctx: Any) -> list[str]:
        there = super().list_commands(ctx)
        return sorted(there, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


app = typer.Typer(
    cls=InOrder,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Is that minimum flat, and does the answer mean anything?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spiritlevel {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Measure the flatness of a trained PyTorch model, every number with an error bar."""


def join(points: Iterable[EntryPoint]) -> None:
    """Commands of other packages (functions as typer takes them); one that fails is left out."""
    for point in points:
        try:
            app.command(point.name)(point.load())
        except Exception as error:  # of somebody else's package
            typer.echo(f"spiritlevel: the command {point.name} cannot be had: {error}", err=True)


@contextlib.contextmanager
def one_line_errors() -> Iterator[Console]:
    """What is wrong in one line, and no traceback."""
    from spiritlevel.base.errors import SpiritlevelError, in_one_line
    from spiritlevel.results.terminal import Console

    try:
        yield Console()
    except (SpiritlevelError, OSError) as error:
        Console(stderr=True).print(f"[bold red]spiritlevel:[/] {escaped(str(error))}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "before the first row was done"
        Console(stderr=True).print(f"interrupted: {escaped(said)}")
        raise typer.Exit(130) from None
    except Exception as error:  # of the user's model or data: no traceback unless asked for
        if os.environ.get("SPIRITLEVEL_DEBUG"):
            raise
        Console(stderr=True).print(
            f"[bold red]spiritlevel:[/] {escaped(in_one_line(error))}\n"
            "(SPIRITLEVEL_DEBUG=1 shows where)"
        )
        raise typer.Exit(2) from None


def escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
