"""Where the training of a posterior stands: tensors and plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiritlevel.bounds.gaussian import Gaussian
from spiritlevel.results.bound import Step

SECOND, TINY = 0.99, 1e-10  # of Adam: how slowly squares are forgotten, and what roots are above


@dataclass
class Standing:
    """Means and log spreads, (2, parameters), with the two averages of Adam; and what is done."""

    value: Tensor
    first: Tensor
    second: Tensor
    total: Tensor  # of the losses of the epoch under way, and what they are averaged over: numbers
    count: Tensor  # on the device, which nobody waits for
    step: int = 0  # steps made
    place: int = 0  # of them in the epoch under way
    price: float = 0.0  # of a nat, in this epoch
    steps: list[Step] = field(default_factory=list)

    @property
    def mean(self) -> Tensor:
        return self.value[0]

    @property
    def log_spread(self) -> Tensor:
        return self.value[1]

    @property
    def finite(self) -> bool:
        """Whether it is a Gaussian still."""
        spread = self.log_spread.exp()
        return bool((self.mean.isfinite() & spread.isfinite() & (spread > 0)).all())

    def moved(self, slope: Tensor, rates: tuple[float, float], momentum: float) -> None:
        """A step of Adam (Kingma & Ba, 2015), of RMSprop where there is no momentum."""
        self.step += 1
        self.place += 1
        self.first.lerp_(slope, 1 - momentum)
        self.second.lerp_(slope.square(), 1 - SECOND)
        root = (self.second / (1 - SECOND**self.step)).sqrt_().add_(TINY)
        way = self.first / root
        for row, rate in zip(way, rates, strict=True):
            row.mul_(rate / (1 - momentum**self.step))
        self.value -= way

    def ended(self, told: Step) -> None:
        """An epoch is done."""
        self.steps.append(told)
        self.total.zero_()
        self.count.zero_()
        self.place = 0


def fresh(start: Gaussian, like: Tensor) -> Standing:
    """A training before its first step."""
    mean = start.mean.to(like)
    value = torch.stack([mean, start.spread.to(like).log().expand_as(mean)])
    zero = torch.zeros_like(value)
    total = torch.zeros((), dtype=torch.float64, device=like.device)
    return Standing(value, zero, zero.clone(), total, total.clone())
