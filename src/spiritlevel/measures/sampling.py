"""Random walks in the well around a point, by Hamiltonian steps that leave its density alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import gaussian
from spiritlevel.objective import Objective

WANTED = 0.8  # of all steps, to be accepted
FIRST = 0.2  # the least acceptance of the first step that tuning starts from
HALVINGS = 40
SHORTER = 0.5  # by how much, at most, a step is shorter than the longest


@dataclass(frozen=True)
class Place:
    """y = sqrt(gamma) (x - theta), how far the loss has risen there, and its slope by y."""

    y: Tensor
    rise: float
    slope: Tensor


@dataclass(frozen=True)
class Well:
    """exp(-w (L(x) - L(theta))) N(x; theta, I / gamma) around the point, for any weight w."""

    objective: Objective
    gamma: float

    def place(self, y: Tensor) -> Place:
        value, gradient = self._at(y).value_and_gradient()
        return Place(y, value - self.objective.value(), gradient / math.sqrt(self.gamma))

    def inside(self, y: Tensor) -> Place:
        """The place y, or the first of y/2, y/4, ... where the loss and its slope are finite.

        From where they are not no step would ever be accepted.
        """
        for _ in range(HALVINGS):
            found = self.place(y)
            if math.isfinite(found.rise) and bool(found.slope.isfinite().all()):
                return found
            y = y / 2
        raise SpiritlevelError(
            "the loss or its gradient is not finite around the point: give a larger gamma="
        )

    def draw(self, draws: torch.Generator) -> Tensor:
        """y at weight zero."""
        return gaussian(self.objective.size, draws, self.objective.vector)

    def _at(self, y: Tensor) -> Objective:
        return self.objective.at(self.objective.vector + y / math.sqrt(self.gamma))

    def step(
        self, here: Place, weight: float, angle: float, leaps: int, draws: torch.Generator
    ) -> tuple[Place, float]:
        """One Metropolis step and its acceptance; it leaves the density as it is, exactly.

        The Gaussian alone turns y and its momentum in a circle; the loss kicks before and after
        (Beskos et al., 2011). One leap of a small angle is a Langevin step. The angle is drawn up
        to the given one: after half a period the loss would be where it was.
        """
        angle *= 1 - SHORTER * _uniform(draws)
        y, slope, p = here.y, here.slope, self.draw(draws)
        before = weight * here.rise + _energy(y) + _energy(p)
        there = here
        for leap in range(leaps):
            p = p - angle / 2 * weight * slope
            y, p = (
                math.cos(angle) * y + math.sin(angle) * p,
                math.cos(angle) * p - math.sin(angle) * y,
            )
            if leap + 1 < leaps:
                slope = self._at(y).gradient() / math.sqrt(self.gamma)
            else:
                there = self.place(y)
                slope = there.slope
            p = p - angle / 2 * weight * slope
        gained = before - weight * there.rise - _energy(y) - _energy(p)
        acceptance = math.exp(min(gained, 0.0)) if math.isfinite(gained) else 0.0
        return (there if _uniform(draws) < acceptance else here), acceptance


def _uniform(draws: torch.Generator) -> float:
    return float(torch.rand((), generator=draws, dtype=torch.float64, device="cpu"))


def _energy(vector: Tensor) -> float:
    return float(vector.double().square().sum()) / 2


@dataclass
class Angle:
    """The angle of a leap, tuned by the acceptance of steps until it is kept."""

    leaps: int
    value: float
    tried: list[float] = field(default_factory=list)

    @classmethod
    def first(
        cls, well: Well, here: Place, weight: float, leaps: int, draws: torch.Generator
    ) -> Angle:
        """Halved from a quarter of the circle until a step has some chance."""
        found = cls(leaps, math.pi / 2 / leaps)
        for _ in range(HALVINGS):
            if well.step(here, weight, found.value, leaps, draws)[1] >= FIRST:
                break
            found.value /= 2
        return found

    def tune(self, acceptance: float) -> None:
        """Towards the wanted acceptance, by less and less; at most a quarter of the circle."""
        self.tried.append(math.log(self.value))
        way = math.exp(2 * (acceptance - WANTED) / math.sqrt(len(self.tried)))
        self.value = min(self.value * way, math.pi / 2 / self.leaps)

    def keep(self) -> None:
        """The mean of what was tried in the second half: the last one is luck."""
        late = self.tried[len(self.tried) // 2 :]
        self.value = math.exp(sum(late) / len(late))
