"""What the callbacks of all frameworks do: look after each step, and log what is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from spiritlevel.base.doors import function
from spiritlevel.base.errors import SpiritlevelError

Log = Callable[[dict[str, float], int], Any]
PREFIX = "watch/"


class Looking:
    """A watch with a logger, asked once about every step."""

    def __init__(
        self, watch: Any, module: Callable[[nn.Module], nn.Module] | None, log: Log | None
    ) -> None:
        if isinstance(watch, type) or not callable(getattr(watch, "look", None)):
            raise SpiritlevelError(
                f"watch is a {type(watch).__name__}; give a spiritlevel.training.Watch(objective)"
            )
        if module is not None:
            function("module", module, "the trained module that returns the one to look at")
        if log is not None:
            function("log", log, "numbers by name and a step")
        self.watch, self.module, self.given = watch, module, log
        self.rate: float | None = None  # of the last step
        self._own = watch.log
        self._asked = -1

    def begin(self, framework: Log) -> None:
        """Log where it was asked for, else by the watch's own logger, else by the framework's."""

        def named(numbers: dict[str, float], step: int) -> None:
            framework({f"{PREFIX}{name}": value for name, value in numbers.items()}, step)

        self._own = self.watch.log
        self.watch.log = self.given or self._own or named

    def look(self, model: nn.Module, step: int, *, last: bool = False) -> None:
        """Ask the watch, unless it was asked about this step."""
        moments = self.watch.moments
        seen = bool(moments) and moments[-1].step == step
        if step == self._asked and (seen or not last):
            return
        self._asked = step
        chosen = model if self.module is None else self.module(model)
        self.watch.look(chosen, step=step, rate=self.rate, now=last)

    def end(self) -> None:
        self.watch.log = self._own


def rate_of(optimizer: Any) -> float | None:
    """The learning rate; None where there is none, or one for each of several groups."""
    rates = {group.get("lr") for group in getattr(optimizer, "param_groups", ())}
    return float(rates.pop()) if len(rates) == 1 and None not in rates else None
