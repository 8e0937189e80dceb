"""The volume of a flat region, which is infinite for every net with a scale to spare."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import format_value
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import generator, rademacher
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.find import group_of
from spiritlevel.witnesses.enclosure import largest_loss

BISECTIONS = 24
MARGIN = 1e-6  # of epsilon: what the bound leaves for rounding, which it does not enclose
SYMMETRIC = 1e-9  # relative: what rounding may do to the loss along the rescaling
CLIMBS, STRIDES = 3, (1.0, 1.0, 0.5, 0.25)  # corners that an attack starts from, steps in radii


@dataclass(frozen=True)
class InfiniteVolume:
    """Disjoint boxes of one connected set on which L < L(theta) + epsilon, as many as one likes.

    The first box is theta +- `radius`; box k is its image under a rescaling by alpha^k. `intervals`
    hold the largest weight of the scaled block in each box, `largest` those that were measured at
    corners; where intervals are disjoint the boxes are. `log_volumes` are those of the boxes,
    `measured` the same from the edges of the images, `log_totals` those of all boxes so far.
    `proved` tells whether interval bounds show that the first box lies in the set; otherwise an
    attack found nothing outside, which proves nothing. `attacked` is the largest loss that it met
    in the first box, `corners` those at corners of each box. `path_gap` is how far the loss leaves
    L(theta) on the way from box to box, `corner_gap` how far a corner's loss leaves its own.
    """

    epsilon: float
    value: float
    radius: float
    norm: float
    alpha: float
    growth: float
    generator: str
    proved: bool
    intervals: tuple[tuple[float, float], ...]
    largest: tuple[float, ...]
    log_volumes: tuple[float, ...]
    measured: tuple[float, ...]
    log_totals: tuple[float, ...]
    attacked: float
    corners: tuple[float, ...]
    path_gap: float
    corner_gap: float

    @property
    def proof(self) -> str:
        """How the first box is known to lie in the set, in words."""
        return "interval bounds" if self.proved else "sampled, not proved"

    @property
    def disjoint(self) -> bool:
        """Whether intervals are, and hold what was measured."""
        apart = all(first[1] < second[0] for first, second in pairwise(self.intervals))
        held = zip(self.intervals, self.largest, strict=True)
        return apart and all(
            low * (1 - 1e-9) <= weight <= high * (1 + 1e-9) for (low, high), weight in held
        )

    @property
    def inside(self) -> bool:
        """Whether everything that was looked at lies in the set, and the path between boxes."""
        met = max(self.attacked, *self.corners)
        return met < self.value + self.epsilon and self.path_gap < self.epsilon

    @property
    def symmetric(self) -> bool:
        """Whether the rescaling leaves the loss alone, at theta and at the corners."""
        return max(self.path_gap, self.corner_gap) <= SYMMETRIC * (1 + abs(self.value))

    @property
    def grows(self) -> bool:
        """Whether no box is smaller than the one before, by the law and as measured."""
        pairs = zip(self.log_volumes, self.measured, strict=True)
        right = all(abs(law - found) <= 1e-6 * (1 + abs(law)) for law, found in pairs)
        return right and all(b >= a - 1e-9 * abs(a) for a, b in pairwise(self.log_volumes))

    @property
    def holds(self) -> bool:
        """Disjoint boxes inside the set, none of them smaller than the one before."""
        return self.disjoint and self.inside and self.grows

    def __str__(self) -> str:
        return (
            f"{len(self.intervals)} disjoint boxes with a loss below {format_value(self.value)} + "
            f"{self.epsilon:g}, by scaling {self.generator} with {self.alpha:.5f}^k\n"
            f"first box: theta +- {self.radius:.3g} ({self.proof}), log volume "
            f"{self.log_volumes[0]:.6g}; every next one {math.log(self.alpha) * self.growth:.6g} "
            f"more; all of them {self.log_totals[-1]:.6g}"
        )


def scale_factor(norm: float, radius: float) -> float:
    """alpha = 2 (R + r) / (R - r): images of a box of radius r by alpha^k are disjoint."""
    doors.number("norm", norm, above=0)
    doors.number("radius", radius, above=0)
    if not radius < norm:
        raise SpiritlevelError(
            f"the box must leave the layer away from zero: 0 < r < R; got r={radius}, R={norm}"
        )
    return 2 * (norm + radius) / (norm - radius)


def box_intervals(norm: float, radius: float, boxes: int) -> tuple[tuple[float, float], ...]:
    """]alpha^k (R - r), alpha^k (R + r)[: where the largest weight lies in box k."""
    alpha = scale_factor(norm, radius)
    doors.number("boxes", boxes, 1, whole=True)
    return tuple((alpha**k * (norm - radius), alpha**k * (norm + radius)) for k in range(boxes))


def box_log_volumes(
    size: int, radius: float, alpha: float, growth: float, boxes: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """n log 2r + k g log alpha, and the same of the first k boxes together.

    The rescaling has the determinant alpha^g, g = n1 - n2: the boxes are equal only if n1 = n2.
    """
    doors.number("size", size, 1, whole=True)
    doors.number("radius", radius, above=0)
    doors.number("alpha", alpha, above=0)
    doors.number("growth", growth)
    doors.number("boxes", boxes, 1, whole=True)
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
    the volume of the set is infinite (Dinh et al., 2017). Computed in float64.
    """
    only_objectives(objective)
    doors.number("epsilon", epsilon, above=0)
    doors.number("boxes", boxes, 2, whole=True)
    doors.number("corners", corners, 1, whole=True)
    tensor_doors.seeded(seed)
    exact = objective.to(torch.float64)
    layers = group_of(objective, group).layerwise()
    direction = _direction(exact, layers)
    radius, proved = _radius(exact, epsilon, direction.norm, seed)
    found = InfiniteVolume(
        epsilon=epsilon,
        value=exact.value(),
        generator=layers.generators[direction.index].name,
        proved=proved,
        **_laid_out(exact.size, direction, radius, boxes),
        attacked=worst_in_box(exact, radius, seed + 1),
        **_look(exact, layers, direction, radius, boxes, corners, seed),
    )
    return _judged(found)


def _laid_out(size: int, direction: _Direction, radius: float, boxes: int) -> dict[str, Any]:
    """What is known of the boxes in closed form."""
    norm, growth = direction.norm, direction.growth
    alpha = scale_factor(norm, radius)
    volumes, totals = box_log_volumes(size, radius, alpha, growth, boxes)
    return {
        **{"radius": radius, "norm": norm, "alpha": alpha, "growth": growth},
        "intervals": box_intervals(norm, radius, boxes),
        **{"log_volumes": volumes, "log_totals": totals},
    }


def _judged(found: InfiniteVolume) -> InfiniteVolume:
    """What was found, proved only if its premises were seen to hold; or why it is none."""
    moved, met = max(found.path_gap, found.corner_gap), max(found.attacked, *found.corners)
    if moved >= found.epsilon:
        raise SpiritlevelError(
            f"the loss moves by {moved:.3g} along {found.generator}: it is no function of the "
            "predictions alone, and the construction does not apply"
        )
    if found.proved and not found.inside:
        raise SpiritlevelError(
            f"interval bounds put a box below {found.value + found.epsilon:.6g}, and a point of "
            f"it has the loss {met:.6g}: please report this model"
        )
    return replace(found, proved=found.proved and found.symmetric)


def _look(
    exact: Objective,
    layers: Group,
    direction: _Direction,
    radius: float,
    boxes: int,
    corners: int,
    seed: int,
) -> dict[str, Any]:
    """What is seen at the images of theta, of corners of its box, and on the way between boxes."""
    signs = [rademacher(exact.size, generator(seed + i), exact.vector) for i in range(corners)]
    starts = [exact.at(exact.vector + radius * s) for s in signs]
    log_alpha = math.log(scale_factor(direction.norm, radius))
    block = (direction.exponents == 1).to(exact.device)
    seen: dict[str, Any] = {"largest": [], "measured": [], "corners": []}
    path, drift = 0.0, 0.0
    for k in range(boxes):
        t = _element(layers, direction, k * log_alpha)
        center, images = layers.apply(exact, t), [layers.apply(o, t) for o in starts]
        values = [image.value() for image in images]
        seen["corners"].append(max(values))
        seen["largest"].append(float(images[0].vector[block].abs().max()))
        edges = (images[0].vector - center.vector).abs()
        seen["measured"].append(float((2 * edges).log().sum()))
        half = layers.apply(exact, _element(layers, direction, (k + 0.5) * log_alpha))
        path = max(path, *(abs(o.value() - exact.value()) for o in (center, half)))
        drift = max(drift, *(abs(v - o.value()) for v, o in zip(values, starts, strict=True)))
    return {k: tuple(v) for k, v in seen.items()} | {"path_gap": path, "corner_gap": drift}


@set_apart()
def worst_in_box(
    objective: Objective, radius: float, seed: int = 0, *, enough: float = math.inf
) -> float:
    """The largest loss met in theta +- radius: steps along the gradient's signs, cut to the box.

    From the centre and from random corners; a search, which proves nothing. It ends at `enough`.
    """
    only_objectives(objective)
    doors.number("radius", radius, above=0)
    tensor_doors.seeded(seed)
    if not isinstance(enough, float) or not math.isinf(enough):
        doors.number("enough", enough)
    center, draws, best = objective.vector, generator(seed), -math.inf
    starts = [torch.zeros_like(center)]
    starts += [radius * rademacher(objective.size, draws, center) for _ in range(CLIMBS)]
    for start in starts:
        here = objective.at(center + start)
        for stride in STRIDES:
            step = here.vector - center + 2 * stride * radius * here.gradient().sign()
            here = objective.at(center + step.clamp(-radius, radius))
            value = here.value()
            best = math.inf if math.isnan(value) else max(best, value)
        if best >= enough:
            break
    return best


def _direction(objective: Objective, layers: Group) -> _Direction:
    """The layer and the sign by which volumes grow most."""
    if layers.buffers:
        raise SpiritlevelError(
            f"this group moves {min(layers.buffers)!r}, which is no parameter, and so the loss as "
            'a function of the parameters; find the group with statistics="fixed"'
        )
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
    # a bias that nothing sees can be scaled, but statistics that subtract it drown in its rounding
    return max(found, key=lambda d: (layers.generators[d.index].kind != "dead", d.growth))


def _element(layers: Group, direction: _Direction, log_scale: float) -> Tensor:
    t = layers.identity()
    t[direction.index] = direction.unit * log_scale
    return t


def _radius(objective: Objective, epsilon: float, norm: float, seed: int) -> tuple[float, bool]:
    """The largest r <= R/2 whose box stays in the set, by bisection of log r; whether proved."""
    value, limit = objective.value(), objective.value() + epsilon * (1 - MARGIN)
    bound = largest_loss(objective, 0.0)
    proved = bound is not None and abs(bound - value) <= min(1e-9 * (1 + abs(value)), epsilon)

    def inside(radius: float) -> bool:
        if not proved:
            return worst_in_box(objective, radius, seed, enough=limit) < limit
        bound = largest_loss(objective, radius)
        return bound is not None and bound < limit

    radius = _bisected(inside, norm / 2)
    # what one attack did not find another one may: half of the way is left for it
    return (radius, True) if proved else (radius / 2, False)


def _bisected(inside: Callable[[float], bool], most: float) -> float:
    if inside(most):
        return most
    low, high = math.log(most) - 60, math.log(most)
    if not inside(math.exp(low)):
        raise SpiritlevelError(
            "no box around this point stays below L + epsilon: give a larger epsilon"
        )
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(math.exp(middle)) else (low, middle)
    return math.exp(low)
