"""spiritlevel claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.loading import refuse
from spiritlevel.cli.options import Files, Trained, expanded
from spiritlevel.cli.writing import check_writable, write

if TYPE_CHECKING:
    from rich.console import Console


@app.command()
@expanded
def claims(
    network: Trained,
    files: Files,
    names: Annotated[
        list[str] | None, typer.Argument(help="Claims by name; all short ones if left out.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Print names and statements, and run nothing.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--long", help="Run those too that take minutes (marked in --list).")
    ] = False,
) -> None:
    """The theorems, executed: each builds its witness and checks it; exit code 1 if one fails.

    Without --model they run on small nets trained on the 8x8 digits. Claims about trainings take
    minutes each: they run with --long, or when they are named.
    """
    with one_line_errors() as console:
        from spiritlevel.theorems import CLAIMS, chosen
        from spiritlevel.theorems import claims as run

        if every and names:
            raise SpiritlevelError("--long runs all claims: leave it out, names run long ones too")
        wanted = list(CLAIMS) if every or (listed and not names) else names or None
        chosen(wanted)  # refuses before anything is loaded
        if listed:
            _list(chosen(wanted), console)
            return
        check_writable(files)
        if network.model is None:
            refuse(network.given, tuple(network.given), "needs --model")
        found = run(None if network.model is None else network.objective(), wanted)
        console.print(found)
        write(found, files, console)
    if not found.holds:
        raise typer.Exit(1)


def _list(names: list[str], console: Console) -> None:
    from spiritlevel.results.terminal import Table
    from spiritlevel.theorems import CLAIMS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("statement")
    for name in names:
        minutes = " (long: takes minutes)" if CLAIMS[name].long else ""
        table.add_row(name, CLAIMS[name].statement + minutes)
    console.print(table, highlight=False)
