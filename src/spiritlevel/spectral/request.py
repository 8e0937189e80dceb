"""Which eigenvalues are wanted, and how well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from spiritlevel.base.doors import a, number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.operator import Operator, only_operators

Which = Literal["largest", "smallest", "magnitude", "both"]
RelativeTo = Literal["eigenvalue", "norm"]


@dataclass(frozen=True)
class End:
    """One end of the spectrum: the wanted Ritz values there, and where the wanted part begins.

    `sign` is 1 at the upper end and -1 at the lower one; every eigenvalue with
    sign * eigenvalue > `height` is wanted, and `last` is the Ritz value that sets the height.
    """

    sign: int
    members: list[int]
    last: int
    height: float


@dataclass(frozen=True)
class Request:
    """The k extreme eigenvalues at one end, or at each, to a relative error.

    `sure`: so that none farther out can have been missed, where they are `below` this size.
    """

    k: int
    which: Which
    tol: float
    relative_to: RelativeTo
    sure: bool = True
    below: float | None = None

    @property
    def count(self) -> int:
        return self.k if self.which != "both" else 2 * self.k

    @property
    def usual_memory(self) -> int:
        return max(4 * self.count, self.count + 24)

    def check(self, operator: Operator, budget: int, memory: int | None) -> None:
        only_operators(operator)
        one_of("which", self.which, get_args(Which))
        one_of("relative_to", self.relative_to, get_args(RelativeTo))
        number("k", self.k, whole=True)
        number("budget", budget, 1, whole=True)
        number("tol", self.tol, 0)
        a("sure", self.sure, bool, "True, or False to stop at the residuals")
        if not self.sure and self.which == "magnitude":
            raise SpiritlevelError(
                "sure=False says that there is an eigenvalue at least so far out at one end, and "
                'which="magnitude" does not say at which: choose "largest", "smallest" or "both"'
            )
        if self.below is not None:
            number("below", self.below, above=0)
        if self.k < 1 or self.count > operator.size:
            raise SpiritlevelError(
                f"k={self.k} ({self.which}) asks for {self.count} eigenvalues of a matrix of size "
                f"{operator.size}"
            )
        if memory is None:
            return
        number("memory", memory, whole=True)
        if memory < (3 * self.k + 3 if self.which == "magnitude" else self.count + self.k + 1):
            raise SpiritlevelError(
                f"memory={memory} vectors is too little for {self.count} eigenpairs"
            )

    def tolerances(self, values: Tensor, rounding: float) -> Tensor:
        """What each Ritz value may err by: tol times itself or the norm; at least the rounding."""
        norm = values.abs().max()
        scale = values.abs() if self.relative_to == "eigenvalue" else norm.expand_as(values)
        return (self.tol * scale).clamp(min=rounding * float(norm))

    def sure_of(self, values: Tensor) -> bool:
        """Whether what may have been missed beside these Ritz values is wanted to be known."""
        if not self.sure or self.below is None:
            return self.sure
        return float(values[self.select(values)].abs().max()) <= self.below

    def select(self, values: Tensor) -> list[int]:
        """Where the wanted Ritz values lie, in falling order."""
        m = len(values)
        if self.which == "magnitude":
            return values.abs().argsort(descending=True)[: self.k].tolist()
        top = [m - 1 - i for i in range(min(self.k, m))]
        low = list(reversed(range(min(self.k, m))))
        return top if self.which == "largest" else low if self.which == "smallest" else top + low

    def keep(self, values: Tensor, capacity: int) -> list[int]:
        """The wanted vectors and the next ones in line: half of what fits."""
        order = self.select(values)
        count = max(capacity // 2, len(order))
        if self.which == "magnitude":
            return sorted(values.abs().argsort(descending=True)[:count].tolist())
        places = torch.arange(len(values))
        rank = torch.stack([(places - place).abs() for place in order]).amin(0)
        return sorted(rank.argsort(stable=True)[:count].tolist())

    def ends(self, values: Tensor) -> list[list[End]]:
        """The ends that are wanted, in groups that stand or fall together."""
        order = self.select(values)
        if self.which == "magnitude":
            last = order[-1]
            height = abs(float(values[last]))
            upper = [i for i in order if values[i] >= 0]  # 0 too, which has no sign
            lower = [i for i in order if values[i] < 0]
            return [[End(1, upper, last, height), End(-1, lower, last, height)]]
        k = min(self.k, len(values))
        top = [End(1, order[:k], order[k - 1], float(values[order[k - 1]]))]
        low = [End(-1, order[-k:], order[-k], -float(values[order[-k]]))]
        return {"largest": [top], "smallest": [low], "both": [top, low]}[self.which]
