"""The path of training in the plane in which most of it lies."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.landscape.axes import covering
from spiritlevel.landscape.ends import Other, end_of
from spiritlevel.landscape.journal import opened
from spiritlevel.landscape.looks import refuse
from spiritlevel.landscape.passes import passes
from spiritlevel.landscape.planes import over
from spiritlevel.landscape.statistics import Statistics
from spiritlevel.landscape.telling import told
from spiritlevel.objective import Objective
from spiritlevel.results.landscape import Direction, Step, Surface

NAME = "principal direction {} of the path, of length 1"


@set_apart()
def trajectory(
    objective: Objective,
    checkpoints: Sequence[Other],
    *,
    steps: int = 25,
    margin: float = 0.25,
    statistics: Statistics = "frozen",
    journal: str | os.PathLike[str] | None = None,
) -> Surface:
    """The loss over the plane of a path: principal directions of theta_i - theta (Li et al., 2018).

    `checkpoints` are state_dicts, files, flat vectors or Objectives, in order; the objective is
    where the path ends. `explained` are the shares of sum ||theta_i - theta||^2 that lie along each
    direction; every step says how far it is from the plane and its own loss, with its own running
    statistics. `margin` is left around the path, as a share of its extent.
    """
    refuse(objective, statistics=statistics, journal=journal)
    number("steps", steps, 3, whole=True)
    number("margin", margin, 0)
    begin = time.perf_counter()
    ends = _ends(objective, checkpoints)
    directions, places, off, explained = principal(objective.vector, [e.vector for e in ends])
    axes = _axis(places[:, 0], steps, margin), _axis(places[:, 1], steps, margin)
    book = opened(journal, objective, directions, {"trajectory": [*axes, statistics]})
    found = over(passes(objective, directions, statistics=statistics), axes, 0, book)
    about = {"seed": 0, "statistics": statistics, "interrupted": found.interrupted}
    return Surface(
        x=tuple(axes[0]),
        y=tuple(axes[1]),
        directions=(Direction(NAME.format(1), "path", 1.0), Direction(NAME.format(2), "path", 1.0)),
        sheets=(found.sheet("as given"),),
        provenance=told(objective, begin, found.way, **about),
        path=_path(objective, ends, places, off),
        explained=explained,
    )


def _path(
    objective: Objective, ends: list[Objective], places: Tensor, off: Tensor
) -> tuple[Step, ...]:
    """Every checkpoint in the plane, and the end at its centre."""
    steps = [
        Step(f"checkpoint {i + 1}", float(x), float(y), float(away), end.value())
        for i, ((x, y), away, end) in enumerate(zip(places, off, ends, strict=True))
    ]
    return (*steps, Step("the end", 0.0, 0.0, 0.0, objective.value()))


def _ends(objective: Objective, checkpoints: Any) -> list[Objective]:
    if isinstance(checkpoints, (str, os.PathLike, Tensor)) or not isinstance(checkpoints, Sequence):
        raise SpiritlevelError(
            f"checkpoints is a {type(checkpoints).__name__}; give a list of state_dicts, files, "
            "vectors or Objectives"
        )
    ends = [end_of(objective, c, f"checkpoints[{i}]") for i, c in enumerate(checkpoints)]
    if len(ends) < 2:
        raise SpiritlevelError(f"checkpoints holds {len(ends)}: a plane needs at least two")
    return ends


def principal(
    origin: Tensor, points: list[Tensor]
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor, tuple[float, float]]:
    """Two orthonormal directions, the places of the points along them, their distances, the shares.

    From the Gram matrix of the differences in float64: no matrix of the size of the parameters.
    """
    moves = torch.stack([(p - origin).double() for p in points])
    values, vectors = torch.linalg.eigh(moves @ moves.T)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    if not float(values[1]) > 1e-12 * float(values[0]):
        raise SpiritlevelError(
            "checkpoints lie on one line through the objective's point: there is no plane; use "
            "interpolate()"
        )
    basis = (vectors[:, :2] / values[:2].sqrt()).T @ moves
    signs = torch.where((basis @ moves[0]) < 0, -1.0, 1.0)  # the first step has positive places
    basis = basis * signs[:, None]
    places = moves @ basis.T
    off = (moves - places @ basis).norm(dim=1)
    shares = values[:2] / values.sum()
    first, second = (b.to(origin) for b in basis)
    return (first, second), places, off, (float(shares[0]), float(shares[1]))


def _axis(places: Tensor, steps: int, margin: float) -> list[float]:
    low, high = min(float(places.min()), 0.0), max(float(places.max()), 0.0)
    room = margin * (high - low)
    return covering(low - room, high + room, steps)
