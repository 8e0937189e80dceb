"""Where a training stands, and the parts that it moves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from spiritlevel.objective.module import unwrap
from spiritlevel.results.history import Epoch


@dataclass
class Standing:
    """What is done, as plain numbers: all that a resumption needs beside tensors."""

    epochs: list[Epoch] = field(default_factory=list)
    step: int = 0  # steps made
    place: int = 0  # batches done of the epoch under way
    examples: int = 0  # in them, or in the whole epoch that ended last
    total: float = 0.0  # of their losses
    count: float = 0.0
    rate: float = 0.0  # of the last step
    looked: int = -1  # the step that the watch was last asked about
    owed: bool = False  # a look that Ctrl-C ended
    began: float = 0.0  # seconds when the epoch began
    seconds: float = 0.0  # in all, runs before a kill too
    stopped: str = ""  # why it ended before its last epoch

    @property
    def epoch(self) -> int:
        """The number of the epoch under way; the first is 1."""
        return len(self.epochs) + 1


@dataclass(frozen=True)
class Parts:
    """What is trained, by what, and who looks on."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Any
    watch: Any

    @property
    def module(self) -> nn.Module:
        """The user's own module inside wrappers."""
        return unwrap(self.model)[0]

    @property
    def rate(self) -> float:
        """The learning rate of the first group, nan where it has none."""
        return float(self.optimizer.param_groups[0].get("lr", float("nan")))

    @property
    def one_rate(self) -> bool:
        """Whether all groups have the same learning rate: there is no edge of several."""
        return len({float(g.get("lr", 0.0)) for g in self.optimizer.param_groups}) == 1

    @property
    def trained(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]


class Clock:
    """Seconds of a training, those of its earlier runs too."""

    def __init__(self, before: float) -> None:
        self._origin = time.perf_counter() - before

    def now(self) -> float:
        return time.perf_counter() - self._origin


def how_far(done: int, place: int, epochs: int) -> str:
    """What was done when a training was interrupted."""
    more = f" and {place} batches of the next" if place else ""
    return f"{done} of {epochs} epochs{more} were done"
