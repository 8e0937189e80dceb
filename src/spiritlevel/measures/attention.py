"""Curvature of networks with attention, where no change of basis inside a head is seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.operator import Operator
from spiritlevel.measures.base import LAYER, ONE_END, TOP, TWO, Measure
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry.units import Axis, head_maps


@dataclass(frozen=True)
class Part:
    """Weights, or a bias, of one side of a head, rows in its basis.

    `places` are those in the flat vector, (d, columns); `root` is (U U')^(1/2) for the weights U,
    and that times sqrt(b' (U U')^-1 b) for a bias b: relative to its size in that metric.
    """

    places: Tensor
    root: Tensor


def geodesic_curvature(instruments: Instruments) -> Estimate:
    """lambda_max(S H S), S^-2 the metric tr((U U')^-1 dU dU' + (V V')^-1 dV dV') of every head.

    Geodesic sharpness (da Silva et al., 2025) to second order at a critical point, U and V the
    projections to queries and keys, or to values and outputs; all else is relative to itself,
    1/theta^2. No invertible map of a head changes it; gains of single channels before the heads
    do. Directions along those maps are not left out: at a critical point they do not curve.
    """
    objective = instruments.objective
    parts = instruments.once("heads", lambda: parts_of(objective))
    return eigenpairs(
        _in_metric(instruments.hessian, objective.vector.abs(), parts),
        tol=instruments.tol,
        budget=instruments.budget,
        seed=instruments.seed,
    )[0]


def parts_of(objective: Objective) -> list[Part]:
    """Those of both sides of every head; an error where there are none, or where they overlap."""
    maps = head_maps(objective)
    if not maps:
        raise SpiritlevelError(
            "geodesic_curvature is of attention heads whose basis is free; none was found here "
            "(rotated or normalized queries and keys have no free one): use adaptive_spectral"
        )
    parts = [
        part for one in maps for side in (one.up, one.down) for part in _parts(objective, side)
    ]
    taken = torch.cat([part.places.reshape(-1) for part in parts])
    if len(taken.unique()) < len(taken):
        raise SpiritlevelError(
            "some weights belong to two heads, or to both sides of one: geodesic_curvature has no "
            "metric for them; use adaptive_spectral"
        )
    return parts


def _parts(objective: Objective, side: tuple[tuple[Axis, Tensor], ...]) -> Iterator[Part]:
    """The weights of one side together, and every bias."""
    theta = objective.vector
    places = [(name, _places(objective, name, axis, rows)) for (name, axis), rows in side]
    matrices = [where for name, where in places if len(objective.shapes[name]) > 1]
    weights = torch.cat(matrices, 1)
    u = theta[weights].double()
    values, vectors = torch.linalg.eigh(u @ u.T)
    sizes = values.clamp(min=0).sqrt()
    root = ((vectors * sizes) @ vectors.T).to(theta)
    yield Part(weights, root)
    for name, where in places:
        if len(objective.shapes[name]) == 1:
            inside = vectors.T @ theta[where[:, 0]].double()
            known = sizes > 1e-7 * sizes.max()
            yield Part(where, float((inside[known] / sizes[known]).norm()) * root)


def _places(objective: Objective, name: str, axis: int, rows: Tensor) -> Tensor:
    """Where the rows of a head lie in the flat vector, (d, columns)."""
    span = objective.spans[name]
    index = torch.arange(span.start, span.stop).reshape(objective.shapes[name]).movedim(axis, 0)
    return index[rows].reshape(len(rows), -1).to(objective.device)


def _in_metric(operator: Operator, sizes: Tensor, parts: list[Part]) -> Operator:
    """S A S, S the roots of the heads and the sizes of all else."""

    def scale(v: Tensor) -> Tensor:
        result = v * (sizes if v.ndim == 1 else sizes[:, None])
        for part in parts:
            result[part.places] = torch.tensordot(part.root, v[part.places], 1)
        return result

    return replace(
        operator,
        matvec=lambda v: scale(operator.matvec(scale(v))),
        name=f"{operator.name} in the metric of the heads",
    )


ENTRIES: dict[str, Measure] = {
    "geodesic_curvature": Measure(
        geodesic_curvature,
        title="geodesic curvature",
        family="curvature",
        invariances=LAYER,
        reference="da Silva et al. (2025)",
        cost=TOP,
        is_sharpness=True,
        points=TWO,
        work=ONE_END,
    ),
}
