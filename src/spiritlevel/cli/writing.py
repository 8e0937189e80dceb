"""Results as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spiritlevel.cli.options import Files

if TYPE_CHECKING:
    from rich.console import Console

    from spiritlevel.results import Result


OTHERS = (".json", ".csv", ".pdf", ".png", ".jpg", ".svg", ".md", ".txt")  # which are no pages


def check_writable(files: object) -> None:
    """Refuse a path that cannot be written to before the work is done, not after."""
    from spiritlevel.base.errors import SpiritlevelError

    for name, path in vars(files).items():
        if path is None:
            continue
        option = name.replace("_", "-")
        if path.is_dir():
            raise SpiritlevelError(f"--{option} is {path}, a folder; name a file in it")
        if not path.resolve().parent.is_dir():
            raise SpiritlevelError(f"--{option} is {path}; there is no folder {path.parent}")
        if option == "out" and path.suffix.lower() in OTHERS:
            known = path.suffix in (".json", ".csv")
            way = f"use --{path.suffix[1:]} {path}" if known else "name a .html file"
            raise SpiritlevelError(f"--out is {path}, but writes an HTML page; {way}")


def write(found: Result, files: Files, console: Console, *, title: str | None = None) -> None:
    """A result as the files that were asked for."""
    from spiritlevel.report import write_report

    if files.json is not None:
        found.to_json(files.json)
    if files.csv is not None:
        found.to_csv(files.csv)
    if files.out is not None:
        write_report(found, files.out, title=title)
    for path in (files.json, files.csv, files.out):
        say_written(path, console)


def say_written(path: Path | None, console: Console) -> None:
    if path is not None:
        console.print(f"written to  {path}", highlight=False, markup=False)
