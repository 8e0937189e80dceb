"""A series of checkpoints, looked at after the fact."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.landscape.ends import Other, end_of
from spiritlevel.objective import Objective, described, only_objectives
from spiritlevel.results.history import History, Moment
from spiritlevel.results.loop import one_by_one
from spiritlevel.results.provenance import provenance
from spiritlevel.training.sight import Sight
from spiritlevel.training.watch import Log, flat, seen

Checkpoints = Sequence[Other] | Mapping[str, Other]


@set_apart()
def watch_checkpoints(
    objective: Objective,
    checkpoints: Checkpoints,
    measures: Sequence[str] | None = None,
    *,
    rate: float | None = None,
    least: bool = True,
    log: Log | None = None,
    seed: int = 0,
    tol: float = 1e-3,
    rtol: float = 0.05,
    budget: int = 200,
) -> History:
    """What a watch would have seen at each of several checkpoints.

    They are files, state_dicts, flat vectors or Objectives, in a list or by name. Files are named
    as they are called; where every name has a step number they are put in that order, else they
    are numbered as they come. `rate` is the learning rate, if it was one for all. A file that
    cannot be used is left out with the reason. Interrupted, it returns the moments that are done.
    """
    _refuse(objective, rate, least, log)
    begin = time.perf_counter()
    settings = {"seed": seed, "tol": tol, "rtol": rtol, "budget": budget}
    sight = Sight(objective, measures, least=least, **settings)
    given = numbered(named(checkpoints))
    done = one_by_one(
        list(given),
        lambda name: _look(sight, name, *given[name], rate, log),
        label="watch",
        noun="checkpoints",
        refuses=(SpiritlevelError,),
    ).require()
    known = {**described(objective), "optimizer": "", "seed": None, "stopped": "", "put_off": 0}
    known |= {"watched": time.perf_counter() - begin, "watch_seed": seed}
    told = provenance(begin, [*objective.notes, *sight.notes], done, **known)
    return History((), tuple(done.found.values()), told)


def _refuse(objective: Any, rate: Any, least: Any, log: Any) -> None:
    only_objectives(objective)
    doors.one_of("least", least, (True, False))
    if rate is not None:
        doors.number("rate", rate, 0)
    if log is not None:
        doors.function("log", log, "numbers by name and a step")


def _look(
    sight: Sight, name: str, step: int, other: Other, rate: float | None, log: Log | None
) -> Moment:
    started = time.perf_counter()
    point = end_of(sight.objective, other, name)
    found = seen(sight, lambda: point, step, rate, started, name)
    if log is not None:
        log(flat(found), step)
    return found


def named(checkpoints: Any) -> dict[str, Other]:
    """The checkpoints by name: those of files are as short as they can be told apart."""
    if isinstance(checkpoints, Mapping):
        if any(isinstance(value, Tensor) and value.ndim != 1 for value in checkpoints.values()):
            raise SpiritlevelError(
                "checkpoints is one state_dict; give a list of them, or of files: [state_dict, ...]"
            )
        found = {str(name): other for name, other in checkpoints.items()}
    else:
        wrong = isinstance(checkpoints, (str, os.PathLike, Tensor))
        if wrong or not isinstance(checkpoints, Sequence):
            raise SpiritlevelError(
                f"checkpoints is a {type(checkpoints).__name__}; give a list of files, "
                "state_dicts, vectors or Objectives"
            )
        found = dict(zip(_names(list(checkpoints)), checkpoints, strict=True))
    if not found or len(found) < len(checkpoints):
        raise SpiritlevelError(
            "checkpoints is empty; give at least one"
            if not found
            else "checkpoints holds the same file twice; give each once"
        )
    return found


def _names(checkpoints: list[Any]) -> list[str]:
    """Stems of files; folders where all files are called alike, as checkpoint-500/model.pt."""
    files = [Path(c) if isinstance(c, (str, os.PathLike)) else None for c in checkpoints]
    plain = [f"checkpoint {i + 1}" for i in range(len(files))]

    def called(how: Callable[[Path], str]) -> list[str]:
        return [how(f) if f is not None else name for f, name in zip(files, plain, strict=True)]

    ways = (lambda f: f.stem, lambda f: f.parent.name, str)
    return next((n for n in map(called, ways) if len(set(n)) == len(n)), called(str))


def numbered(given: Mapping[str, Other]) -> dict[str, tuple[int, Other]]:
    """Each with its step: from the names, and then in that order, if all have one; else counted."""
    steps = None if _counted(given) else _steps(list(given))
    if steps is None:
        return {name: (i, other) for i, (name, other) in enumerate(given.items())}
    ordered = sorted(zip(steps, given.items(), strict=True), key=lambda pair: pair[0])
    return {name: (step, other) for step, (name, other) in ordered}


def _steps(names: list[str]) -> list[int] | None:
    """Numbers after "step" or "epoch", or the last whole ones; None where two are the same."""
    for pattern in (r"(?i)step[ =_-]*(\d+)", r"(?i)epoch[ =_-]*(\d+)", r"(?<![\d.])(\d+)(?![\d.])"):
        found = [re.findall(pattern, name) for name in names]
        if all(found):
            last = [int(numbers[-1]) for numbers in found]
            return last if len(set(last)) == len(last) else None
    return None


def _counted(given: Mapping[str, Other]) -> bool:
    """Whether the numbers in the names are ours."""
    return all(re.fullmatch(r"checkpoint \d+", name) for name in given)
