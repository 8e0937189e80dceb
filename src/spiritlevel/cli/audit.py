"""spiritlevel audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import (
    Accuracy,
    DryRunOption,
    Files,
    OnlyOption,
    Trained,
    expanded,
    names,
)
from spiritlevel.cli.writing import check_writable, write


@dataclass(frozen=True)
class Rougher(Accuracy):
    rtol: Annotated[
        float, typer.Option("--rtol", help="Relative standard error of traces.", min=0)
    ] = 0.1


@app.command()
@expanded
def audit(
    network: Trained,
    accuracy: Rougher,
    files: Files,
    only: OnlyOption = None,
    strength: Annotated[float, typer.Option(help="Of the random rescaling, in log-scales.")] = 1.0,
    dry_run: DryRunOption = False,
) -> None:
    """Which flatness numbers mean something for this network: what moves, what does not.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.audits.audit import DEFAULT
        from spiritlevel.audits.audit import audit as make
        from spiritlevel.audits.forecast import estimate
        from spiritlevel.measures.registry import checked

        check_writable(files)
        wanted = checked(DEFAULT if only is None else names(only) or [], single=True)
        objective = network.objective()
        settings = {"strength": strength, "seed": network.seed, **vars(accuracy)}
        drawn = files.out is not None or files.json is not None
        found = (
            estimate(objective, wanted, audit=True, budget=accuracy.budget, way=drawn)
            if dry_run
            else make(objective, wanted, way=drawn, **settings)
        )
        console.print(found)
        write(found, files, console)
