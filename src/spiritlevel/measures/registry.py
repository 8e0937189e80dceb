"""MEASURES: every number by its name, with its family, its promises, its source and its price."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Sequence
from typing import Any

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError, writable
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures import (
    adaptive,
    attention,
    ball,
    basis,
    counts,
    course,
    curvature,
    description,
    entropy,
    invariant,
    keskar,
    laplace,
    least,
    margins,
    metric,
    noise,
    normalized,
    norms,
    pacbayes,
    paths,
    spectrum,
    stability,
    volumes,
)
from spiritlevel.measures.base import INVARIANCES, Invariance, Measure
from spiritlevel.measures.instruments import Instruments

WORDS = ("title", "family", "reference", "cost")

FAMILIES = (
    *(curvature, spectrum, ball, keskar, adaptive, invariant, normalized, metric, attention, basis),
    *(noise, pacbayes, entropy, laplace, volumes, description, paths, norms, margins, counts),
    *(course, stability, least),
)
MEASURES: dict[str, Measure] = {
    name: entry for family in FAMILIES for name, entry in family.ENTRIES.items()
}


def standard() -> list[str]:
    """The measures that are made unasked."""
    return [name for name, entry in MEASURES.items() if entry.standard]


def needs_both_ends(names: Sequence[str]) -> bool:
    """Whether some measure needs the smallest eigenvalue too, which takes most of the products."""
    return any(MEASURES[name].ends == 2 for name in names)


def checked(names: Sequence[str], *, single: bool = False) -> list[str]:
    """The names, all of them known, each once; what fits a pattern; one number each if `single`."""
    if isinstance(names, str):
        raise SpiritlevelError(f"measures is {names!r}; give a list of names: [{names!r}]")
    if isinstance(names, Sequence) and not names:
        raise SpiritlevelError(f"no measure is named; there are: {', '.join(MEASURES)}")
    found: dict[str, None] = {}
    for name in doors.names("measures", names):
        some = [name] if name in MEASURES else fnmatch.filter(MEASURES, name)
        if not some:
            titles = {n: entry.title for n, entry in MEASURES.items() if not entry.parts}
            guess = doors.meant(name, MEASURES, titles)
            raise SpiritlevelError(
                f"unknown measure {name!r}{guess}; give one of sl.MEASURES (in a shell: measure "
                "--list)"
            )
        if single and name in MEASURES and MEASURES[name].parts:
            raise SpiritlevelError(f"{name} is several numbers; choose others")
        found |= dict.fromkeys(one for one in some if not (single and MEASURES[one].parts))
    return list(found)


def register(
    name: str,
    *,
    title: str = "",
    family: str = "own",
    invariances: Sequence[Invariance] = (),
    reference: str = "",
    cost: str = "",
    is_sharpness: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that makes a function of an Objective a measure: @register("my_measure").

    The function returns a number or an Estimate. Every audit holds the declared invariances to the
    network's symmetries. More of it is sharper if it `is_sharpness`.
    """
    for key, text in zip(WORDS, (title, family, reference, cost), strict=True):
        doors.a(key, text, str, "a text")
    doors.names("name", name if isinstance(name, str) else None)
    if name != writable(name):
        raise SpiritlevelError(f"name={name!r} cannot be written to a file: choose another name")
    if name in MEASURES:
        raise SpiritlevelError(f"there is a measure {name!r} already; choose another name")
    doors.a("invariances", invariances, (tuple, list), f"some of {', '.join(INVARIANCES)}")
    for invariance in invariances:
        doors.one_of("invariances", invariance, INVARIANCES)

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(instruments: Instruments, **parameters: Any) -> Estimate:
            return tensor_doors.estimate(name, function(instruments.objective, **parameters))

        shown = title or name.replace("_", " ")
        MEASURES[name] = Measure(
            *(measured, shown, family, tuple(invariances), reference, cost),
            is_sharpness=is_sharpness,
        )
        return function

    return add
