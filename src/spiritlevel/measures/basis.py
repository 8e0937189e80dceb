"""Curvature in the values of basis paths, which rescalings of hidden units leave as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.operator import Operator
from spiritlevel.measures.base import TOP, UNIT, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.stacks import chain_of
from spiritlevel.objective import Objective
from spiritlevel.orbit import representative
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry import Group

Numbers = NDArray[np.int64]
ALIKE = 1e-5  # relative: of weights that rounding, or a renumbering, could put in another order


@dataclass(frozen=True)
class Basis:
    """Paths through every weight but one for each hidden unit: n - m of them, for m units.

    A weight leads from the unit `above` it to the unit `below`, m where that is an input, the
    constant of a bias, or an output. `first` and `last` are the weights by which the skeleton comes
    into and leaves each unit. The path of a weight of `free` comes to it and goes on along the
    skeleton; `first` ones are left out, for they lie on the path of the unit that `column` counts.
    """

    above: Tensor
    below: Tensor
    first: Tensor
    last: Tensor
    free: Tensor
    column: Tensor
    depth: int  # hidden units on the longest path

    def ways(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Products of the skeleton's weights from its input to each unit, and on to its output."""
        back, on = self.above[self.first], self.below[self.last]
        return self._along(theta[self.first], back), self._along(theta[self.last], on)

    def _along(self, weights: Tensor, following: Tensor) -> Tensor:
        one = weights.new_ones(1)
        found = torch.cat([torch.ones_like(weights), one])
        for _ in range(self.depth):
            found = torch.cat([weights * found[following], one])
        return found

    def values(self, theta: Tensor) -> Tensor:
        """v: the product of the weights along each path."""
        before, after = self.ways(theta)
        through = before[self.above] * theta * after[self.below]
        return through[self.free]


def path_flatness(instruments: Instruments) -> Estimate:
    """lambda_max(d^2 L / dv^2), v the values of n - m basis paths: products of weights along them.

    After Yi et al. (2019), as remembered, not as read. For n weights (biases are those of a
    constant input) and m hidden units or channels, the loss of a chain of linear maps and
    rectifiers is a function of so many products along paths, which no rescaling of units changes.
    Each path has one weight of its own and else the skeleton's: into and out of every unit the
    largest one, where the weight norm is least over the orbit. The choice enters: other paths give
    another number. The Hessian is exact everywhere, with the term of the gradient.
    """
    objective = instruments.objective
    basis = basis_of(objective, instruments.group)
    operator = in_values(instruments.hessian, basis, objective.vector, instruments.gradient)
    found = eigenpairs(
        operator, tol=instruments.tol, budget=instruments.budget, seed=instruments.seed
    )[0]
    return replace(found, matvecs=found.matvecs + 1)


def in_values(operator: Operator, basis: Basis, theta: Tensor, slope: Tensor) -> Operator:
    """J' H J + sum_i g_i d^2 theta_i / dv^2 for H and g in theta: the Hessian in path values.

    With the weights into each unit along the skeleton held, theta_i = a_i v_i c / v_b for a weight
    into the unit b, whose path has the value v_b, and a_i v_i into an output; another choice
    changes no loss, so neither this.
    """
    x, free = theta.double(), basis.free
    before, after = basis.ways(x)
    own, below = basis.values(x), basis.below[free]
    inside, weight = below < len(basis.first), slope.double()[free]
    column = torch.cat([basis.column, basis.column.new_zeros(1)])[below]
    rate = 1 / (before[basis.above[free]] * after[below])
    share = torch.where(inside, 1 / own[column], 0.0)  # nothing behind an output
    back, across = -x[free] * share, -weight * rate * share
    twice = 2 * weight * x[free] * share**2
    rate, back, across, twice = (t.to(theta)[:, None] for t in (rate, back, across, twice))

    def product(p: Tensor) -> Tensor:
        block = p.reshape(len(p), -1)
        behind = block[column]
        moved = block.new_zeros((len(theta), block.shape[1]))
        moved[free] = rate * block + back * behind
        image = operator.matvec(moved)[free]
        result = rate * image + across * behind
        return result.index_add_(0, column, back * image + across * block + twice * behind).reshape(
            p.shape
        )

    name = f"{operator.name} in path values"
    return replace(operator, size=len(free), matvec=product, spans={}, name=name)


# The paths ------------------------------------------------------------------------------------


def basis_of(objective: Objective, group: Group) -> Basis:
    """The basis paths of a chain of linear maps and rectifiers whose rescalings are the group."""
    layers = chain_of(objective, "path_flatness")
    if any(layer.normed for layer in layers):
        raise _refusal("it has norms behind its layers")
    missing = [n for n, _ in objective.module.named_parameters() if n not in objective.shapes]
    if missing:
        raise _refusal(f"{missing[0]} is not among the chosen parameters")
    if group.blocks:
        raise _refusal(f"the rescalings of its units are blocked ({group.blocks[0].operation})")
    above, below = _edges(objective, group)
    if _depth(above, below, group.dim) != len(layers) - 1:
        raise _refusal("the units of some layer cannot be rescaled (shared weights do that)")
    sizes = objective.vector.abs().double().cpu()
    if group.dim:
        at = representative(objective, group).log_scales
        sizes = sizes * group.flat_factors(at, objective.shapes)
    first, last = (_largest(sizes.numpy(), side, group.dim) for side in (below, above))
    if not bool((sizes[np.concatenate([first, last])] > 0).all()):
        raise _refusal(
            "all weights into some hidden unit are zero, or all out of it: no path through it has "
            "a value that can be a coordinate (prune it)"
        )
    free = np.setdiff1d(np.arange(len(above)), first)
    column = _columns(free, first, last, below, len(layers) - 1)
    places = above, below, first, last, free, column
    held = [torch.from_numpy(part).to(objective.device) for part in places]
    return Basis(*held, depth=len(layers) - 1)


def _edges(objective: Objective, group: Group) -> tuple[Numbers, Numbers]:
    """The unit that each weight comes from and the one that it leads to; m beside the units."""
    table = group.matrix(objective.shapes).tocoo()
    found = []
    for sign in (-1.0, 1.0):
        side = np.full(objective.size, group.dim, dtype=np.int64)
        of = np.flatnonzero(table.data == sign)
        side[table.row[of]] = table.col[of]
        found.append((side, len(of)))
    (above, outs), (below, ins) = found
    taken = np.count_nonzero(above < group.dim), np.count_nonzero(below < group.dim)
    if (outs, ins) != taken or outs + ins != table.nnz:
        raise _refusal("its weights do not lead from one unit to one other")
    return above, below


def _depth(above: Numbers, below: Numbers, units: int) -> int:
    """How many units lie on the longest path; -1 if it has no end."""
    level = np.ones(units + 1, dtype=np.int64)
    level[units] = 0
    for _ in range(units + 1):
        deeper = level.copy()
        np.maximum.at(deeper, below, level[above] + 1)
        deeper[units] = 0
        if (deeper == level).all():
            return int(level.max())
        level = deeper
    return -1


def _largest(sizes: NDArray[np.float64], side: Numbers, units: int) -> Numbers:
    """The place of the largest weight of every unit on one side of it."""
    order = np.argsort(sizes, kind="stable")
    found = np.full(units + 1, -1, dtype=np.int64)
    found[side[order]] = order  # the last of several stays
    if (found[:units] < 0).any():
        raise _refusal("some unit has weights on one side only")
    largest = sizes[found[side]]
    alike = (side < units) & (largest > 0) & (sizes > largest * (1 - ALIKE))
    if np.count_nonzero(alike) > np.count_nonzero(sizes[found[:units]]):
        raise _refusal(
            "of some unit two weights are as large as each other where the weight norm is least, "
            "so that the paths of the basis are not determined"
        )
    return found[:units]


def _columns(free: Numbers, first: Numbers, last: Numbers, below: Numbers, depth: int) -> Numbers:
    """Which path is that of a unit's skeleton: of the first weight on it that is no `first` one."""
    place = np.full(len(below), -1, dtype=np.int64)
    place[free] = np.arange(len(free))
    found = place[last]
    for _ in range(depth):
        open_ends = np.flatnonzero(found < 0)
        found[open_ends] = found[below[last[open_ends]]]
    return found


def _refusal(why: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"path_flatness is of networks of linear maps and rectifiers whose units can be rescaled, "
        f"with all their weights; this is none: {why}. Use adaptive_spectral"
    )


ENTRIES: dict[str, Measure] = {
    "path_flatness": Measure(
        path_flatness,
        title="curvature in path values",
        family="curvature",
        invariances=UNIT,
        reference="after Yi et al. (2019)",
        cost=TOP,
        is_sharpness=True,
        work=Work(gradients=1, products=12),
    ),
}
