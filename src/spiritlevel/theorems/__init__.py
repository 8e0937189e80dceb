"""The theorems, executed: each builds its witness and checks it, on a network of yours too."""

from __future__ import annotations

import time
from collections.abc import Iterable

from spiritlevel.errors import SpiritlevelError
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.progress import bar
from spiritlevel.scope import set_apart
from spiritlevel.theorems.base import Claim, Claims, Outcome, Result
from spiritlevel.theorems.coordinates import COORDINATES
from spiritlevel.theorems.fitting import FITTING
from spiritlevel.theorems.scaling import SCALING
from spiritlevel.theorems.setting import Setting
from spiritlevel.theorems.sharpness import SHARPNESS

__all__ = ["CLAIMS", "Claim", "Claims", "Outcome", "Result", "Setting", "claims"]

CLAIMS: dict[str, Claim] = {**SCALING, **SHARPNESS, **COORDINATES, **FITTING}


@set_apart()
def claims(
    objective: Objective | None = None,
    names: str | Iterable[str] | None = None,
    *,
    figures: bool = True,
) -> Claims:
    """Build and check claims on an objective, or on the net of the digits; all of them if None.

    A claim that does not apply to the given network says why and is not counted.
    """
    if objective is not None:
        only_objectives(objective)
    chosen = [names] if isinstance(names, str) else list(CLAIMS if names is None else names)
    unknown = [name for name in chosen if name not in CLAIMS]
    if unknown:
        raise SpiritlevelError(f"no claim {unknown[0]!r}; there are: {', '.join(CLAIMS)}")
    setting, begin, drawn, results = Setting(objective), time.perf_counter(), {}, []
    with bar(len(chosen), "claims") as progress:
        for name in chosen:
            progress.set_postfix_str(name)
            result, svg = _run(name, setting, figures)
            results.append(result)
            if svg:
                drawn[name] = svg
            progress.update()
    network = "the net of the digits" if objective is None else repr(objective)
    return Claims(tuple(results), network, time.perf_counter() - begin, drawn)


def _run(name: str, setting: Setting, figures: bool) -> tuple[Result, str]:
    claim, begin, outcome, skipped, svg = CLAIMS[name], time.perf_counter(), None, "", ""
    if claim.own and setting.given is not None:
        skipped = claim.own
    else:
        try:
            witness = claim.construction(setting)
            outcome = claim.check(**witness)
            if figures and claim.figure is not None:
                svg = claim.figure(**witness)
        except SpiritlevelError as error:
            if setting.given is None:
                raise
            skipped = f"does not apply: {error}"
    seconds = time.perf_counter() - begin
    found = Result(
        name, claim.statement, claim.source, claim.built, outcome, round(seconds, 3), skipped
    )
    return found, svg
