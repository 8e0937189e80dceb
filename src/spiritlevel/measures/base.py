"""What a measure is, and what it promises."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from spiritlevel.base.doors import number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.matrices import Kind
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.minimum import Norm

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
class Work:
    """What a measure usually takes, in passes over all the data of each kind.

    `rough` is the share of it where an audit asks for fewer digits than at the given point.
    """

    passes: float = 0.0
    gradients: float = 0.0
    products: float = 0.0
    gauss_newton: float = 0.0
    diagonals: float = 0.0
    rough: float = 1.0


@dataclass(frozen=True)
class Measure:
    """A number about an objective: how it is computed, where it is from, what it promises.

    `invariances` are promises, held to random group elements by the tests and by every audit;
    "unit" includes "layer". `cost` is in words, `work` in numbers where they are known. `shares`
    names the computation of Instruments whose cost it shares, and `ends` how many ends of the
    spectrum it needs of it. `standard` ones are measured unasked; `parts` are several numbers. More
    of it is sharper if it `is_sharpness`. `bottom` is what it shrinks to over the orbit, where that
    is known; `points` are those that an audit looks at, where it should not look at more. `reading`
    says what a large value means, where that is not that the network is sharp.
    """

    function: Callable[..., Estimate | dict[str, Estimate]]
    title: str
    family: str = "own"
    invariances: tuple[Invariance, ...] = ()
    reference: str = ""
    cost: str = ""
    shares: str = ""
    standard: bool = False
    parts: bool = False
    ends: Literal[0, 1, 2] = 0
    is_sharpness: bool = False
    bottom: Bottom | None = None
    points: tuple[str, ...] = ()
    work: Work | None = None
    reading: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        """What can be chosen about it, with the defaults."""
        known = list(inspect.signature(self.function).parameters.values())[1:]
        return {p.name: p.default for p in known}

    def __call__(self, objective: Objective, *, seed: int = 0, **parameters: Any) -> Estimate:
        """The measure of one objective, with `parameters` of its own."""
        only_objectives(objective)
        seeded(seed)
        self.accept(parameters)
        found = self.function(Instruments(objective, seed=seed), **parameters)
        if not isinstance(found, Estimate):
            raise SpiritlevelError(f"{self.title} is several numbers: use measure()")
        return found

    def accept(self, parameters: dict[str, Any]) -> None:
        """Refuse what it does not have, and what is no positive number in the place of one."""
        for name, value in parameters.items():
            one_of(f"the parameter of {self.title}", name, self.parameters)
            if isinstance(self.parameters[name], float):
                number(name, value, above=0)

    def promises(self, invariance: Invariance) -> bool:
        return "unit" in self.invariances or invariance in self.invariances
