"""What a measure is, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Estimate
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective

Invariance = Literal["unit", "layer"]
INVARIANCES: dict[str, str] = {
    "unit": "no rescaling that keeps the predictions changes it, not even one of a single unit",
    "layer": "no rescaling of whole layers that keeps the predictions changes it",
}


@dataclass(frozen=True)
class Measure:
    """A number about an objective: how it is computed, where it is from, what it promises.

    `invariances` are promises, held to random group elements by the tests and by every audit;
    "unit" includes "layer". `cost` is in words. `shares` names the computation of Instruments whose
    cost it shares; `standard` ones are measured unasked; `parts` are several numbers.
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

    def __call__(self, objective: Objective, *, seed: int = 0) -> Estimate:
        """The measure of one objective."""
        found = self.function(Instruments(objective, seed=seed))
        if not isinstance(found, Estimate):
            raise SpiritlevelError(f"{self.title.strip()} is several numbers: use measure()")
        return found

    def promises(self, invariance: Invariance) -> bool:
        return "unit" in self.invariances or invariance in self.invariances
