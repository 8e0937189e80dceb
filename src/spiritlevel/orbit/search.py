"""Any measure along the orbit: the span that a search finds, which proves nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.estimate import Estimate, format_value
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import generator
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.find import group_of

AnyMeasure = Callable[[Objective], Any]  # a number or an Estimate
REACH = 5.0


@dataclass(frozen=True)
class Span:
    """The least and the largest value that a search along the orbit found: no bounds."""

    low: float
    high: float
    here: float
    low_at: Tensor
    high_at: Tensor
    evaluations: int

    def __str__(self) -> str:
        low, here, high = (format_value(v, 1e-3 * abs(v)) for v in (self.low, self.here, self.high))
        return f"from {low} to {high} ({here} here): found, not proved"


@set_apart()
def search(
    objective: Objective,
    group: Group | None,
    measure: AnyMeasure,
    *,
    evaluations: int = 40,
    reach: float = REACH,
    seed: int = 0,
) -> Span:
    """The least and the largest value of any function of an Objective that a search finds.

    Half of the evaluations go up, half down: along whole layers in turn and along random directions
    of all generators, with steps that grow after a success and shrink after a failure. Log-scales
    stay within `reach`, because the supremum of many measures is infinite.
    """
    only_objectives(objective)
    doors.function("measure", measure, "an Objective, such as an entry of MEASURES")
    doors.number("evaluations", evaluations, 2, whole=True)
    doors.number("reach", reach, above=0)
    tensor_doors.seeded(seed)
    group = group_of(objective, group)
    here = number(measure(objective))
    spans = {}
    with bar(evaluations, "search along the orbit") as progress:
        for name, sign in (("low", -1.0), ("high", 1.0)):

            def better(t: Tensor, sign: float = sign) -> float:
                progress.update()
                return sign * number(measure(group.apply(objective, t)))

            spans[name] = _climb(group, better, sign * here, evaluations // 2, reach, seed)
    low, high = spans["low"], spans["high"]
    return Span(-low[0], high[0], here, low[1], high[1], evaluations)


def number(found: Any) -> float:
    """The value of an Estimate or of a number."""
    return found.value if isinstance(found, Estimate) else float(found)


def _climb(
    group: Group,
    value: Callable[[Tensor], float],
    best: float,
    evaluations: int,
    reach: float,
    seed: int,
) -> tuple[float, Tensor]:
    """A pattern search: layer by layer, and at random."""
    t = group.identity()
    if not group.dim:
        return best, t
    ways = [*_layers(group), None]
    steps = [1.0] * len(ways)
    draws = generator(seed)
    for i in range(evaluations):
        place = i % len(ways)
        way = ways[place]
        if way is None:
            way = torch.randn(group.dim, generator=draws, dtype=torch.float64)
        tried = (t + steps[place] * way).clamp(-reach, reach)
        found = value(tried)
        if math.isfinite(found) and found > best:
            best, t = found, tried
            steps[place] *= 2
        else:
            steps[place] *= -0.5
    return best, t


def _layers(group: Group) -> list[Tensor]:
    """One direction per layer: all its generators together."""
    members: dict[tuple[str, str], Tensor] = {}
    for index, g in enumerate(group.generators):
        members.setdefault((g.layer, g.kind), group.identity())[index] = 1.0
    return list(members.values())
