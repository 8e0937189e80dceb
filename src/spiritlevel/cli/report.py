"""spiritlevel report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Files, expanded
from spiritlevel.cli.writing import check_writable, write


@app.command()
@expanded
def report(
    files: Files,
    result: Annotated[Path, typer.Argument(help="What a command wrote with --json.")],
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Print a result that was written as JSON, and draw its page; the model is not needed."""
    with one_line_errors() as console:
        from spiritlevel.results import load

        check_writable(files)
        found = load(result)
        console.print(found)
        write(found, files, console, title=title)
