"""A way along the orbit: the curvature changes at every stop, the predictions at none."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.operator import scaled
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.results.way import Stop, Way
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry import Group

EXAMPLES = 2000  # a picture needs no more
SHOWN = 5  # examples whose predictions are shown
OUTPUTS = 12
EIGENVALUES = 8
STEPS = 4  # stops between two named ones
REACH = 0.3  # of the slices
WIDTH = 31


@dataclass(frozen=True)
class Points:
    """What an audit is measured at: elements of the group lead from the objective to the rest."""

    objective: Objective
    group: Group
    elements: dict[str, Tensor]


@set_apart()
def way_along(points: Points) -> tuple[Way | None, float]:
    """The way that the page of an audit shows, None if there is nowhere to go; and its products."""
    named = [n for n in ("balanced", "here", "sharpened") if n == "here" or n in points.elements]
    if len(named) < 2:
        return None, 0.0
    objective, group = _exact(_some(points.objective)), points.group
    elements = {"here": group.identity(), **points.elements}
    places = _between([(name, elements[name]) for name in named])
    base = hessian(objective)
    distances = torch.linspace(-REACH, REACH, WIDTH, dtype=torch.float64)
    softmax = objective.loss.likelihood == "softmax"
    first = _predictions(objective, softmax)
    stops, products = [], 0.0
    with bar(len(places), "way") as progress:
        for position, label, t in places:
            point = group.apply(objective, t)
            # the Hessian there is D^-1 H D^-1: one operator serves all stops
            there = scaled(base, 1 / group.flat_factors(t, objective.shapes))
            pairs = eigenpairs(there, min(EIGENVALUES, objective.size), tol=0.02, budget=80)
            products += pairs[0].matvecs * objective.examples / points.objective.examples
            predictions = _predictions(point, softmax)
            stops.append(
                Stop(
                    position=position,
                    label=label,
                    eigenvalues=tuple(e.value for e in pairs.values),
                    slice=_slice(point, pairs.vectors[:, 0], distances),
                    predictions=_rows(predictions),
                    change=float((predictions - first).abs().max() / first.abs().max()),
                )
            )
            progress.update()
    outputs = tuple(str(i) for i in range(min(first.shape[1], OUTPUTS)))
    kind = "probabilities" if softmax else "outputs"
    found = Way(tuple(stops), tuple(distances.tolist()), outputs, objective.examples, kind)
    return found, products


def _some(objective: Objective) -> Objective:
    """The objective on its first examples, where it has many."""
    if objective.examples <= EXAMPLES or not objective.separable:
        return objective
    kept, left = [], EXAMPLES
    for batch in objective.batches:
        kept.append(frozen.rows(batch, slice(0, left)))
        left -= frozen.examples(kept[-1])
        if left <= 0:
            break
    return objective.on(kept)


def _exact(objective: Objective) -> Objective:
    """In float64, so that the digits of the predictions stand still; if the model can run so."""
    exact = objective.to(torch.float64)
    try:
        exact.gradient_sum(exact.few(2))
    except RuntimeError:  # kernels or constants of one precision
        return objective
    return exact


def _between(named: list[tuple[str, Tensor]]) -> list[tuple[float, str, Tensor]]:
    """The named elements and the ones between, evenly spaced."""
    found: list[tuple[float, str, Tensor]] = []
    for i, ((name, start), (_, end)) in enumerate(itertools.pairwise(named)):
        for j in range(STEPS):
            part = j / STEPS
            label = name if j == 0 else ""
            found.append((i + part, label, (1 - part) * start + part * end))
    name, last = named[-1]
    return [*found, (float(len(named) - 1), name, last)]


def _predictions(objective: Objective, softmax: bool) -> Tensor:
    """All predictions, one row each, as probabilities where the loss reads them so."""
    found = objective.predictions().double()
    if softmax:
        found = found.softmax(objective.loss.class_axis)
    return found.reshape(len(found), -1).cpu()


def _rows(predictions: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in predictions[:SHOWN, :OUTPUTS].tolist())


def _slice(point: Objective, direction: Tensor, distances: Tensor) -> tuple[float, ...]:
    """The loss along a unit direction; where it overflows, the largest finite one."""
    theta = point.vector
    losses = [point.at(theta + d * direction).value() for d in distances.tolist()]
    most = max((x for x in losses if x < float("inf")), default=0.0)
    return tuple(x if x < float("inf") else most for x in losses)
