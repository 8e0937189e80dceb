"""The volume of a flat region, which is infinite for every net with a scale to spare."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from spiritlevel.enclosure import largest_loss
from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import format_value
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.scope import set_apart
from spiritlevel.symmetry import Group, symmetries
from spiritlevel.tensors import generator, rademacher

BISECTIONS = 40
SAMPLED = 32  # corners that a box without interval bounds must pass


@dataclass(frozen=True)
class InfiniteVolume:
    """Disjoint boxes of one connected set on which L < L(theta) + epsilon, as many as one likes.

    The first box is theta +- `radius`; box k is its image under a rescaling by alpha^k. `intervals`
    hold the largest weight of the scaled block in each box; where they are disjoint the boxes are.
    `log_volumes` are those of the boxes, `log_totals` those of all boxes so far. `proof` says
    how the first box is known to lie in the set: "interval bounds", or "sampled corners" only.
    `corners` are the largest losses among the corners that were sampled of each box; `path_gap`
    is how far the loss leaves L(theta) on the way from box to box.
    """

    epsilon: float
    value: float
    radius: float
    norm: float
    alpha: float
    growth: float
    generator: str
    proof: str
    intervals: tuple[tuple[float, float], ...]
    log_volumes: tuple[float, ...]
    log_totals: tuple[float, ...]
    corners: tuple[float, ...]
    path_gap: float

    @property
    def disjoint(self) -> bool:
        return all(first[1] < second[0] for first, second in pairwise(self.intervals))

    @property
    def inside(self) -> bool:
        """Whether all corners that were looked at lie in the set, and the path between boxes."""
        return max(self.corners) < self.value + self.epsilon and self.path_gap < self.epsilon

    @property
    def holds(self) -> bool:
        """Disjoint boxes inside the set, none of them smaller than the first."""
        grows = all(b >= a - 1e-9 * abs(a) for a, b in pairwise(self.log_volumes))
        return self.disjoint and self.inside and grows

    def __str__(self) -> str:
        return (
            f"{len(self.intervals)} disjoint boxes with a loss below {format_value(self.value)} + "
            f"{self.epsilon:g}, by scaling {self.generator} with {self.alpha:.5f}^k\n"
            f"first box: theta +- {self.radius:.3g} (by {self.proof}), log volume "
            f"{self.log_volumes[0]:.6g}; every next one {math.log(self.alpha) * self.growth:.6g} "
            f"more; all of them {self.log_totals[-1]:.6g}"
        )


def scale_factor(norm: float, radius: float) -> float:
    """alpha = 2 (R + r) / (R - r): images of a box of radius r by alpha^k are disjoint."""
    if not 0 < radius < norm:
        raise SpiritlevelError(
            f"the box must leave the layer away from zero: 0 < r < R; got r={radius}, R={norm}"
        )
    return 2 * (norm + radius) / (norm - radius)


def box_intervals(norm: float, radius: float, boxes: int) -> tuple[tuple[float, float], ...]:
    """]alpha^k (R - r), alpha^k (R + r)[: where the largest weight lies in box k."""
    alpha = scale_factor(norm, radius)
    return tuple((alpha**k * (norm - radius), alpha**k * (norm + radius)) for k in range(boxes))


def box_log_volumes(
    size: int, radius: float, alpha: float, growth: float, boxes: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """n log 2r + k g log alpha, and the same of the first k boxes together.

    The rescaling has the determinant alpha^g, g = n1 - n2: the boxes are equal only if n1 = n2.
    """
    volumes = size * math.log(2 * radius) + torch.arange(boxes).double() * growth * math.log(alpha)
    return tuple(volumes.tolist()), tuple(volumes.logcumsumexp(0).tolist())


@dataclass(frozen=True)
class _Direction:
    """A generator with the sign that does not shrink volumes; exponents 1 on what grows."""

    index: int
    unit: float  # the log-scale of the generator that multiplies what grows by e
    exponents: Tensor
    norm: float

    @property
    def growth(self) -> float:
        return float(self.exponents.sum())


@set_apart()
def infinite_volume(
    objective: Objective,
    epsilon: float,
    *,
    group: Group | None = None,
    boxes: int = 60,
    corners: int = 4,
    seed: int = 0,
) -> InfiniteVolume:
    """Disjoint boxes of the set around theta with L < L(theta) + epsilon, growing without end.

    A box theta +- r inside, with r < R = |theta_1|_inf of a layer that can be scaled, and its
    images by alpha^k. Along the rescaling the loss is constant, so all of them hang together, and
    the volume of the set is infinite (Dinh et al., 2017, section 4.1). Computed in float64.
    """
    only_objectives(objective)
    if not epsilon > 0 or boxes < 2 or corners < 1:
        raise SpiritlevelError(
            "give epsilon > 0, two boxes or more and a corner or more; "
            f"got epsilon={epsilon}, boxes={boxes}, corners={corners}"
        )
    exact = objective.to(torch.float64)
    layers = (symmetries(objective) if group is None else group).layerwise()
    direction = _direction(exact, layers)
    radius, proof = _radius(exact, epsilon, direction.norm, seed)
    alpha = scale_factor(direction.norm, radius)
    signs = [rademacher(exact.size, generator(seed + i), exact.vector) for i in range(corners)]
    highest, gap = [], 0.0
    for k in range(boxes):
        t = _element(layers, direction, k * math.log(alpha))
        found = [layers.apply(exact.at(exact.vector + radius * s), t).value() for s in signs]
        highest.append(max(found))
        half = _element(layers, direction, (k + 0.5) * math.log(alpha))
        for point in (t, half) if k + 1 < boxes else (t,):
            gap = max(gap, abs(layers.apply(exact, point).value() - exact.value()))
    volumes, totals = box_log_volumes(exact.size, radius, alpha, direction.growth, boxes)
    return InfiniteVolume(
        epsilon=epsilon,
        value=exact.value(),
        radius=radius,
        norm=direction.norm,
        alpha=alpha,
        growth=direction.growth,
        generator=layers.generators[direction.index].name,
        proof=proof,
        intervals=box_intervals(direction.norm, radius, boxes),
        log_volumes=volumes,
        log_totals=totals,
        corners=tuple(highest),
        path_gap=gap,
    )


def _direction(objective: Objective, layers: Group) -> _Direction:
    """The layer and the sign by which volumes grow most."""
    matrix = torch.from_numpy(layers.matrix(objective.shapes).toarray())
    found = []
    for index in range(layers.dim):
        for sign in (1.0, -1.0):
            exponents = sign * matrix[:, index]
            largest = float(exponents.max())
            if largest <= 0 or float(exponents.sum()) < 0:
                continue
            norm = float(objective.vector.cpu()[exponents == largest].abs().max())
            if norm > 0:
                found.append(_Direction(index, sign / largest, exponents / largest, norm))
    if not found:
        reasons = ", ".join(dict.fromkeys(str(b) for b in layers.blocks)) or "no layer to scale"
        raise SpiritlevelError(
            f"this model has no rescaling of a layer: the construction does not apply ({reasons})"
        )
    return max(found, key=lambda d: d.growth)


def _element(layers: Group, direction: _Direction, log_scale: float) -> Tensor:
    t = layers.identity()
    t[direction.index] = direction.unit * log_scale
    return t


def _radius(objective: Objective, epsilon: float, norm: float, seed: int) -> tuple[float, str]:
    """The largest r <= R/2 whose box stays in the set, by bisection of log r."""
    limit = objective.value() + epsilon
    if largest_loss(objective, 0.0) is not None:
        proof = "interval bounds"

        def inside(radius: float) -> bool:
            bound = largest_loss(objective, radius)
            return bound is not None and bound < limit

    else:
        proof = "sampled corners"
        draws = generator(seed)
        signs = [rademacher(objective.size, draws, objective.vector) for _ in range(SAMPLED)]

        def inside(radius: float) -> bool:
            return all(objective.at(objective.vector + radius * s).value() < limit for s in signs)

    return _bisected(inside, norm / 2), proof


def _bisected(inside: Callable[[float], bool], most: float) -> float:
    if inside(most):
        return most
    low, high = math.log(most) - 60, math.log(most)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(math.exp(middle)) else (low, middle)
    if not inside(math.exp(low)):
        raise SpiritlevelError(
            "no box around this point stays below L + epsilon: give a larger epsilon"
        )
    return math.exp(low)
