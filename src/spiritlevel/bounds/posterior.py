"""A posterior over networks, trained for what it costs: its errors and its divergence."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spiritlevel.base.doors import a, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.interrupts import Patience, patient_interrupts
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import differentiable
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import gaussian, generator, unflatten
from spiritlevel.bounds.gaussian import Gaussian, divergence, refitted
from spiritlevel.bounds.shuffling import Shuffled, shuffled
from spiritlevel.bounds.standing import Standing, fresh
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.results.bound import Step
from spiritlevel.training.feeding import mixed

BLOCK = 2**22  # random numbers that are drawn at once
INTERVAL = 30.0  # seconds between two writings
STEPS, EPOCHS = 8_000, 40  # at least, where no number of epochs is asked for
BATCHES = 64  # of an epoch, where no size of them is asked for
SMALLEST, LARGEST = 128, 1024  # of such batches: the larger, the less of KL is noise


class Cost(Protocol):
    """What is to be small: a function of the surrogate loss, a mean in bits, and of KL in nats."""

    def value(self, surrogate: float, kl: float) -> float: ...

    def price(self, surrogate: float, kl: float) -> float:
        """What a nat costs in surrogate loss: the ratio of the two slopes."""
        ...


class Keeper(Protocol):
    """Holds where a training stands outside of memory."""

    def read(self, stage: str, standing: Standing) -> None: ...

    def write(self, stage: str, standing: Standing) -> None: ...


@dataclass(frozen=True)
class Recipe:
    """How a posterior is trained: Adam on means and log spreads, one draw a step, rates that fall.

    `momentum` 0 is RMSprop, as of Dziugaite & Roy. Rates fall linearly to the share `last`; those
    of means are in units of the root mean square of the weights at the start.
    """

    epochs: int | None = None  # None: 40, or as many as 8,000 steps take
    batch: int | None = None  # None: a 64th of the examples, from 128 to 1,024
    rate: float = 0.05
    spread_rate: float = 3e-2
    momentum: float = 0.9
    last: float = 0.02
    start: float = 0.3  # spread at the start, in root mean squares of each parameter tensor
    scale: float = 0.01  # deviation of a prior whose mean is trained
    informed_rate: float = 3e-3  # of a posterior that starts at such a prior

    def __post_init__(self) -> None:
        if self.epochs is not None:
            number("epochs", self.epochs, 0, whole=True)
        if self.batch is not None:
            number("batch", self.batch, 1, whole=True)
        for name in ("rate", "spread_rate", "momentum", "last", "informed_rate"):
            number(name, getattr(self, name), 0.0)
        for name in ("start", "scale"):
            number(name, getattr(self, name), above=0.0)
        for name in ("momentum", "last"):
            if getattr(self, name) > 1 or self.momentum == 1:
                raise SpiritlevelError(f"{name}={getattr(self, name)}: give a share below 1")

    def size(self, examples: int) -> int:
        """Of the batches."""
        return self.batch or min(max(examples // BATCHES, SMALLEST), LARGEST)


@dataclass(frozen=True)
class Trained:
    """A posterior, the prior of the scale that suits it best, and the epochs of its training."""

    posterior: Gaussian
    prior: Gaussian
    steps: tuple[Step, ...]
    interrupted: str = ""


@dataclass(frozen=True)
class OfBound:
    """(sqrt(error + b) + sqrt(b))^2, b = (KL + nats) / (2 m), over m examples.

    The tightest relaxation of Maurer's bound that is defined for surrogates above 1
    (Perez-Ortiz et al., 2021).
    """

    m: int
    nats: float  # what the bound adds to the divergence

    def value(self, surrogate: float, kl: float) -> float:
        b = (kl + self.nats) / (2 * self.m)
        return (math.sqrt(surrogate + b) + math.sqrt(b)) ** 2

    def price(self, surrogate: float, kl: float) -> float:
        b = (kl + self.nats) / (2 * self.m)
        return (1 + math.sqrt(surrogate / b + 1)) / (2 * self.m)


@dataclass(frozen=True)
class OfErrors:
    """The surrogate loss alone."""

    def value(self, surrogate: float, kl: float) -> float:
        return surrogate

    def price(self, surrogate: float, kl: float) -> float:
        return 0.0


@dataclass(frozen=True)
class OfDescription:
    """surrogate + KL / (m log 2): bits of an example (Hinton & van Camp, 1993)."""

    m: int

    def value(self, surrogate: float, kl: float) -> float:
        return surrogate + kl * self.price(surrogate, kl)

    def price(self, surrogate: float, kl: float) -> float:
        return 1 / (self.m * math.log(2))


def trained_posterior(
    objective: Objective,
    start: Gaussian,
    prior: Gaussian,
    *,
    cost: Cost,
    recipe: Recipe | None = None,
    follows: bool = False,
    largest: float = math.inf,
    seed: int = 0,
    keeper: Keeper | None = None,
    stage: str = "posterior",
) -> Trained:
    """Least cost(E_Q[mean cross-entropy] / log 2, KL(Q, P)) over Q = N(w, diag s^2), from `start`.

    What a nat costs is asked before every epoch, with the numbers of the last one. A prior's scale
    that `follows` is the best one of every step, the root of the mean of s^2 + (w - w0)^2, with no
    variance above `largest`. Ctrl-C keeps what is done. After Dziugaite & Roy (2017).
    """
    only_objectives(objective)
    a("start", start, Gaussian, "a Gaussian over the parameters")
    a("prior", prior, Gaussian, "a Gaussian over the parameters")
    seeded(seed)
    for name, one in (("start", start), ("prior", prior)):
        if len(one.mean) != objective.size:
            raise SpiritlevelError(
                f"{name} is over {len(one.mean)} parameters; the objective has {objective.size}"
            )
    chosen = recipe or Recipe()
    data = shuffled(objective, chosen.size(objective.examples), int(seed))
    options = cost, follows, largest, int(seed)
    run = _Run(objective, data, prior, chosen, _unit(start), *options)
    standing = fresh(start, objective.vector)
    if keeper is not None:
        keeper.read(stage, standing)
    with differentiable(recurrent=objective.recurrent), patient_interrupts() as patience:
        loop = _Loop(run, standing, patience, keeper, stage)
        interrupted = loop.to_the_end()
    posterior = Gaussian(standing.mean.clone(), standing.log_spread.exp())
    return Trained(posterior, run.prior_of(posterior), tuple(standing.steps), interrupted)


def _unit(start: Gaussian) -> float:
    """The root mean square of the weights; of their spreads where they are zero."""
    mean, spread = (float(t.double().square().mean().sqrt()) for t in (start.mean, start.spread))
    return mean or spread


@dataclass(frozen=True)
class _Run:
    """All that does not change on the way."""

    objective: Objective
    data: Shuffled
    prior: Gaussian
    recipe: Recipe
    unit: float  # of the means' rates
    cost: Cost
    follows: bool
    largest: float
    seed: int

    @property
    def epochs(self) -> int:
        asked = self.recipe.epochs
        return max(-(-STEPS // self.data.steps), EPOCHS) if asked is None else asked

    def prior_of(self, posterior: Gaussian) -> Gaussian:
        return refitted(self.prior, posterior, self.largest) if self.follows else self.prior

    def variance(self, spread: Tensor, moved: Tensor) -> Tensor:
        if not self.follows:
            return self.prior.spread.to(spread).square()
        return (spread.square() + moved.square()).mean().clamp(max=self.largest)

    def noise(self, epoch: int, place: int) -> Iterator[Tensor]:
        """That of every step of an epoch from a place on; blocks have seeds of their own."""
        size = self.objective.size
        rows = max(1, min(BLOCK // size, self.data.steps))
        like = self.objective.vector
        for block in range(place // rows, -(-self.data.steps // rows)):
            draws = generator(mixed(self.seed, epoch, "noise", block))
            made = gaussian((rows, size), draws, like)
            yield from made[max(place - block * rows, 0) :]


class _Loop:
    """The loop itself, from where the training stands."""

    def __init__(
        self,
        run: _Run,
        standing: Standing,
        patience: Patience,
        keeper: Keeper | None,
        stage: str,
    ) -> None:
        self.run, self.standing, self.patience = run, standing, patience
        self.keeper, self.stage = keeper, stage
        self.written = time.perf_counter()
        self.centre = run.prior.mean.to(standing.mean)

    def to_the_end(self) -> str:
        """ "" or, after Ctrl-C, how far it came."""
        run, standing = self.run, self.standing
        total = run.epochs * run.data.steps
        try:
            with bar(total, self.stage, done=standing.step) as progress:
                while len(standing.steps) < run.epochs:
                    for _ in self._epoch():
                        progress.update()
                    self._end_epoch()
        except BaseException:  # inside torch, Ctrl-C may come out as another error
            if not self.patience.came or self.patience.torn:
                raise
            self._write()
            return f"{len(standing.steps)} of {run.epochs} epochs of the {self.stage} were done"
        self._write()
        return ""

    def _epoch(self) -> Iterator[None]:
        run, standing = self.run, self.standing
        epoch = len(standing.steps) + 1
        if standing.place == 0:
            standing.price = self._price()
        batches = run.data.batches(epoch, standing.place)
        for batch, noise in zip(batches, run.noise(epoch, standing.place), strict=False):
            with self.patience.whole():
                self._step(batch, noise, standing.price)
            if time.perf_counter() - self.written > INTERVAL:
                self._write()
            yield

    def _step(self, batch: object, noise: Tensor, weight: float) -> None:
        run, standing = self.run, self.standing
        spread, moved = standing.log_spread.exp(), standing.mean - self.centre
        point = torch.addcmul(standing.mean, spread, noise).requires_grad_()
        total, count = run.objective.total(unflatten(point, run.objective.shapes), batch)
        loss = total / (count * math.log(2))
        slope = torch.autograd.grad(loss, point)[0]
        variance = run.variance(spread, moved)
        means = slope + weight * (moved / variance)
        spreads = slope * noise * spread + weight * (spread.square() / variance - 1)
        standing.moved(torch.stack([means, spreads]), self._rates(), run.recipe.momentum)
        standing.total += loss.detach().double() * count
        standing.count += count

    def _rates(self) -> tuple[float, float]:
        recipe, total = self.run.recipe, self.run.epochs * self.run.data.steps
        left = max(1 - self.standing.step / total, recipe.last)
        return recipe.rate * self.run.unit * left, recipe.spread_rate * left

    def _price(self) -> float:
        steps = self.standing.steps
        known = (steps[-1].surrogate, steps[-1].kl) if steps else (1.0, self._kl())
        return self.run.cost.price(*known)

    def _kl(self) -> float:
        now = Gaussian(self.standing.mean, self.standing.log_spread.exp())
        return divergence(now, self.run.prior_of(now))

    def _end_epoch(self) -> None:
        standing = self.standing
        surrogate = float(standing.total / standing.count)
        if not math.isfinite(surrogate) or not standing.finite:
            raise SpiritlevelError(
                f"the training of the {self.stage} left the finite numbers in epoch "
                f"{len(standing.steps) + 1}; give smaller rates (rate={self.run.recipe.rate:g}, "
                f"spread_rate={self.run.recipe.spread_rate:g})"
            )
        kl = self._kl()
        with self.patience.whole():
            told = Step(len(standing.steps) + 1, surrogate, kl, self.run.cost.value(surrogate, kl))
            standing.ended(told)

    def _write(self) -> None:
        if self.keeper is not None:
            self.keeper.write(self.stage, self.standing)
        self.written = time.perf_counter()
