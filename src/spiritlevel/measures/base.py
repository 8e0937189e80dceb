"""What a measure is, and what it promises."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spiritlevel.base.doors import number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.interrupts import parts
from spiritlevel.base.matrices import Kind
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.measures.given import Given, refuse_given
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.minimum import Norm

Invariance = Literal["layer", "unit", "diagonal", "permutation", "output"]
INVARIANCES: dict[str, str] = {
    "layer": "no rescaling of whole layers that keeps the predictions changes it",
    "unit": "nor does one of single units",
    "diagonal": "nor do other units of measurement for every parameter",
    "permutation": "renumbering hidden units does not change it",
    "output": "multiplying the last layer, and with it all outputs, does not change it",
}
STRONGER: dict[str, tuple[str, ...]] = {"layer": ("unit", "diagonal"), "unit": ("diagonal",)}

PERMUTATION: tuple[Invariance, ...] = ("permutation",)
LAYER: tuple[Invariance, ...] = ("layer", "permutation")
UNIT: tuple[Invariance, ...] = ("unit", "permutation")
DIAGONAL: tuple[Invariance, ...] = ("diagonal", "permutation")

Need = Literal["init", "losses"]
NEEDS: dict[str, str] = {
    "init": "the weights before training",
    "losses": "the training losses, one for each step",
}

DINH, JIANG = "Dinh et al. (2017)", "Jiang et al. (2020)"
TRACE, TOP = "20 to 200 products", "10 to 50 products"
SUM = f"an exact diagonal, else {TRACE}"


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


PROBES = Work(products=30, rough=1 / 3)
# where diag H is known: a trace, and a norm beside it
SUMMED, SQUARED = Work(diagonals=1), Work(products=12, diagonals=1, rough=2 / 3)
ONE_END, BOTH_ENDS = Work(products=12), Work(products=50)
TWO: tuple[str, ...] = ("here", "moved")  # points of an audit, for what takes many products


@dataclass(frozen=True)
class Measure:
    """A number about an objective: how it is computed, where it is from, what it promises.

    `invariances` are promises, held to random group elements by the tests and by every audit;
    "diagonal" includes "unit" includes "layer". `needs` is what has to be given beside the
    objective. `cost` is in words, `work` in numbers where they are known. `shares`
    names the computation of Instruments whose cost it shares, and `ends` how many ends of the
    spectrum it needs of it. `exact` is its work where diag H is known exactly. `standard` ones are
    measured unasked; `parts` are several numbers. More of it is sharper if it `is_sharpness`.
    `bottom` is what it shrinks to over the orbit, where that is known; `points` are those that an
    audit looks at, where it should not look at more. `reading` says what a large value means, where
    that is not that the network is sharp. A `bound` may lie far from what it bounds: two of them
    put no networks in order. One that `keeps` what is done when Ctrl-C comes is an estimate all the
    same, with a wider error.
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
    exact: Work | None = None
    reading: str = ""
    needs: tuple[Need, ...] = ()
    bound: bool = False
    keeps: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """What can be chosen about it, with the defaults."""
        known = list(inspect.signature(self.function).parameters.values())[1:]
        return {p.name: p.default for p in known}

    def __call__(
        self,
        objective: Objective,
        *,
        seed: int = 0,
        init: Given = None,
        losses: Sequence[float] | None = None,
        **parameters: Any,
    ) -> Estimate:
        """The measure of one objective, with `parameters` of its own."""
        only_objectives(objective)
        seeded(seed)
        self.accept(parameters)
        refuse_given(objective, init, losses)
        tools = Instruments(objective, seed=seed, init=init, losses=losses)
        found = self.row(tools, **parameters)
        if not isinstance(found, Estimate):
            raise SpiritlevelError(f"{self.title} is several numbers: use measure()")
        return found

    def row(self, tools: Instruments, **parameters: Any) -> Estimate | dict[str, Estimate]:
        """Its value, which is not made of estimates that are not done."""
        with contextlib.nullcontext() if self.keeps else parts():
            return self.function(tools, **parameters)

    def accept(self, parameters: dict[str, Any]) -> None:
        """Refuse what it does not have, and what is of another kind than its default."""
        for name, value in parameters.items():
            one_of(f"the parameter of {self.title}", name, self.parameters)
            default = self.parameters[name]
            if isinstance(default, bool):
                one_of(name, value, (True, False))
            elif isinstance(default, int):
                number(name, value, 1, whole=True)
            elif isinstance(default, float):
                number(name, value, above=0)

    def promises(self, invariance: Invariance) -> bool:
        ways = (invariance, *STRONGER.get(invariance, ()))
        return any(way in self.invariances for way in ways)
