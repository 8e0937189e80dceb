"""Directions to look along: which they are decides what a picture shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spiritlevel.base import tensor_doors
from spiritlevel.base.doors import one_of, shown
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import flatten, gaussian, generator
from spiritlevel.curvature import hessian
from spiritlevel.landscape.ends import end_of
from spiritlevel.objective import Objective
from spiritlevel.orbit.representative import representative
from spiritlevel.results.landscape import Direction
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry import Group, symmetries

Kind = Literal["gaussian", "filter", "layer", "orbit", "hessian", "gradient", "generator"]
Biases = Literal["zero", "scale"]
NORMS = (nn.LayerNorm, nn.RMSNorm)  # their gains may have several axes
TITLES = {
    "gaussian": "random, as long as the parameters",
    "filter": "random, filter-normalized",
    "layer": "random, layer-normalized",
    "orbit": "random, filter-normalized at the point of the orbit with the least norm",
    "hessian": "eigenvector {} of the Hessian",
    "gradient": "against the gradient, of length 1",
    "generator": "along the orbit",
    "given": "given",
}


@dataclass(frozen=True)
class Aim:
    """Where a picture is taken and along which directions.

    `objective` is the given one, or the point of its orbit at which directions are scaled.
    """

    objective: Objective
    directions: tuple[Tensor, ...]
    told: tuple[Direction, ...]
    notes: tuple[str, ...] = ()


@set_apart()
def aimed(
    objective: Objective,
    kinds: Sequence[str],
    *,
    seed: int = 0,
    biases: Biases = "zero",
    group: Group | None = None,
) -> Aim:
    """One direction of every kind; random ones are drawn one after another from one seed.

    - "filter": d_i ||w_i|| / ||d_i|| for every filter (row) of every matrix; biases and the gains
      of norms are left where they are, or scaled as one filter with biases="scale" (Li et al.,
      2018). Such directions follow rescalings of whole layers, but not of single units.
    - "orbit": the same at the one point of the orbit with the least norm of all parameters, so
      that every point of the orbit has the same picture.
    - "hessian": eigenvectors of the largest eigenvalues, orthonormal, not rescaled.
    """
    for kind in kinds:
        one_of("kind", kind, get_args(Kind))
    one_of("biases", biases, get_args(Biases))
    if "orbit" in kinds and set(kinds) != {"orbit"}:
        raise SpiritlevelError(
            'kind="orbit" looks from another point than the others: give it for all directions'
        )
    here, notes = objective, ()
    if "orbit" in kinds:
        found = representative(objective, group)
        here, notes = found.objective, found.notes
    draws = generator(seed)
    vectors = _hessian(objective, kinds.count("hessian"), seed) if "hessian" in kinds else []
    directions, told = [], []
    for kind in kinds:
        taken = sum(one.kind == "hessian" for one in told)
        own = kind == "hessian"
        d = vectors[taken] if own else _drawn(here, kind, draws, biases, group)
        directions.append(d)
        told.append(described(kind, d, taken + 1))
    return Aim(here, tuple(directions), tuple(told), notes)


def given(objective: Objective, directions: Sequence[Any]) -> Aim:
    """Directions as vectors, named tensors, or networks: then they lead there."""
    found = [_given(objective, one) for one in listed(directions)]
    return Aim(objective, tuple(found), tuple(described("given", d) for d in found))


def listed(directions: Any) -> list[Any]:
    """Refuse what is no list of directions, or an empty one."""
    several = isinstance(directions, Sequence) and not isinstance(directions, str)
    if not several or not len(directions):
        raise SpiritlevelError(
            f"directions={shown(directions)}: give a list of vectors, named tensors or Objectives"
        )
    return list(directions)


def described(kind: str, direction: Tensor, number: int = 1) -> Direction:
    """A direction in words; eigenvectors are numbered."""
    return Direction(TITLES[kind].format(number), kind, float(direction.double().norm()))


def _given(objective: Objective, direction: Any) -> Tensor:
    if isinstance(direction, Objective):
        return end_of(objective, direction, "directions").vector - objective.vector
    if isinstance(direction, Mapping):
        tensor_doors.tensors("directions", direction, objective.shapes)
        zero = {name: torch.zeros_like(t) for name, t in objective.params.items()}
        return flatten({**zero, **{k: v.to(zero[k]) for k, v in direction.items()}})
    tensor_doors.tensor("directions", direction, objective.size)
    return direction.detach().to(objective.vector)


def _drawn(
    here: Objective, kind: str, draws: torch.Generator, biases: Biases, group: Group | None
) -> Tensor:
    if kind == "gradient":
        slope = here.gradient()
        return -slope / _length(slope, "the gradient is zero here: choose another kind")
    if kind == "generator":
        return _along_orbit(here, draws, group)
    noise = gaussian(here.size, draws, here.vector)
    if kind == "gaussian":
        return noise * (here.vector.norm() / noise.norm())
    scale = _layerwise if kind == "layer" else _filterwise
    found = flatten(
        {name: _scaled(here, name, d, scale, biases) for name, d in here.named(noise).items()}
    )
    _length(found, f'kind="{kind}" moves nothing here: use biases="scale", or another kind')
    return found


def _scaled(
    here: Objective, name: str, d: Tensor, scale: Callable[..., Tensor], biases: Biases
) -> Tensor:
    w = here.params[name]
    layer = here.module.get_submodule(name.rpartition(".")[0])
    if w.ndim < 2 or isinstance(layer, NORMS):
        return torch.zeros_like(d) if biases == "zero" else _layerwise(d, w)
    if scale is _filterwise and isinstance(layer, nn.modules.conv._ConvTransposeNd):
        # inputs come first, group by group
        parts = zip(d.chunk(layer.groups), w.chunk(layer.groups), strict=True)
        return torch.cat([scale(a.movedim(1, 0), b.movedim(1, 0)).movedim(0, 1) for a, b in parts])
    return scale(d, w)


def _layerwise(d: Tensor, w: Tensor) -> Tensor:
    return d * (w.norm() / d.norm())


def _filterwise(d: Tensor, w: Tensor) -> Tensor:
    """Every row as long as that of the weights."""
    norms = [torch.linalg.vector_norm(t.flatten(1), dim=1) for t in (w, d)]
    return d * (norms[0] / norms[1]).view(-1, *[1] * (w.ndim - 1))


def _hessian(objective: Objective, count: int, seed: int) -> list[Tensor]:
    found = eigenpairs(hessian(objective, compile=False), k=count, seed=seed)
    return list(found.vectors.unbind(1))


def _along_orbit(objective: Objective, draws: torch.Generator, group: Group | None) -> Tensor:
    """The tangent of the orbit along a random element, as long as it is there."""
    group = symmetries(objective) if group is None else group
    if not group.dim:
        raise SpiritlevelError(
            'kind="generator" needs a rescaling that changes no prediction; this network has none'
        )
    t = torch.randn(group.dim, generator=draws, dtype=torch.float64)
    t = t / math.sqrt(group.dim)
    logs = group.flat_factors(t, objective.shapes).log()
    return logs.to(objective.vector) * objective.vector


def _length(vector: Tensor, refusal: str) -> Tensor:
    norm = vector.norm()
    if not float(norm) > 0:
        raise SpiritlevelError(refusal)
    return norm
