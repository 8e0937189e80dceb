"""Sign flips: the symmetries of odd activations, found by the same walk with fewer rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base import tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import generator
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.symmetry.find import collected, walked
from spiritlevel.symmetry.group import Group
from spiritlevel.symmetry.tracing.state import Walk


@dataclass(frozen=True)
class Signs:
    """theta -> (-1)^(B s) * theta with the same predictions for every s in {0, 1}^dim."""

    group: Group

    @property
    def dim(self) -> int:
        return self.group.dim

    def random(self, seed: int | torch.Generator = 0) -> Tensor:
        return torch.randint(0, 2, (self.dim,), generator=generator(seed))

    def act(self, params: Mapping[str, Tensor], flips: Tensor) -> dict[str, Tensor]:
        """Flip the signs of the units that `flips` names."""
        tensor_doors.tensors("params", params, self.group.shapes)
        tensor_doors.tensor("flips", flips, self.dim)
        if bool(((flips != 0) & (flips != 1)).any()):
            raise SpiritlevelError(f"flips are {self.dim} numbers 0 or 1")
        exponents = self.group.log_scales(flips.double())
        result = {}
        for name, tensor in params.items():
            signs = [1 - 2 * (term.round().abs() % 2) for term in exponents.get(name, ())]
            for sign in signs:
                tensor = tensor * sign.to(tensor)  # noqa: PLW2901
            result[name] = tensor if signs else tensor.clone()
        return result

    def inverse(self, flips: Tensor) -> Tensor:
        """Every flip undoes itself."""
        tensor_doors.tensor("flips", flips, self.dim)
        return flips.clone()

    def apply(self, objective: Objective, flips: Tensor) -> Objective:
        only_objectives(objective)
        return objective.at(self.act(objective.params, flips))


@set_apart()
def sign_flips(model: nn.Module | Objective, example: Any = None) -> Signs:
    """Units whose sign can be flipped: between linear maps and odd activations, f(-x) = -f(x)."""
    walk = Walk(signed=True)
    scales = walked(walk, model, example, lambda node, operation: operation.signs)
    group = collected(walk, scales)
    whole = [i for i in range(group.dim) if _whole(group, i)]
    return Signs(group.select(whole))


def _whole(group: Group, index: int) -> bool:
    return all(bool((p.exponents == p.exponents.round()).all()) for p in group.pieces(index))
