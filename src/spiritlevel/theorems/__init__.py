"""The theorems, executed: each builds its witness and checks it, on a network of yours too."""

from __future__ import annotations

import time
from collections.abc import Iterable

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.results.claims import Checked, Claims, Finding
from spiritlevel.results.loop import one_by_one
from spiritlevel.results.provenance import provenance
from spiritlevel.theorems.aware import AWARE
from spiritlevel.theorems.base import Claim
from spiritlevel.theorems.boxes import BOXES
from spiritlevel.theorems.coordinates import COORDINATES
from spiritlevel.theorems.fitting import FITTING
from spiritlevel.theorems.noise import NOISE
from spiritlevel.theorems.published import PUBLISHED
from spiritlevel.theorems.scaling import SCALING
from spiritlevel.theorems.searching import SEARCHING
from spiritlevel.theorems.setting import Setting
from spiritlevel.theorems.sharpness import SHARPNESS

__all__ = ["CLAIMS", "Claim", "Finding", "Setting", "chosen", "claims"]

CLAIMS: dict[str, Claim] = {
    **SCALING,
    **SHARPNESS,
    **COORDINATES,
    **FITTING,
    **BOXES,
    **PUBLISHED,
    **SEARCHING,
    **AWARE,
    **NOISE,
}


def chosen(names: str | Iterable[str] | None) -> list[str]:
    """The names of these claims, or of all that are not long; an unknown one is refused."""
    if names is None:
        return [name for name, claim in CLAIMS.items() if not claim.long]
    found = doors.names("names", names)
    unknown = [name for name in found if name not in CLAIMS]
    if unknown:
        raise SpiritlevelError(f"no claim {unknown[0]!r}; there are: {', '.join(CLAIMS)}")
    return found


def left_out(names: str | Iterable[str] | None) -> list[str]:
    """Which long claims do not run unless they are named, as a note; none where some are named."""
    long = [name for name, claim in CLAIMS.items() if claim.long]
    if names is not None or not long:
        return []
    return [f"not run, since they take minutes: {', '.join(long)}"]


@set_apart()
def claims(
    objective: Objective | None = None,
    names: str | Iterable[str] | None = None,
    *,
    figures: bool = True,
) -> Claims:
    """Build and check claims on an objective, or on the net of the digits; if None all short ones.

    The long ones take minutes and run when they are named; the notes say which were left out. A
    claim that does not apply to the given network says why and is not counted; one about an example
    of its own is shown there, and says nothing about the network. Ctrl-C keeps the rest.
    """
    if objective is not None:
        only_objectives(objective)
    wanted, setting, begin = chosen(names), Setting(objective), time.perf_counter()
    done = one_by_one(
        wanted, lambda name: _run(name, setting, figures), label="claims", noun="claims"
    )
    network = "the net of the digits"
    if objective is not None:
        network = repr(objective).removeprefix("Objective(").removesuffix(")")
    return Claims(
        network,
        tuple(row for row, _ in done.found.values()),
        {name: svg for name, (_, svg) in done.found.items() if svg},
        provenance(begin, left_out(names), done),
    )


def _run(name: str, setting: Setting, figures: bool) -> tuple[Checked, str]:
    claim, begin, finding, skipped, svg = CLAIMS[name], time.perf_counter(), None, "", ""
    try:
        witness = claim.construction(setting)
        finding = claim.check(**witness)
        if figures and claim.figure is not None:
            svg = claim.figure(**witness)
    except SpiritlevelError as error:
        if setting.given is None or claim.about == "example":
            raise
        skipped = f"does not apply: {error}"
    found = Checked(
        name,
        claim.statement,
        claim.source,
        claim.built,
        claim.about,
        finding,
        round(time.perf_counter() - begin, 3),
        skipped,
        claim.caption if svg else "",
    )
    return found, svg
