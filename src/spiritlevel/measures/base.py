"""What a measure is, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Estimate
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.orbit.minimum import Norm
from spiritlevel.orbit.problem import Kind

Invariance = Literal["unit", "layer"]
INVARIANCES: dict[str, str] = {
    "unit": "no rescaling that keeps the predictions changes it, not even one of a single unit",
    "layer": "no rescaling of whole layers that keeps the predictions changes it",
}


@dataclass(frozen=True)
class Bottom:
    """What a measure shrinks to over the orbit: `factor` times the least norm of a matrix.

    `order` 2 if it does so to second order only. A `signed` one is of the largest eigenvalue, which
    is the norm only where it is the end of larger magnitude.
    """

    norm: Norm
    matrix: Kind = "hessian"
    factor: Callable[[Objective], float] = lambda _: 1.0
    order: Literal[2] | None = None
    signed: bool = False


@dataclass(frozen=True)
class Measure:
    """A number about an objective: how it is computed, where it is from, what it promises.

    `invariances` are promises, held to random group elements by the tests and by every audit;
    "unit" includes "layer". `cost` is in words. `shares` names the computation of Instruments whose
    cost it shares; `standard` ones are measured unasked; `parts` are several numbers. `bottom` is
    what it shrinks to over the orbit, where that is known.
    """

    function: Callable[[Instruments], Estimate | dict[str, Estimate]]
    title: str
    family: str = "own"
    invariances: tuple[Invariance, ...] = ()
    reference: str = ""
    cost: str = ""
    shares: str = ""
    standard: bool = False
    parts: bool = False
    bottom: Bottom | None = None

    def __call__(self, objective: Objective, *, seed: int = 0) -> Estimate:
        """The measure of one objective."""
        found = self.function(Instruments(objective, seed=seed))
        if not isinstance(found, Estimate):
            raise SpiritlevelError(f"{self.title.strip()} is several numbers: use measure()")
        return found

    def promises(self, invariance: Invariance) -> bool:
        return "unit" in self.invariances or invariance in self.invariances
