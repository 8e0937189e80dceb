"""Lipschitz constants of the loss: none on the whole space, a finite one on every ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import a, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.find import group_of
from spiritlevel.witnesses.enclosure import largest_gradient

SAMPLES, CLIMBS = 16, 3
NOISE = 1e-10  # of the gradient: what rounding leaves where there is none


@dataclass(frozen=True)
class Lipschitz:
    """Gradient norms along an orbit, and the local constant on a ball around the point.

    `measured` are gradients at the points of the orbit, `by_law` what |D^-1 g| says; a layer is
    `scales` times as large there. On the ball of `radius` the largest gradient that was met is
    `met`, and none is above `bound` (None for nets whose gradient is not bounded in closed form).
    """

    scales: tuple[float, ...]
    measured: tuple[float, ...]
    by_law: tuple[float, ...]
    generator: str
    radius: float
    met: float
    bound: float | None

    @property
    def mismatch(self) -> float:
        """The largest relative distance between gradient and law."""
        return max(abs(m / w - 1) for m, w in zip(self.measured, self.by_law, strict=True))

    def __str__(self) -> str:
        bound = "" if self.bound is None else f", and none is above {self.bound:.4g}"
        return (
            f"gradient norm {self.measured[0]:.3g} -> {self.measured[-1]:.3g} by scaling "
            f"{self.generator} with {self.scales[-1]:g}: no constant for the whole space\n"
            f"on the ball of radius {self.radius:g} the largest met is {self.met:.3g}{bound}"
        )


@set_apart()
def lipschitz(
    objective: Objective,
    *,
    group: Group | None = None,
    scales: Sequence[float] = (1.0, 1e-1, 1e-2, 1e-3, 1e-4),
    radius: float = 0.1,
    seed: int = 0,
) -> Lipschitz:
    """|grad L| along a rescaling, which grows like 1/scale, and on a ball, where it does not.

    The gradient at D theta is D^-1 g (Dinh et al., 2017, supplement C); float64. At a point without
    gradient there is nothing to grow: take another one.
    """
    only_objectives(objective)
    number("radius", radius, above=0)
    seeded(seed)
    a("scales", scales, (list, tuple), "a list of positive numbers")
    for scale in scales or [None]:
        number("scales", scale, above=0)
    exact = objective.to(torch.float64)
    layers = group_of(objective, group).layerwise()
    index, unit = _steepest(exact, layers)
    slope = exact.gradient().cpu()
    measured, by_law = [], []
    exponents = torch.from_numpy(layers.matrix(exact.shapes)[:, [index]].toarray()[:, 0]) * unit
    for scale in scales:
        t = layers.identity()
        t[index] = unit * math.log(scale)
        measured.append(float(layers.apply(exact, t).gradient().norm()))
        by_law.append(float((slope * torch.exp(-exponents * math.log(scale))).norm()))
    met, bound = _on_a_ball(exact, radius, seed)
    return Lipschitz(
        scales=tuple(scales),
        measured=tuple(measured),
        by_law=tuple(by_law),
        generator=layers.generators[index].name,
        radius=radius,
        met=met,
        bound=bound,
    )


def _on_a_ball(objective: Objective, radius: float, seed: int) -> tuple[float, float | None]:
    """The largest |grad L| found there, at random and by steps along H g, and what bounds it."""
    draws, found = generator(seed), []

    def at(ray: Tensor) -> Objective:
        return objective.at(objective.vector + radius * ray / ray.norm().clamp(min=1e-300))

    for _ in range(SAMPLES):
        there = at(gaussian(objective.size, draws, objective.vector))
        found.append(float(there.gradient().norm()))
    there = objective
    for _ in range(CLIMBS):
        there = at(hessian(there, compile=False) @ there.gradient())
        found.append(float(there.gradient().norm()))
    met, bound = max(found), largest_gradient(objective, radius)
    if bound is not None and met > bound:
        raise SpiritlevelError(
            f"a gradient of {met:.6g} was met on a ball where none is above {bound:.6g}: please "
            "report this model"
        )
    return met, bound


def _steepest(objective: Objective, layers: Group) -> tuple[int, float]:
    """The generator, and its log-scale that multiplies by e, of the block with most gradient."""
    slope = objective.gradient().cpu()
    best = (0.0, 0, 1.0)
    matrix = torch.from_numpy(layers.matrix(objective.shapes).toarray())
    for index in range(layers.dim):
        for exponent in matrix[:, index].unique().tolist():
            if exponent:
                mass = float(slope[matrix[:, index] == exponent].norm())
                best = max(best, (mass, index, 1 / exponent))
    if best[0] <= NOISE * float(slope.norm()):
        raise SpiritlevelError(
            "nothing to scale has a gradient here: give a model with rescalings, at a point that "
            "is no exact minimum"
        )
    return best[1], best[2]
