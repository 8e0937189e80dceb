"""spiritlevel measure."""

from __future__ import annotations

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


@app.command()
@expanded
def measure(
    network: Trained,
    accuracy: Accuracy,
    files: Files,
    only: OnlyOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Curvature of a model at its parameters: value, error, cost.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.audits.forecast import estimate
        from spiritlevel.measures import measure as fill
        from spiritlevel.measures.registry import checked, standard

        check_writable(files)
        wanted = checked(standard() if only is None else names(only) or [])
        settings = {"seed": network.seed, **vars(accuracy)}
        objective = network.objective()
        found = (
            estimate(objective, wanted, budget=accuracy.budget)
            if dry_run
            else fill(objective, wanted, **settings)
        )
        console.print(found)
        write(found, files, console)
