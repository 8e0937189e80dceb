"""spiritlevel measure."""

from __future__ import annotations

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import (
    Accuracy,
    AllOption,
    Course,
    DryRunOption,
    FamilyOption,
    Files,
    ListOption,
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
    course: Course,
    accuracy: Accuracy,
    files: Files,
    only: OnlyOption = None,
    family: FamilyOption = None,
    every: AllOption = False,
    listed: ListOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Curvature of a model at its parameters: value, error, cost.

    Without --model it runs on a small net trained on the 8x8 digits. --only takes names, patterns
    ("orbit_*") and parameters ("keskar(eps=5e-4)"); --list says what there is.
    """
    with one_line_errors() as console:
        from spiritlevel.audits.forecast import estimate
        from spiritlevel.cli.loading import course_from
        from spiritlevel.measures import measure as fill
        from spiritlevel.measures.asking import asked
        from spiritlevel.measures.catalogue import catalogue

        chosen = _chosen(only, family, every)
        wanted = [one.label for one in asked(chosen)]
        if listed:
            some = None if (only, family) == (None, None) else [one.name for one in asked(chosen)]
            console.print(catalogue(some))
            return
        check_writable(files)
        settings = {"seed": network.seed, **vars(accuracy)}
        objective = network.objective()
        if any(one.entry.needs for one in asked(wanted)) or any(vars(course).values()):
            settings |= course_from(network.model, course, network.seed)
        found = (
            estimate(objective, [one.name for one in asked(wanted)], budget=accuracy.budget)
            if dry_run
            else fill(objective, wanted, **settings)
        )
        console.print(found)
        write(found, files, console)


def _chosen(only: str | None, family: str | None, every: bool) -> list[str]:
    """The measures that are asked for, one way or another; the standard ones if none is."""
    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.measures.asking import of_family
    from spiritlevel.measures.registry import MEASURES, standard

    if sum((only is not None, family is not None, every)) > 1:
        raise SpiritlevelError("--only, --family and --all exclude each other; give one of them")
    if only is not None:
        return names(only) or []
    if family is not None:
        return of_family(names(family) or [])
    return list(MEASURES) if every else standard()
