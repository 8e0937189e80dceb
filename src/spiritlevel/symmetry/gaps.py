"""Outputs compared one by one: with what a little noise on the parameters does to each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.errors import ChangedError
from spiritlevel.base.scope import without_tf32
from spiritlevel.base.tensors import generator, rademacher
from spiritlevel.objective import Objective
from spiritlevel.objective.loss import Total
from spiritlevel.objective.premises import sample

ALIKE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative: no proof, but no other network
ROUNDINGS = 4  # draws for the rounding of a number
OUTLIER = 1e4  # times the usual output: masked with a large number, not predicted


@dataclass(frozen=True)
class Jitter:
    """Relative noise on every parameter; what stays within `slack` times its effect is equality.

    `floor` is the rounding of an output relative to itself, `common` relative to the usual one.
    """

    size: float = 1e-13
    slack: float = 100.0
    floor: float = 1e-12
    common: float = 0.0
    draws: int = 2

    def moved(self, objective: Objective) -> list[Objective]:
        """Several draws: the effect of one may cancel at an output by luck."""
        theta, draws = objective.vector, generator(17)
        signs = [rademacher(len(theta), draws, theta) for _ in range(self.draws)]
        return [objective.at(theta * (1 + self.size * s)) for s in signs]


SINGLE = Jitter(size=2.0**-24, floor=1e-6, common=1e-6)


@dataclass(frozen=True)
class Gap:
    """The largest differences of some outputs, and whether all of them are rounding."""

    absolute: float
    difference: float  # of those that are no outliers
    scale: float
    within: bool

    @property
    def relative(self) -> float:
        return self.difference / self.scale if self.difference else 0.0

    def __or__(self, other: Gap) -> Gap:
        return Gap(
            max(self.absolute, other.absolute),
            max(self.difference, other.difference),
            max(self.scale, other.scale),
            self.within and other.within,
        )


def rounding(number: Callable[[Objective], float], objective: Objective) -> float:
    """What a unit in the last place of every parameter does to a number, at most of some draws.

    A loss rounds as its outputs and targets do, whatever is left where they cancel; and so does all
    that vanishes with it. One standard error of it, as it were: it is never far off, either way.
    """
    here = number(objective)
    unit = Jitter(size=torch.finfo(objective.dtype).eps, draws=ROUNDINGS)
    changes = [abs(number(near) - here) for near in unit.moved(objective)]
    return max(filter(math.isfinite, changes), default=0.0)


NOTHING = Gap(0.0, 0.0, 1e-300, True)


def compared(
    one: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    noisy: Sequence[Mapping[str, Tensor]],
    jitter: Jitter,
) -> Gap:
    """Every output of one network with the other's, by name."""
    worst = NOTHING
    for name, a in one.items():
        worst = worst | _gap(a, other[name], [near[name] for near in noisy], jitter)
    return worst


def _gap(a: Tensor, b: Tensor, noisy: list[Tensor], jitter: Jitter) -> Gap:
    """One tensor of outputs; infinities and NaN are equal to themselves alone."""
    if a.numel() == 0:
        return NOTHING
    a, b, *near = (t.detach().double() for t in (a, b, *noisy))
    equal = (a == b) | (a.isnan() & b.isnan())
    finite = a.isfinite() & b.isfinite()
    if not bool((equal | finite).all()):
        return Gap(torch.inf, torch.inf, 1.0, False)
    difference = torch.where(equal, 0.0, (a - b).abs())
    noise = torch.stack([(n - a).abs().nan_to_num(0.0, 0.0) for n in near]).amax(0)
    # the noise on one output may vanish by luck: then the usual one at its place counts
    usual = noise.kthvalue(1 + len(a) // 4, dim=0).values if a.ndim else noise
    size = torch.where(a.isfinite(), a.abs(), 0.0)
    allowed = jitter.slack * torch.maximum(noise, usual) + jitter.floor * size
    live = (noise > 0) | (difference > 0)
    values = size[live]
    if not len(values):
        return Gap(0.0, 0.0, float(size.max().clamp(min=1e-300)), True)
    allowed = allowed + jitter.common * values.median()
    plain = live & (size <= OUTLIER * values.median())
    return Gap(
        float(difference.max()),
        float(difference[plain].max()),
        float(size[plain].max().clamp(min=1e-300)),
        bool((difference <= allowed).all()),
    )


def same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether two tensors of outputs agree, each output relative to the usual size at its place."""
    a, b = a.detach().double(), b.detach().double()
    equal = (a == b) | (a.isnan() & b.isnan())
    size = torch.where(a.isfinite(), a.abs(), 0.0)
    changed = size[~equal]
    usual = changed.median() if len(changed) else size.new_zeros(())
    return bool((equal | ((a - b).abs() <= tolerance * torch.maximum(size, usual))).all())


@torch.no_grad()
def refuse_changed(objective: Objective, twin: Objective, admits_eps: bool) -> Objective:
    """The twin, unless a few examples from all over the data show that it is another network.

    What the eps of a norm does may be of any size: that is for the certificate to say.
    """
    if admits_eps:
        return twin
    batch = sample(objective.batches, divisible=objective.divisible)
    tolerance = ALIKE[objective.dtype]
    with without_tf32():
        found = [o.together(o.params, batch) for o in (objective, twin)]
    (before, total), (after, moved_total) = found
    for name in before:
        if not same(before[name], after[name], tolerance):
            raise ChangedError(
                "this element changes the predictions: the group is not one of this network, or "
                f"the element is beyond the range of {objective.dtype}"
            )
    if objective.loss.on_outputs is None and not _same_mean(total, moved_total, tolerance):
        raise ChangedError(
            "this element changes the loss, though no prediction: the loss is no function of the "
            "predictions, and its symmetries could not be read off its code"
        )
    return twin


def _same_mean(one: Total, other: Total, tolerance: float) -> bool:
    a, b = (float(total) / float(count) for total, count in (one, other))
    return abs(a - b) <= tolerance * (1e-3 + abs(a))
