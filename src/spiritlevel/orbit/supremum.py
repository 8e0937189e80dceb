"""How large a measure can be made along the orbit: a witness, or why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, format_value
from spiritlevel.base.operator import Operator
from spiritlevel.base.scope import set_apart
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.search import AnyMeasure, number, search
from spiritlevel.spectral import Eigenpairs, eigenvalues, frobenius, trace
from spiritlevel.symmetry import Certificate, Group
from spiritlevel.symmetry.find import group_of
from spiritlevel.symmetry.gaps import rounding
from spiritlevel.witnesses.sharpened import Sharpened, sharpen

Outcome = Literal["reached", "bounded", "not reached"]
NORMS: dict[str, AnyMeasure] = {
    "spectral": lambda o: abs(eigenvalues(hessian(o), which="magnitude")[0].value),
    "trace": lambda o: trace(hessian(o)),
    "frobenius": lambda o: frobenius(hessian(o)),
}
DOUBLINGS = 4  # each time that a witness of the Hessian is not sharp enough for the measure
TRIES = 6
SURE = 3  # errors: a witness reaches a target if it does so beyond them
STRENGTHS = (0.5, 1.0, 1.0)  # of the random elements that a promise is held to


@dataclass(frozen=True)
class Supremum:
    """Whether a measure reaches a target somewhere on the orbit.

    "reached": `objective` is the witness, with its `certificate`. "bounded": the orbit has no
    larger value, for the `reason`. "not reached": the search ended, which proves nothing.
    """

    outcome: Outcome
    target: float
    value: float
    reason: str
    objective: Objective | None = None
    certificate: Certificate | None = None

    def __str__(self) -> str:
        value = format_value(self.value, 1e-3 * abs(self.value))
        if self.outcome == "reached":
            text = f"{value} >= {self.target:g}, by {self.reason}"
            return text if self.certificate is None else f"{text}\n{self.certificate}"
        if self.outcome == "bounded":
            return f"bounded on this orbit: {self.reason} ({value})"
        return f"{self.target:g} was not reached: {value} is the largest found; {self.reason}"


@set_apart()
def supremum(
    objective: Objective,
    group: Group | None = None,
    measure: str | AnyMeasure = "spectral",
    *,
    target: float,
    seed: int = 0,
    operator: Operator | None = None,
    pairs: Eigenpairs | None = None,
) -> Supremum:
    """A network with the same predictions at which a measure is at least `target`.

    `measure` is "spectral", "trace" or "frobenius" (of the Hessian: a closed form, any target), or
    any function of an Objective, such as an entry of MEASURES. `operator` is the Hessian, `pairs`
    are its largest eigenpairs, where they are known already.
    """
    only_objectives(objective)
    doors.number("target", target, above=0)
    tensor_doors.seeded(seed)
    doors.a("operator", operator, (Operator, type(None)), "the Hessian, hessian(objective)")
    kinds = (Eigenpairs, type(None))
    doors.a("pairs", pairs, kinds, "what sl.eigenpairs returned of this Hessian")
    if isinstance(measure, str) and measure not in NORMS:
        raise SpiritlevelError(
            f"measure is {measure!r}; choose one of {', '.join(NORMS)}, or give a function of an "
            f"Objective, such as MEASURES[{measure!r}]"
        )
    function = NORMS[measure] if isinstance(measure, str) else measure
    doors.function("measure", function, "an Objective, such as an entry of MEASURES")
    group = group_of(objective, group)
    here = number(function(objective))
    if here >= target:
        return Supremum("reached", target, here, "the given point", objective)
    if not group.dim:
        return Supremum("bounded", target, here, "no rescaling keeps the predictions")
    if {"unit", "diagonal"} & set(getattr(measure, "invariances", ())):
        return _promised(objective, group, function, here, target, seed)
    known = {"operator": operator, "pairs": pairs}
    return _pushed(objective, group, function, here, target, seed, known)


def _promised(
    objective: Objective, group: Group, function: AnyMeasure, here: float, target: float, seed: int
) -> Supremum:
    """A measure that promises to be invariant, held to it."""
    base = function(objective)
    largest = 0.0
    for i, strength in enumerate(STRENGTHS):
        twin = group.apply(objective, group.random(seed + i, strength))
        found: Any = function(twin)
        noise = sum(3 * e.error for e in (base, found) if isinstance(e, Estimate))
        change = abs(number(found) - here)
        noise += 1e-3 * abs(here)
        if change > noise and change > noise + _rounding(function, objective, twin):
            raise SpiritlevelError(
                f"the measure promises to be invariant but moved from {here:.6g} to "
                f"{number(found):.6g} with identical predictions"
            )
        largest = max(largest, change / abs(here) if here else change)
    reason = f"invariant, as promised (a change of {largest:.0e} over {len(STRENGTHS)} elements)"
    return Supremum("bounded", target, here, reason)


def _rounding(function: AnyMeasure, *points: Objective) -> float:
    """What it makes of a difference between two points: all there is where a measure is zero."""
    return SURE * sum(rounding(lambda o: number(function(o)), point) for point in points)


def _pushed(
    objective: Objective,
    group: Group,
    function: AnyMeasure,
    here: float,
    target: float,
    seed: int,
    known: dict[str, Any],
) -> Supremum:
    """Along the way that sharpens the Hessian without bound, then wherever a search leads."""
    best, aim = here, max(target, 1.0)
    for _ in range(TRIES):
        witness = _sharpened(objective, group, aim, known)
        if witness is None:
            break
        found = function(witness.objective)
        value = number(found)
        noise = SURE * found.error if isinstance(found, Estimate) else 0.0
        if value - noise >= target:
            reason = f"scaling {witness.generator}"
            return Supremum(
                "reached", target, value, reason, witness.objective, witness.certificate
            )
        best = max(best, value) if math.isfinite(value) else best
        aim *= 2.0 ** (2 * DOUBLINGS)
    span = search(objective, group, function, seed=seed)
    if span.high >= target:
        twin = group.apply(objective, span.high_at)
        certificate = group.verify(objective, twin).require()
        return Supremum("reached", target, span.high, "a search", twin, certificate)
    reason = "a search along the orbit, which proves nothing"
    return Supremum("not reached", target, max(best, span.high), reason)


def _sharpened(
    objective: Objective, group: Group, aim: float, known: dict[str, Any]
) -> Sharpened | None:
    try:
        return sharpen(objective, target=aim, group=group, **known)
    except SpiritlevelError:  # no curvature to sharpen, or beyond the range of the numbers
        return None
