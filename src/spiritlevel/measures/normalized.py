"""Normalized flatness: curvature and weights of each layer in the units that suit both best."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.progress import bar
from spiritlevel.curvature.diagonals import sampled_traces
from spiritlevel.measures.base import UNIT, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.weights import matrices_of
from spiritlevel.objective import Objective
from spiritlevel.orbit.balance import REACH
from spiritlevel.spectral.probes import standard_error

SWEEPS = 2000
GAP = 1e-4  # relative, between the value and its lower bound


@dataclass(frozen=True)
class Scales:
    """Factors s_i t_j of one layer's entries, (groups, rows, columns), and what they lead to.

    `value` is the sum of `curvature`, sum_ij G_ij s_i t_j, and `weights`, sum_ij W_ij^2 / (s_i
    t_j). No other factors lead to less than value - gap, unless some are e^REACH times these.
    """

    factors: Tensor
    curvature: float
    weights: float
    gap: float

    @property
    def value(self) -> float:
        return self.curvature + self.weights


def normalized_sharpness(instruments: Instruments) -> Estimate:
    """sum over layers of min over s, t > 0 of sum_ij (G_ij s_i t_j + W_ij^2 / (s_i t_j)).

    Tsuzuku et al. (2020) in the form of their preprint, G the Gauss-Newton diagonal, summed with
    W^2 over the taps of a kernel. Of weight matrices only, as in Ibayashi et al.'s code: no biases
    and gains. The scales of successive layers are not linked, so it is below any point of an orbit.
    """
    begin, objective = time.perf_counter(), instruments.objective
    diagonal = instruments.diagonal
    found = _layers(objective, diagonal.values)
    value = sum(one.value for one in found.values())
    gap = sum(one.gap for one in found.values())
    converged, stderr = gap <= GAP * value, None
    if not diagonal.exact:  # the scales fit these draws: what they lead to is known from others
        fresh = sampled_traces(objective, _flat(objective, found)[None])[:, 0]
        value = float(fresh.mean()) + sum(one.weights for one in found.values())
        stderr = standard_error(fresh)
        converged = converged and stderr <= instruments.rtol * value
    return Estimate(
        value,
        stderr=stderr,
        residual=gap if diagonal.exact else None,
        seconds=time.perf_counter() - begin,
        status=Status.CONVERGED if converged else Status.BUDGET,
        remedy="" if converged else "the scales did not come to rest; accept the error",
    )


def _layers(objective: Objective, diagonal: Tensor) -> dict[str, Scales]:
    """The best scales of every weight matrix."""
    matrices, found, curves = matrices_of(objective), {}, objective.named(diagonal)
    with bar(len(matrices), "normalized sharpness") as progress:
        for name in matrices:
            groups, shape = _layout(objective, name)
            squares = objective.params[name].double().square().reshape(shape)
            curved = curves[name].reshape(shape)
            found[name] = balanced(_table(curved, groups), _table(squares, groups))
            progress.update()
    return found


def _layout(objective: Objective, name: str) -> tuple[int, torch.Size]:
    """How many independent parts a kernel has (rows of one never meet columns of another), and
    its shape without axes of one.
    """
    owner = objective.module.get_submodule(name.rpartition(".")[0])
    shape = objective.shapes[name]
    if isinstance(owner, torch.nn.modules.conv._ConvNd):
        return int(owner.groups), shape
    shape = torch.Size(n for n in shape if n > 1) if len(shape) > 2 else shape
    if len(shape) > 2:
        raise SpiritlevelError(
            f"normalized_sharpness knows matrices and kernels; {name} has {len(shape)} axes: "
            "choose the others with params="
        )
    return 1, shape


def _table(values: Tensor, groups: int) -> Tensor:
    """(groups, rows, columns), summed over the taps."""
    rows, columns = values.shape[:2]
    return values.reshape(groups, rows // groups, columns, -1).sum(-1)


def _flat(objective: Objective, found: dict[str, Scales]) -> Tensor:
    """The factors of every parameter, zero for those that are in no weight matrix."""
    flat = objective.vector.new_zeros(objective.size, dtype=torch.float64)
    for name, one in found.items():
        table = one.factors.flatten(0, 1)
        taps = objective.shapes[name].numel() // table.numel()
        flat[objective.spans[name]] = table.reshape(-1).repeat_interleave(taps)
    return flat


def balanced(curvature: Tensor, squares: Tensor) -> Scales:
    """min over s, t of sum (G s t + W^2 / (s t)): convex in log s and log t.

    Rows and columns in turn, each in closed form. A row or column with curvature but no weights,
    or weights but no curvature, adds nothing in the limit and is left out.
    """
    alive = _two_sided(curvature, squares)
    g, w = curvature * alive, squares * alive
    t = torch.ones_like(g[:, :1])  # (groups, 1, columns)
    for _ in range(SWEEPS):
        _, ups, downs = _rows_balanced(g, w, t)
        if _gap(ups, downs) <= 0.1 * GAP * float((ups + downs).sum()):
            break
        t = t * _root(downs, ups)
    s, ups, downs = _rows_balanced(g, w, t)
    return Scales(s * t * alive, float(ups.sum()), float(downs.sum()), _gap(ups, downs))


def _rows_balanced(g: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best s for a t, and what the columns then hold of curvature and of weights."""
    s = _root((w / t).sum(2, keepdim=True), (g * t).sum(2, keepdim=True))
    return s, (g * s * t).sum(1, keepdim=True), (w / (s * t)).sum(1, keepdim=True)


def _gap(ups: Tensor, downs: Tensor) -> float:
    """By Jensen's inequality no step by at most REACH in log t gains more."""
    return REACH * float((ups - downs).abs().sum())


def _root(above: Tensor, below: Tensor) -> Tensor:
    """sqrt(a / b), and 1 where there is nothing."""
    return torch.where(below > 0, above / below.clamp(min=1e-300), 1.0).sqrt()


def _two_sided(curvature: Tensor, squares: Tensor) -> Tensor:
    """Which entries are left when rows and columns with one side only are taken out."""
    alive = torch.ones_like(curvature)
    while True:
        before = float(alive.sum())
        for axis in (1, 2):
            sides = [((m * alive).sum(axis, keepdim=True) > 0) for m in (curvature, squares)]
            alive = alive * (sides[0] == sides[1])
        if float(alive.sum()) == before:
            return alive


ENTRIES: dict[str, Measure] = {
    "normalized_sharpness": Measure(
        normalized_sharpness,
        title="normalized sharpness",
        family="curvature",
        invariances=UNIT,
        reference="Tsuzuku et al. (2020)",
        cost="an exact diagonal",
        is_sharpness=True,
        work=Work(diagonals=1),
    ),
}
