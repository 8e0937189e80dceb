"""The units of the balanced point of an orbit, for the weights of a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import flatten
from spiritlevel.orbit.cells import Cells, cells
from spiritlevel.orbit.program import layers
from spiritlevel.orbit.representative import least_norm
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.group import added, exponential


class Balanced:
    """Where a module's weights lie on their orbit: theta = D^-1 theta_b, theta_b of least norm."""

    def __init__(self, group: Any, model: nn.Module | None) -> None:
        doors.a("orbit", group, Group, "a Group, such as spiritlevel.symmetries(objective)")
        if model is None:
            raise SpiritlevelError('adaptive="orbit" needs the names of weights: give model=')
        self.group: Group = group
        whole = model.module if isinstance(model, DistributedDataParallel) else model
        self.named = dict(whole.named_parameters())
        shapes = {n: shape for n, shape in group.shapes.items() if n not in group.buffers}
        for name, shape in shapes.items():
            found = self.named.get(name)
            if found is None or found.shape != shape:
                raise SpiritlevelError(
                    f"orbit moves {name!r} of shape {tuple(shape)}, which model does not have: "
                    "give the symmetries of an objective of this model"
                )
        self.cells: Cells = cells(group, shapes)

    def log_scales(self) -> Tensor:
        """The t of D = exp(B t) that takes the weights to the least norm on their orbit."""
        if not self.group.dim:
            return self.group.identity()
        weights = {name: self.named[name].detach().cpu().double() for name in self.cells.shapes}
        masses = self.cells.gather(flatten(weights) ** 2)
        found, _ = least_norm(self.cells.exponents, masses, layers(self.group))
        return torch.from_numpy(found)

    def units(self, log_scales: Tensor) -> dict[Tensor, Tensor]:
        """1/D for every parameter that the group knows, to be broadcast."""
        terms = self.group.log_scales(log_scales)
        found = {
            name: exponential(-added(terms[name])) for name in self.cells.shapes if terms[name]
        }
        return {self.named[name]: unit.to(self.named[name].device) for name, unit in found.items()}
