"""One change of coordinates that puts several minima in any order of sharpness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import torch
from torch import Tensor

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, format_value
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.coordinates.maps import Chain
from spiritlevel.coordinates.radial import Radial
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.spectral import eigenpairs

SHARE = 0.45  # of the least distance between two minima: the balls stay disjoint
STEP = 2.0  # from one minimum to the next in the new order
PROOFS = 4  # random points around each minimum at which values are compared


@dataclass(frozen=True)
class Reranked:
    """One bijection, the minima in its coordinates, and the proof that it is the same function.

    `before` and `after` are spectral norms of the Hessian, in the order in which the minima were
    given; `after` is measured in eta. `value_gap` is the largest difference of the loss between
    corresponding points, at the minima and in and around their balls; `round_trip` how far such
    points are from themselves after eta -> theta -> eta.
    """

    coordinates: Chain
    objectives: tuple[Objective, ...]
    order: tuple[int, ...]
    before: tuple[Estimate, ...]
    after: tuple[Estimate, ...]
    value_gap: float
    round_trip: float

    @property
    def holds(self) -> bool:
        """Whether the minima now come in the order that was asked for, by more than the errors."""
        sizes = [self.after[i] for i in self.order]
        return all(a.value + a.error < b.value - b.error for a, b in pairwise(sizes))

    def __str__(self) -> str:
        def row(found: tuple[Estimate, ...]) -> str:
            return ", ".join(format_value(e.value, 0.01 * e.value) for e in found)

        return (
            f"spectral norms {row(self.before)} -> {row(self.after)}; flattest to sharpest: "
            f"{', '.join(map(str, self.order))}\nthe same function: values at corresponding points "
            f"differ by at most {self.value_gap:.1e}, there and back by {self.round_trip:.1e}"
        )


@set_apart()
def rerank(objectives: Sequence[Objective], order: Sequence[int], *, seed: int = 0) -> Reranked:
    """Coordinates in which minima of one loss come in `order`, from flattest to sharpest.

    Radial maps with disjoint balls around the minima; each multiplies the Hessian at its centre by
    (r_hat / rho)^2 and is the identity elsewhere, so that all of them together are one bijection
    (Dinh et al., 2017, section 5). The target norms are geometric around the mean of those found.
    """
    tensor_doors.seeded(seed)
    first, *_ = checked = _checked(objectives, order)
    before = tuple(_norm(o, seed) for o in checked)
    norms = [e.value for e in before]
    if not all(norm > 0 for norm in norms):
        raise SpiritlevelError("a minimum without curvature cannot be ranked: its Hessian is zero")
    points = [o.vector for o in checked]
    delta = SHARE * min(float((a - b).norm()) for a, b in combinations(points, 2))
    mean = math.exp(sum(map(math.log, norms)) / len(norms))
    parts = []
    for place, index in enumerate(order):
        target = mean * STEP ** (place - (len(norms) - 1) / 2)
        parts.append(_ball(points[index], delta, math.sqrt(target / norms[index])))
    coordinates = Chain(tuple(parts))
    there = tuple(first.at(point).reparametrize(coordinates) for point in points)
    after = tuple(_norm(o, seed) for o in there)
    gap, trip = _proof(first, coordinates, points, delta, seed)
    return Reranked(coordinates, there, tuple(order), before, after, gap, trip)


def _norm(objective: Objective, seed: int) -> Estimate:
    """The spectral norm of the Hessian: the size of its largest eigenvalue, of either sign."""
    found = eigenpairs(hessian(objective), which="magnitude", seed=seed)[0]
    return replace(found, value=abs(found.value))


def _checked(objectives: Sequence[Objective], order: Sequence[int]) -> list[Objective]:
    doors.a("objectives", objectives, (list, tuple), "two Objectives or more")
    doors.a(
        "order", order, (list, tuple), "the numbers of the objectives, from flattest to sharpest"
    )
    only_objectives(*objectives)
    doors.places("order", order, len(objectives))
    if len(objectives) < 2 or sorted(order) != list(range(len(objectives))):
        raise SpiritlevelError(
            f"rerank() needs two minima or more and an order of their numbers, such as "
            f"{list(range(max(len(objectives), 2)))}; got {len(objectives)} and {list(order)}"
        )
    first = objectives[0]
    for other in objectives[1:]:
        if other.shapes != first.shapes:
            raise SpiritlevelError("rerank() needs minima of one architecture: the shapes differ")
        here, there = first.at(other.vector).value(), other.value()
        if not math.isclose(here, there, rel_tol=1e-6, abs_tol=1e-9):
            raise SpiritlevelError(
                f"rerank() needs minima of one loss on one data set: the same point has the value "
                f"{here:.6g} in the first objective and {there:.6g} in another"
            )
        if torch.equal(other.vector, first.vector):
            raise SpiritlevelError("rerank() needs minima that differ; two are the same point")
    return list(objectives)


def _ball(center: Tensor, delta: float, stretch: float) -> Radial:
    """r_hat / rho = stretch, the larger of the two half of delta."""
    largest = delta / 2
    r_hat, rho = (largest, largest / stretch) if stretch > 1 else (largest * stretch, largest)
    return Radial(center, r_hat, delta, rho)


def _proof(
    objective: Objective, coordinates: Chain, points: list[Tensor], delta: float, seed: int
) -> tuple[float, float]:
    """L(theta) against L_eta(g^-1(theta)) at the minima and at random points around them."""
    draws, values, trips = generator(seed), [], []
    for point in points:
        for share in [0.0, *torch.linspace(0.1, 1.3, PROOFS).tolist()]:
            ray = gaussian(objective.size, draws, point)
            theta = point + share * delta * ray / ray.norm()
            here = objective.at(theta)
            there = here.reparametrize(coordinates)
            values.append(abs(there.value() - here.value()) / max(1.0, abs(here.value())))
            back = coordinates.inverse(coordinates.forward(there.vector))
            trips.append(float((back - there.vector).abs().max()))
    return max(values), max(trips)
