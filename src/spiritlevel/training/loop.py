"""One plain loop: deterministic under a seed, and after a kill it goes on where it was."""

from __future__ import annotations

import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.interrupts import Patience, patient_interrupts
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import kept_rng
from spiritlevel.objective.batches import Batch, examples, explained
from spiritlevel.objective.loss import Loss
from spiritlevel.results.history import Epoch, History
from spiritlevel.results.loop import Done
from spiritlevel.results.provenance import provenance
from spiritlevel.training import asking
from spiritlevel.training.checkpoints import Keeper, called, key_of
from spiritlevel.training.feeding import Feed, feed
from spiritlevel.training.standing import Clock, Parts, Standing, how_far

INTERVAL = 30.0  # seconds between two checkpoints, where no number of steps is asked for
SHORT = 1.0  # an epoch that ends so soon after a checkpoint waits for the next one
SHARE = 20  # a checkpoint that takes a second is written every twenty


def fit(
    model: nn.Module,
    data: Any,
    loss: Callable[..., Any] | None,
    optimizer: Optimizer,
    epochs: int,
    *,
    stop: float | Callable[[Epoch], bool] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    schedule: Any = None,
    schedule_every: str = "epoch",
    watch: Any = None,
) -> History:
    """Train the model in place: for each batch, optimizer.step(closure) on its mean loss.

    - `data`, `loss`: as of an Objective; tensors and Datasets are shuffled by `seed` and cut into
      `batch_size`, a DataLoader is used as it is. An `optimizer` may take several `batches` a step.
    - `stop`: a loss over all the data in eval mode, or a function of an Epoch; asked after each.
    - `checkpoint`: a file that is kept up to date, every so many steps or about every 30 s; the
      same call goes on from it, on a CPU bit for bit. Ctrl-C keeps what is done.
    - `schedule`: a torch LR scheduler, stepped after every "epoch" or "step".
    - `watch`: its look(model, step=, rate=) is called before the first step and after each.
    """
    path = asking.refuse(vars().copy())
    parts = Parts(model, optimizer, schedule, watch)
    given = feed(data, batch_size, int(seed), asking.placing(parts.module))
    first = given.first()
    asked = {"seed": int(seed), "schedule_every": schedule_every, "the loss": asking.spoken(loss)}
    run = _Run(
        parts,
        given,
        asking.understood(parts.module, loss, first, training=True),
        lambda: asking.understood(parts.module, loss, first, training=False),
        _Plan(int(epochs), stop, every, schedule_every, int(seed)),
        Keeper(path, parts, key_of(parts, **asked, **given.told(first))),
    )
    return _fitted(run)


@dataclass(frozen=True)
class _Plan:
    epochs: int
    stop: float | Callable[[Epoch], bool] | None
    every: int | None
    schedule_every: str
    seed: int


@dataclass(frozen=True)
class _Run:
    """All that the loop needs; none of it is replaced on the way."""

    parts: Parts
    feed: Feed
    loss: Loss
    evaluated: Callable[[], Loss]  # the loss in eval mode
    plan: _Plan
    keeper: Keeper


def _fitted(run: _Run) -> History:
    modes = {part: part.training for part in run.parts.model.modules()}
    standing = run.keeper.restored()
    asking.refuse_seen(run.parts.watch, standing.step)
    if standing.stopped and not _ended(standing.epochs[-1], run.plan.stop):
        standing.stopped = ""  # by another rule
    asking.refuse_past(len(standing.epochs), run.plan.epochs, standing.stopped)
    interrupted = ""
    with kept_rng(*run.feed.generators), patient_interrupts() as patience:
        loop = _Loop(run, standing, patience)
        try:
            loop.to_the_end()
        except BaseException:
            # inside torch and its workers, Ctrl-C may come out as another error
            if not patience.came or patience.torn:
                raise
            if standing.step == 0:
                raise KeyboardInterrupt from None
            interrupted = how_far(len(standing.epochs), standing.place, run.plan.epochs)
            loop.write()
        finally:
            for part, mode in modes.items():
                part.training = mode
    return _history(run, standing, interrupted)


@contextmanager
def _first_explained(step: int, batch: Batch) -> Iterator[None]:
    """What torch cannot do with the data is said at the first step; the user's own errors pass."""
    try:
        yield
    except (RuntimeError, TypeError):
        if step:
            raise
        with explained([batch]):
            raise


class _Loop:
    """The loop itself, from where the training stands."""

    def __init__(self, run: _Run, standing: Standing, patience: Patience) -> None:
        self.run, self.parts, self.plan = run, run.parts, run.plan
        self.standing, self.patience = standing, patience
        self.clock = Clock(standing.seconds)
        self.written = time.perf_counter()
        self.took = 0.0  # seconds of the last checkpoint
        self.evaluated: Loss | None = None
        self.takes = int(getattr(run.parts.optimizer, "batches", 1))  # at each step
        steps = run.feed.steps
        total = None if steps is None else -(-steps // self.takes) * self.plan.epochs
        self.bar = bar(total, "training", done=standing.step)

    def to_the_end(self) -> None:
        standing = self.standing
        before = standing.step, standing.looked
        with self.bar:
            while not standing.stopped and len(standing.epochs) < self.plan.epochs:
                self._look()
                self._epoch()
            self._look(last=True)
        if (standing.step, standing.looked) != before:
            self.write()

    def _epoch(self) -> None:
        standing, run = self.standing, self.run
        self.parts.model.train()
        for several in _together(run.feed.batches(standing.epoch, standing.place), self.takes):
            with self.patience.whole():
                self._step(several)
            self.bar.set_postfix_str(f"loss {standing.total / standing.count:.4g}", refresh=False)
            self.bar.update()
            self._look()
            if self._due():
                self.write()
        if standing.place == 0:
            raise SpiritlevelError(f"data is empty in epoch {standing.epoch}; give the same ones")
        self._end_of_epoch()

    def _step(self, batches: list[Batch]) -> None:
        parts, standing = self.parts, self.standing
        if standing.place == 0:
            standing.examples, standing.total, standing.count = 0, 0.0, 0.0
        met: list[tuple[float, float]] = []  # of the first call: before the step
        closures = [self._closure(batch, met, number) for number, batch in enumerate(batches)]
        standing.rate = parts.rate
        if self.takes == 1:
            parts.optimizer.step(closures[0])  # type: ignore[arg-type]
        else:  # the last ones of an epoch serve again where it needs more
            cycled = list(itertools.islice(itertools.cycle(closures), self.takes))
            parts.optimizer.step(cycled)  # type: ignore[arg-type]
        if parts.schedule is not None and self.plan.schedule_every == "step":
            parts.schedule.step()
        if not met:
            raise SpiritlevelError(
                f"optimizer={called(parts.optimizer)} did not call its closure; give one whose "
                "step(closure) does"
            )
        standing.total, standing.count = standing.total + met[0][0], standing.count + met[0][1]
        standing.examples += sum(examples(batch) for batch in batches)
        standing.step, standing.place = standing.step + 1, standing.place + len(batches)

    def _closure(
        self, batch: Batch, met: list[tuple[float, float]], number: int
    ) -> Callable[[], Tensor]:
        """Clears the gradients, differentiates the mean loss of a batch, and returns it."""
        called: list[bool] = []

        def closure() -> Tensor:
            self.parts.optimizer.zero_grad()
            with torch.enable_grad():
                with _first_explained(self.standing.step, batch):
                    total, count = self.run.loss.total(self.parts.model, batch)
                mean = total / count
                if not called:  # once for each: it waits for the device
                    called.append(True)
                    found = float(total.detach()), float(count)
                    self._refuse_broken(*found, batch, number)
                    met.append(found)
                mean.backward()
            return mean

        return closure

    def _end_of_epoch(self) -> None:
        standing, stop = self.standing, self.plan.stop
        self._refuse_lost_weights()
        full = None if stop is None or callable(stop) else self._full()
        mean, now = standing.total / standing.count, self.clock.now()
        ended = Epoch(
            standing.epoch, standing.step, mean, standing.rate, now - standing.began, full
        )
        if _ended(ended, stop):
            by = f"by stop, after {ended.number} epochs"
            standing.stopped = by if full is None else f"at a training loss of {full:.4g}"
        with self.patience.whole():
            self._scheduled(mean if full is None else full)
            standing.epochs.append(ended)
            standing.place, standing.began = 0, now
        if time.perf_counter() - self.written > SHORT:
            self.write()

    def _scheduled(self, loss: float) -> None:
        if self.parts.schedule is None or self.plan.schedule_every != "epoch":
            return
        if isinstance(self.parts.schedule, ReduceLROnPlateau):
            self.parts.schedule.step(loss)
        else:
            with warnings.catch_warnings():
                # where this process goes on at the end of an epoch, it has made no step yet
                warnings.filterwarnings("ignore", r"Detected call of .lr_scheduler", UserWarning)
                self.parts.schedule.step()

    @torch.no_grad()
    def _full(self) -> float:
        """The mean loss over all the data, in eval mode."""
        self.evaluated = self.evaluated or self.run.evaluated()
        self.parts.model.eval()
        total = count = 0.0
        for batch in self.run.feed.everything():
            one, ones = self.evaluated.total(self.parts.model, batch)
            total, count = total + float(one), count + float(ones)
        self.parts.model.train()
        if not math.isfinite(total / count):
            where = f"over all the data after epoch {self.standing.epoch}"
            raise asking.broken(total / count, where, self.parts, None)
        return total / count

    def _look(self, *, last: bool = False) -> None:
        """Ask the watch about this step, once; about the last step in any case."""
        watch, standing = self.parts.watch, self.standing
        if watch is None:
            return
        seen = bool(watch.moments) and watch.moments[-1].step == standing.step
        if standing.looked == standing.step and (seen or not last):
            return
        made, now = len(watch.moments), last or standing.owed
        standing.owed = True
        rate = standing.rate if standing.step else self.parts.rate
        known = None if math.isnan(rate) or not self.parts.one_rate else rate
        watch.look(self.parts.model, step=standing.step, rate=known, now=now)
        if self.patience.came:  # half of a look is none
            del watch.moments[made:]
        self.patience.check()
        standing.looked, standing.owed = standing.step, False

    def _due(self) -> bool:
        if self.plan.every is not None:
            return self.standing.step % self.plan.every == 0
        return time.perf_counter() - self.written > max(INTERVAL, SHARE * self.took)

    def write(self) -> None:
        began = time.perf_counter()
        self.standing.seconds = self.clock.now()
        self.run.keeper.write(self.standing)
        self.written = time.perf_counter()
        self.took = self.written - began

    def _refuse_broken(self, total: float, count: float, batch: Batch, number: int) -> None:
        standing = self.standing
        place = standing.place + number + 1
        where = f"at step {standing.step + 1}, batch {place} of epoch {standing.epoch}"
        if count == 0:
            raise SpiritlevelError(
                f"no label counts {where}: all are those to ignore; leave such batches out"
            )
        if not math.isfinite(total):
            raise asking.broken(total, where, self.parts, batch)

    def _refuse_lost_weights(self) -> None:
        """Of the last step of an epoch, whose outcome no further loss would show."""
        if not asking.finite(self.parts.trained):
            raise asking.broken(float("nan"), f"after step {self.standing.step}", self.parts, None)


def _together(batches: Iterator[Batch], count: int) -> Iterator[list[Batch]]:
    """As many at a time; fewer at the end."""
    while several := list(itertools.islice(batches, count)):
        yield several


def _ended(epoch: Epoch, stop: float | Callable[[Epoch], bool] | None) -> bool:
    """Whether the rule ends a training after this epoch."""
    if callable(stop):
        return bool(stop(epoch))
    return stop is not None and epoch.full is not None and epoch.full <= stop


def _history(run: _Run, standing: Standing, interrupted: str) -> History:
    parts = run.parts
    trainable = [p for p in parts.module.parameters() if p.requires_grad]
    ended = "by Ctrl-C" if interrupted else f"after {len(standing.epochs)} epochs"
    told = provenance(
        0.0,
        run.feed.notes,
        Done(interrupted=interrupted),
        parameters=sum(p.numel() for p in trainable),
        examples=standing.examples,
        dtype=str(trainable[0].dtype),
        device=str(trainable[0].device),
        optimizer=called(parts.optimizer),
        seed=run.plan.seed,
        stopped=standing.stopped or ended,
    )
    told["seconds"] = standing.seconds
    if parts.watch is not None:  # which knows best what it took, and what it could not see
        return parts.watch.history(standing.epochs, **told)
    return History(tuple(standing.epochs), (), {**told, "watched": 0.0})  # type: ignore[typeddict-item]
