"""The network that claims are tried on, and what several of them need of it."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.objective import Objective
from spiritlevel.objective.default import digits, trained_net
from spiritlevel.symmetry import Group, symmetries, verify

FEW = 64  # examples, where the whole Hessian is needed
MINIMA = 3
OFF = 0.1  # of the size of the weights: how far from a minimum its gradient is looked at
SAME = 1e-9  # relative: what rounding may do to a loss in float64


class Setting:
    """An objective in float64 with its symmetries, made once and only when asked for.

    Without one it is the net of the digits, and `minima` are nets trained from other seeds; the
    other minima of a given network are points of its orbit.
    """

    def __init__(self, objective: Objective | None = None) -> None:
        self.given = None if objective is None else objective.to(torch.float64)

    @functools.cached_property
    def objective(self) -> Objective:
        return self.minima[0] if self.given is None else self.given

    @property
    def group(self) -> Group:
        """The rescalings of this network, or an error that says why there are none."""
        if isinstance(self._found, SpiritlevelError):
            raise self._found
        return self._found

    @functools.cached_property
    def _found(self) -> Group | SpiritlevelError:
        """Kept, whatever it is: many claims ask."""
        try:
            found = symmetries(self.objective)
        except SpiritlevelError as error:
            return error
        if not found.dim:
            reasons = ", ".join(dict.fromkeys(str(b) for b in found.blocks)) or "its graph"
            return SpiritlevelError(f"this network has no rescalings (blocked by {reasons})")
        twin = found.apply(self.objective, found.random(seed=0))
        if (gap := loss_gap(self.objective, twin)) > SAME:
            return SpiritlevelError(
                f"the loss moves by {gap:.1e} along the rescalings that leave the predictions: it "
                "is no function of them alone, or is rounded to float32 inside"
            )
        return found

    @functools.cached_property
    def layers(self) -> Group:
        return self.group.layerwise()

    @functools.cached_property
    def off(self) -> Objective:
        """A point that is no minimum, near to the one that may be."""
        return moved_off(self.objective)

    @functools.cached_property
    def few(self) -> Objective:
        return self.objective.on([self.objective.few(FEW)])

    @functools.cached_property
    def minima(self) -> list[Objective]:
        if self.given is not None:
            turns = [self.group.random(seed=i, scale=0.3) for i in range(1, MINIMA)]
            return [self.given, *(self.group.apply(self.given, t) for t in turns)]
        train, _ = digits()
        nets = [trained_net(seed) for seed in range(MINIMA)]
        return [Objective(net, train, F.cross_entropy, dtype=torch.float64) for net in nets]

    def factors(self, group: Group, t: Tensor) -> Tensor:
        """exp(B t) as a flat vector."""
        return group.flat_factors(t, self.objective.shapes).to(self.objective.device)


def moved_off(objective: Objective, seed: int = 1) -> Objective:
    """The objective at theta + OFF rms(theta) z, z normal."""
    here = objective.vector
    spread = OFF * float(here.square().mean().sqrt())
    return objective.at(here + spread * gaussian(objective.size, generator(seed), here))


def loss_gap(one: Objective, other: Objective) -> float:
    """How far two losses are apart, relative to 1 + |L|."""
    return abs(one.value() - other.value()) / (1 + abs(one.value()))


def apart(one: Objective, other: Objective) -> float:
    """How far two objectives are apart: in their predictions, and in their losses."""
    return max(verify(one, other).relative, loss_gap(one, other))
