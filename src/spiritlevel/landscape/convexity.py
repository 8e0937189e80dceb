"""Where a surface is convex, in all directions and not only in those of the picture."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.scope import set_apart
from spiritlevel.curvature import hessian
from spiritlevel.landscape.axes import centred
from spiritlevel.landscape.directions import Aim, Biases
from spiritlevel.landscape.looks import Look, refuse, two
from spiritlevel.landscape.passes import Passes, passes
from spiritlevel.landscape.telling import told
from spiritlevel.objective import Objective
from spiritlevel.results.landscape import Sheet, Surface
from spiritlevel.results.loop import Done, one_by_one
from spiritlevel.spectral import eigenvalues
from spiritlevel.symmetry import Group, verify


@set_apart()
def convexity(
    objective: Objective,
    kind: str | Sequence[str] = "filter",
    *,
    directions: Sequence[Any] | None = None,
    steps: int = 9,
    span: float = 1.0,
    tol: float = 0.01,
    budget: int = 200,
    biases: Biases = "zero",
    seed: int = 0,
    group: Group | None = None,
) -> Surface:
    """|lambda_min / lambda_max| of the Hessian at every place of a plane (Li et al., 2018).

    0 where the loss is convex; a ratio of 1 has as much curvature downwards as upwards. The error
    of each comes from the residuals of both eigenvalues, which are known to `tol` of the larger or
    after `budget` products.
    """
    refuse(objective, group=group, seed=seed)
    number("tol", tol, above=0)
    number("budget", budget, 2, whole=True)
    look = Look(two(kind, directions), directions, seed, biases, group)
    axis, begin = centred(steps, span), time.perf_counter()
    aim = look.plane(objective)
    these = passes(aim.objective, aim.directions)
    places = [(a, b) for b in axis for a in axis]

    def make(name: str) -> Estimate:
        return _ratio(these, places[int(name)], tol, budget, seed)

    names = [str(i) for i in range(len(places))]
    refused = (SpiritlevelError,)  # where a loss is finite and its Hessian is not
    done = one_by_one(names, make, label="convexity", noun="places", refuses=refused).require()
    return _map(objective, aim, axis, done, begin, seed)


def _map(
    objective: Objective,
    aim: Aim,
    axis: list[float],
    done: Done[Estimate],
    begin: float,
    seed: int,
) -> Surface:
    none = Estimate(math.nan, residual=math.nan)
    known = done.found | dict.fromkeys(done.refused, none)
    found = [known.get(str(i)) for i in range(len(axis) ** 2)]
    same = None if aim.objective is objective else verify(objective, aim.objective)
    values = _rows([None if e is None else e.value for e in found], len(axis))
    errors = _rows([None if e is None else e.error for e in found], len(axis))
    products = sum(e.matvecs for e in found if e is not None)
    unsure = sum(e is not None and e.status is Status.BUDGET for e in found)
    notes = [f"{unsure} of {len(found)} places spent their budget"] if unsure else []
    if done.refused:
        why = next(iter(done.refused.values()))
        notes.append(f"no ratio at {len(done.refused)} of {len(found)} places: {why}")
    about = {"seed": seed, "products": products, "interrupted": done.interrupted}
    return Surface(
        x=tuple(axis),
        y=tuple(axis),
        directions=(aim.told[0], aim.told[1]),
        sheets=(Sheet("as given", values, errors=errors, certificate=same),),
        provenance=told(objective, begin, None, notes=[*aim.notes, *notes], **about),
        quantity="convexity",
    )


def _ratio(
    these: Passes, place: tuple[float, float], tol: float, budget: int, seed: int
) -> Estimate:
    """The ratio and its error at one place; not a number where the loss is none."""
    there = these.at(place)
    if not math.isfinite(there.value()):
        return Estimate(math.nan, residual=math.nan)
    asked = {"tol": tol, "relative_to": "norm", "budget": budget, "seed": seed}
    top, low = eigenvalues(hessian(there, compile=False), k=1, which="both", **asked)
    largest, least = top.value, min(low.value, 0.0)
    status = Status.BUDGET if Status.BUDGET in (top.status, low.status) else Status.CONVERGED
    sure = largest - top.error  # of the curvature upwards, at least
    if not largest > 0:  # none at all, as far as is known
        error = 0.0 if largest + top.error <= 0 else math.inf
        return Estimate(math.inf, residual=error, matvecs=top.matvecs, status=status)
    value = -least / largest if least else 0.0
    error = (low.error + value * top.error) / sure if sure > 0 else math.inf
    return Estimate(value, residual=error, matvecs=top.matvecs, status=status)


def _rows(values: list[float | None], width: int) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(values[i : i + width]) for i in range(0, len(values), width))
