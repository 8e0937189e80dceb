"""Learning rates that do not only fall, where torch has none: several peaks, and any restarts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from spiritlevel.base.doors import a, function, number, one_of
from spiritlevel.base.errors import SpiritlevelError

Shape = Literal["linear", "geometric", "cosine"]
SET_BY_SCHEDULES = ("lr", "momentum", "betas")


class RaiseThenDecay(LRScheduler):
    """From a group's rate to `peak` times it in `rise` steps, and to `end` times in `fall` more.

    A rate above 2 / lambda_max leaves a sharp basin, and small ones settle in the next (Seong et
    al., 2018). With several `peaks` it goes on from `end`, each peak `fade` times the one before;
    after the last it stays at `end`. Between a and b, at the share u of the way: a + (b - a) u
    ("linear"), a (b / a)^u ("geometric"), or a + (b - a) (1 - cos(pi u)) / 2 ("cosine"). Unlike
    torch's OneCycleLR it touches no momentum, has several peaks, and no last step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        peak: float,
        rise: int,
        fall: int,
        end: float = 1.0,
        peaks: int = 1,
        fade: float = 1.0,
        shape: Shape = "linear",
        last_epoch: int = -1,
    ) -> None:
        a("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer")
        number("rise", rise, 1, whole=True)
        number("fall", fall, 1, whole=True)
        number("peaks", peaks, 1, whole=True)
        number("peak", peak, above=0)
        number("fade", fade, above=0)
        number("end", end, 0)
        number("last_epoch", last_epoch, -1, whole=True)
        one_of("shape", shape, get_args(Shape))
        if shape == "geometric" and end == 0:
            raise SpiritlevelError("end=0: nothing falls to zero by factors; give a positive end")
        self.peak, self.rise, self.fall, self.end = peak, rise, fall, end
        self.peaks, self.fade, self.shape = peaks, fade, shape
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        """What the rate of a group is multiplied with at a step, the first being 0."""
        cycle, place = divmod(step, self.rise + self.fall)
        if cycle >= self.peaks:
            return self.end
        top = self.peak * self.fade**cycle
        if place < self.rise:
            return _between(self.end if cycle else 1.0, top, place / self.rise, self.shape)
        return _between(top, self.end, (place - self.rise) / self.fall, self.shape)

    def get_lr(self) -> list[float | Tensor]:
        """From the number of the step alone, so that nothing adds up."""
        return [rate * self.factor(self.last_epoch) for rate in self.base_lrs]


def _between(start: float, end: float, share: float, shape: str) -> float:
    if shape == "geometric":
        return start * (end / start) ** share
    way = share if shape == "linear" else (1 - math.cos(math.pi * share)) / 2
    return start + (end - start) * way


class Restarting(LRScheduler):
    """Any schedule that begins anew after `period` steps, then after `growth` times as many, ...

    `schedule(optimizer, steps)` makes the torch scheduler of one round, which takes `steps` steps:
    int(period growth^n) in round n. Every round begins at the rates, momenta and betas that the
    first one began at. With CosineAnnealingLR it is SGDR (Loshchilov and Hutter, 2017).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Callable[[Optimizer, int], LRScheduler],
        *,
        period: int,
        growth: float = 1.0,
    ) -> None:
        a("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer")
        function("schedule", schedule, "(optimizer, steps) that returns a scheduler")
        number("period", period, 1, whole=True)
        number("growth", growth, 1)
        self.optimizer, self.schedule, self.period, self.growth = (
            optimizer,
            schedule,
            period,
            growth,
        )
        self.last_epoch, self.round, self.place = 0, 0, 0
        self.start = [
            {name: group[name] for name in SET_BY_SCHEDULES if name in group}
            for group in _copied(optimizer)
        ]
        self.inner = self._made()
        self._last_lr = self.inner.get_last_lr()

    @property
    def steps(self) -> int:
        """Of this round."""
        return int(self.period * self.growth**self.round)

    def step(self, epoch: int | None = None) -> None:
        """One step of this round, or the first of the next."""
        if epoch is not None:
            raise SpiritlevelError(f"epoch={epoch!r}: rounds go on step by step; leave it out")
        self.last_epoch += 1
        self.place += 1
        if self.place < self.steps:
            self.inner.step()
        else:
            self.round, self.place = self.round + 1, 0
            for group, start in zip(self.optimizer.param_groups, self.start, strict=True):
                _set(group, start)
                group.pop("initial_lr", None)
            self.inner = self._made()
        self._last_lr = self.inner.get_last_lr()

    def _made(self) -> LRScheduler:
        found = self.schedule(self.optimizer, self.steps)
        right = isinstance(found, LRScheduler) and not isinstance(found, ReduceLROnPlateau)
        if not right or found.optimizer is not self.optimizer:
            raise SpiritlevelError(
                f"schedule returned a {type(found).__name__}; return a torch scheduler of the "
                "given optimizer that steps without a metric"
            )
        return found

    def state_dict(self) -> dict[str, Any]:
        """Where it is, and where the round's own schedule is."""
        names = ("last_epoch", "round", "place", "start", "period", "growth", "_last_lr")
        return {**{n: getattr(self, n) for n in names}, "inner": self.inner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another one was; the optimizer's rates are its own to load."""
        state = dict(state_dict)
        inner = state.pop("inner")
        vars(self).update(state)
        rates = _copied(self.optimizer)
        self.inner = self._made()  # of another length than the first, and it sets the rates
        self.inner.load_state_dict(inner)
        for group, own in zip(self.optimizer.param_groups, rates, strict=True):
            _set(group, own)


def _copied(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The options of the groups that schedules set; rates may be tensors that are filled."""
    names = (*SET_BY_SCHEDULES, "initial_lr")
    return [
        {n: v.clone() if isinstance(v, Tensor) else v for n, v in group.items() if n in names}
        for group in optimizer.param_groups
    ]


def _set(group: dict[str, Any], options: dict[str, Any]) -> None:
    for name, value in options.items():
        if isinstance(group.get(name), Tensor):
            group[name].fill_(float(value))
        else:
            group[name] = value
