"""An orbit as a convex problem: cells, masses, and what is one-sided divided out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spiritlevel.curvature import ggn, hessian
from spiritlevel.diagonals import ggn_diagonal
from spiritlevel.objective import Objective
from spiritlevel.operators import Operator, scaled
from spiritlevel.orbit.balance import Balance, balance
from spiritlevel.orbit.cells import Array, Cells, cells
from spiritlevel.symmetry import Group, symmetries

Kind = Literal["hessian", "ggn"]


@dataclass(frozen=True)
class Solution:
    """What a solver finds: see OrbitMinimum."""

    value: float
    before: float
    lower_bound: float | None
    balance: float
    t: Array
    products: float
    converged: bool
    stderr: float | None = None


@dataclass(frozen=True)
class Problem:
    """An objective's orbit in cells, with what is one-sided divided out."""

    objective: Objective
    group: Group
    cells: Cells
    blocks: list[Array]
    diagonal: Tensor  # of the Gauss-Newton matrix
    masses: Array  # of the same, by cell, with what is one-sided divided out
    free: Array
    start: Balance
    scale: Tensor
    divided_out: tuple[str, ...]


def problem_of(objective: Objective, group: Group | None, diagonal: Tensor | None) -> Problem:
    group = symmetries(objective) if group is None else group
    grid = cells(group, objective.shapes)
    layers: dict[str, list[int]] = {}
    for index, generator in enumerate(group.generators):
        layers.setdefault(f"{generator.layer} {generator.kind}", []).append(index)
    blocks = [np.array(members) for members in layers.values()]
    diagonal = ggn_diagonal(objective) if diagonal is None else diagonal
    found = balance(grid.exponents, grid.gather(diagonal), blocks)
    lonely = np.flatnonzero(found.one_sided)
    scale = _unit_size(objective, grid, lonely)
    masses = grid.gather(diagonal * scale**2)
    start = balance(grid.exponents, masses, blocks) if len(lonely) else found
    free = ~(start.dead | start.one_sided | found.one_sided)
    names = tuple(group.generators[i].name for i in lonely)
    return Problem(
        objective=objective,
        group=group,
        cells=grid,
        blocks=blocks,
        diagonal=diagonal,
        masses=masses,
        free=free.astype(float),
        start=start,
        scale=scale,
        divided_out=names,
    )


def _unit_size(objective: Objective, grid: Cells, lonely: Array) -> Tensor:
    """Factors that measure one-sided groups at unit root mean square of their weights.

    Scaling such a group up is free and its curvature then vanishes, so the infimum says nothing;
    diag(s) H diag(s) with s = rms(w) does not change under that scaling.
    """
    scale = torch.ones_like(objective.vector)
    counts, squares = grid.gather(torch.ones_like(scale)), grid.gather(objective.vector**2)
    for index in lonely:
        members = np.abs(grid.exponents[:, [index]].toarray()[:, 0]) > 0
        rms = (squares[members].sum() / max(counts[members].sum(), 1)) ** 0.5
        mask = grid.spread(members.astype(float), scale) > 0
        scale = torch.where(mask, scale * rms, scale)
    return scale


def operator_of(problem: Problem, kind: Kind) -> Operator:
    make = hessian if kind == "hessian" else ggn
    plain = make(problem.objective)
    return scaled(plain, problem.scale) if problem.divided_out else plain
