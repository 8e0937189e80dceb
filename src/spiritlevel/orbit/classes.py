"""Parameters with one and the same row of B, and which of them lie on cycles worth probing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective import Objective
from spiritlevel.orbit.cells import Array, Cells, cells
from spiritlevel.orbit.proofs import Row, least_mean, row
from spiritlevel.symmetry import Group

FEW = 8  # classes that are probed
MOST = 4096  # that are looked at: those with the most curvature
CYCLES = 3
ROUNDED = 2.0**-48  # relative: of a length that is summed in another order


@dataclass(frozen=True)
class Classes:
    """All elements whose rows of B are equal, whatever parameter they are in.

    `of` is the class of every parameter, flat; a perturbation within class k is exp(b_k . t) times
    as long at log-scales t. `number` is the class of every cell; `exponents` has one row per class.
    """

    of: Tensor
    number: Array
    exponents: csr_matrix
    shapes: dict[str, torch.Size]

    def places(self, k: int) -> Tensor:
        return (self.of == k).nonzero().flatten()

    def row(self, k: int) -> Row:
        return row(self.exponents, k)

    def name(self, k: int) -> str:
        """The parameters that it has elements of."""
        inside, start, found = self.of == k, 0, []
        for name, shape in self.shapes.items():
            count = int(inside[start : start + shape.numel()].sum())
            start += shape.numel()
            if count:
                found.append(name if count == shape.numel() else f"{name}[{count}]")
        return ", ".join(found)

    def told(self, step: Tensor, row: Row, length: float) -> bool:
        """Whether a step lies within the class of a row and is no longer than that."""
        inside = self.of[step != 0].unique().tolist()
        short = float(step.double().norm()) <= length * (1 + ROUNDED)
        return short and len(inside) == 1 and self.row(inside[0]) == row

    @property
    def fixed(self) -> Tensor:
        """Which parameters no rescaling moves."""
        still = torch.from_numpy(self.exponents.getnnz(axis=1) == 0)
        return still[self.of.cpu()].to(self.of.device)


def classes_of(group: Group, objective: Objective) -> Classes:
    """Found by two random combinations of the columns of B, and then compared."""
    grid = grid_of(group, objective)
    table = grid.exponents
    draws = np.random.default_rng(0).standard_normal((grid.dim, 2))
    _, first, number = np.unique(table @ draws, axis=0, return_index=True, return_inverse=True)
    number = number.reshape(-1)
    rows = csr_matrix(table[first])
    if (table - rows[number]).count_nonzero():
        raise SpiritlevelError("two rows of B were taken for one: please report it")
    of = grid.spread(number.astype(float), objective.vector.double()).long()
    return Classes(of, number, rows, dict(objective.shapes))


def grid_of(group: Group, objective: Objective) -> Cells:
    """The cells, with nothing but the exponents that are not zero."""
    grid = cells(group, objective.shapes)
    grid.exponents.sum_duplicates()
    grid.exponents.eliminate_zeros()
    return grid


def promising(classes: Classes, masses: Array) -> list[int]:
    """Classes that are moved and lie on the cycles sum_k y_k b_k = 0 with the most curvature.

    All where they are few. To second order a rise c takes a length (2 c / m_k)^(1/2).
    """
    moved = (classes.exponents.getnnz(axis=1) > 0) & (masses > 0)
    places = np.flatnonzero(moved)
    if len(places) <= FEW:
        return places.tolist()
    places = places[np.argsort(-masses[places], kind="stable")[:MOST]]
    found: dict[int, None] = {}
    for _ in range(CYCLES):
        cycle = least_mean(classes.exponents[places], -np.log(masses[places]) / 2)
        if not cycle or len(found | dict.fromkeys(places[cycle].tolist())) > FEW:
            break
        found |= dict.fromkeys(places[cycle].tolist())
        weakest = min(cycle, key=lambda k: masses[places[k]])
        places = np.delete(places, weakest)
    return list(found)
