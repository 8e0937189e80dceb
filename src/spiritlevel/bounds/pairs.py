"""Training on data sets that differ in one example: what stability bounds, measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.optim import Optimizer

from spiritlevel.base.doors import function, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.interrupts import patient_interrupts
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import differentiable, set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import generator, map_tensors
from spiritlevel.bounds.affine import Constants, constants
from spiritlevel.bounds.stability import hardt_convex
from spiritlevel.measures.given import Given, before_training
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.singles import loss_of, of_examples
from spiritlevel.results.bound import Bound

MARKS = 30  # places on the way where distances are kept
Rate = float | Callable[[int], float]
Named = dict[str, Tensor]


@dataclass(frozen=True)
class Apart:
    """How far two trainings are from each other after a step: the mean over pairs, the largest."""

    step: int
    mean: float
    stderr: float
    largest: float


@dataclass(frozen=True)
class Stability:
    """What one example changes: trainings in the same order from the same start, in pairs.

    `difference` is the mean over the pairs of the largest change of an example's loss, `widest` the
    largest of all; the stability of Hardt et al. is a supremum over all data sets, which is at
    least as large as the mean loss change of any example. `gap` is what an example that was trained
    on has less loss than in the twin that was not: an unbiased estimate of the mean generalization
    gap (their theorem 2.2). Its standard error is that over pairs, which share their other data.
    `steepest` and `smoothness` are the largest slope and the largest change of a slope over the
    distance that were met: estimates from below of what the theorems premise. `apart_bound` and
    `bound` are given where the premises were checked; `applies` says which, or why not.
    """

    examples: int
    pairs: int
    steps: int
    batch: int
    course: tuple[Apart, ...]
    distance: Estimate
    difference: Estimate
    widest: float
    gap: Estimate
    steepest: float
    smoothness: float | None
    apart_bound: float | None
    bound: Bound | None
    applies: str
    interrupted: str = ""

    def __str__(self) -> str:
        met = "not seen" if self.smoothness is None else f"{self.smoothness:.4g}"
        lines = [
            f"{self.pairs} pairs of trainings, one of {self.examples} examples exchanged, "
            f"{self.steps} steps",
            f"distance of the parameters   {self.distance}{_most(self.apart_bound)}",
            f"change of an example's loss  {self.difference}, {self.widest:.4g} at most here",
            f"generalization gap           {self.gap}{_most(self.bound and self.bound.value)}",
            f"slope met {self.steepest:.4g}, smoothness met {met} (from below)",
            self.applies,
        ]
        return "\n".join([*lines, *([f"interrupted: {self.interrupted}"] * bool(self.interrupted))])


@set_apart()
def stability(
    objective: Objective,
    *,
    pairs: int = 8,
    steps: int | None = None,
    rate: Rate = 0.01,
    optimizer: Callable[[list[Tensor]], Optimizer] | None = None,
    batch: int = 1,
    init: Given = None,
    seed: int = 0,
) -> Stability:
    """Train on neighbouring data sets with SGD in the same order, and see what one example does.

    theta <- theta - rate(t) grad f(theta; examples drawn at step t), t = 1, 2, ... from `init` (the
    point of the objective if None), for one epoch if `steps` is None. `pairs` examples are held
    out; each replaces another one in a twin training. An `optimizer` of your own takes the place
    of SGD: measured all the same, though no theorem is about it. Hardt, Recht, Singer (2016).
    """
    only_objectives(objective)
    _refuse(objective, pairs, steps, rate, optimizer, batch, seed)
    start = objective if init is None else objective.at(before_training(objective, init))
    n = objective.examples - pairs
    steps = n if steps is None else steps
    rates = [float(rate(t)) if callable(rate) else float(rate) for t in range(1, steps + 1)]
    for t, one in enumerate(rates, 1):
        number(f"rate({t})", one, above=0)
    draws = generator(seed)
    order = torch.randperm(objective.examples, generator=draws)
    twins = _Twins(start, order[:n], order[n:], draws, batch, optimizer)
    interrupted = twins.train(rates)
    return _summed(twins, rates[: twins.step], optimizer is None, interrupted)


def _refuse(
    objective: Objective, pairs: Any, steps: Any, rate: Any, optimizer: Any, batch: Any, seed: Any
) -> None:
    seeded(seed)
    number("pairs", pairs, 2, whole=True)
    number("batch", batch, 1, whole=True)
    if steps is not None:
        number("steps", steps, 1, whole=True)
    if not callable(rate):
        number("rate", rate, above=0)
    if optimizer is not None:
        function("optimizer", optimizer, "a list of parameters")
    if objective.examples - pairs < 2:
        raise SpiritlevelError(
            f"pairs={pairs} holds out as many of {objective.examples} examples: two have to be "
            "left to train on; give more data, or fewer pairs"
        )
    if not objective.separable or objective.mode != "eval":
        raise SpiritlevelError(
            "stability is that of losses of single examples, without dropout and statistics of "
            'batches: use mode="eval"'
        )
    cut = all(frozen.divisible(b) or frozen.examples(b) == 1 for b in objective.batches)
    if (
        not cut
        or not frozen.alike(list(objective.batches))
        or objective.count != objective.examples
    ):
        raise SpiritlevelError(
            "stability needs examples of one shape that count alike (no weights, no texts of "
            "several lengths)"
        )


class _Twins:
    """All trainings side by side: 2 k on the data, 2 k + 1 on those with one example exchanged."""

    def __init__(
        self,
        objective: Objective,
        own: Tensor,
        held: Tensor,
        draws: torch.Generator,
        batch: int,
        optimizer: Callable[[list[Tensor]], Optimizer] | None,
    ) -> None:
        self.objective, self.own, self.held = objective, own, held
        self.draws, self.batch = draws, batch
        self.data = frozen.join(list(objective.batches))
        self.pairs, self.step = len(held), 0
        self.out = own[torch.randperm(len(own), generator=draws)[: self.pairs]]
        if len(self.out) < self.pairs:  # fewer examples than pairs: some are exchanged twice
            self.out = own[torch.randint(len(own), (self.pairs,), generator=draws)]
        runs = 2 * self.pairs
        self.params = {k: v.repeat(runs, *[1] * v.ndim) for k, v in objective.params.items()}
        self.optimizers = (
            [] if optimizer is None else [optimizer(self.rows(r)) for r in range(runs)]
        )
        self.course: list[Apart] = []
        self.steepest = self.bent = objective.vector.new_zeros(()).double()

    def rows(self, run: int) -> list[Tensor]:
        """The parameters of one training, views of all."""
        return [p[run] for p in self.params.values()]

    def train(self, rates: list[float]) -> str:
        """All the steps; how far it came if it was interrupted."""
        marks = {round(x * len(rates) / MARKS) for x in range(1, MARKS + 1)} | {1}
        with (
            differentiable(recurrent=self.objective.recurrent),
            patient_interrupts() as patience,
            bar(len(rates), "neighbours") as progress,
        ):
            try:
                for t, rate in enumerate(rates, 1):
                    with patience.whole():
                        self._move(rate)
                        if t in marks:
                            self._look()
                    progress.update()
            except KeyboardInterrupt:
                if patience.torn or not self.step:
                    raise
                self._look()
                return f"{self.step} of {len(rates)} steps were done"
        return ""

    def _move(self, rate: float) -> None:
        """One step of every training; the twin sees the exchanged example in the other's place."""
        drawn = self.own[
            torch.randint(len(self.own), (self.pairs, self.batch), generator=self.draws)
        ]
        twin = torch.where(drawn == self.out[:, None], self.held[:, None], drawn)
        index = torch.stack([drawn, twin], 1).reshape(2 * self.pairs, self.batch)
        slopes = self._slopes(map_tensors(lambda t: t[index.to(t.device)], self.data))
        self._learn(slopes, (drawn == twin).all(1))
        if self.optimizers:
            for run, optimizer in enumerate(self.optimizers):
                for group in optimizer.param_groups:
                    for p, g in zip(group["params"], slopes.values(), strict=True):
                        p.grad = g[run]
                optimizer.step()
        else:
            for name, p in self.params.items():
                p.sub_(slopes[name], alpha=rate)
        self.step += 1

    def _slopes(self, batches: Batch) -> Named:
        """The gradient of the mean loss of its batch for every training."""

        def loss(params: Named, batch: Batch) -> Tensor:
            return self.objective.total(params, batch)[0] / self.batch

        try:
            return vmap(grad(loss))(self.params, self.objective.here(batches))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError):  # no batching rule, or control flow
            found = []
            for run in range(2 * self.pairs):
                point = {name: p[run] for name, p in self.params.items()}
                found.append(grad(loss)(point, map_tensors(lambda t, r=run: t[r], batches)))
            return {name: torch.stack([f[name] for f in found]) for name in self.params}

    def _learn(self, slopes: Named, alike: Tensor) -> None:
        """The largest slope, and the largest change of one where both saw the same examples."""
        self.steepest = torch.maximum(self.steepest, _norms(slopes).max())
        apart, turned = _norms(_split(self.params)), _norms(_split(slopes))
        sizes = _norms(self.params)[::2]
        rounding = torch.finfo(self.objective.dtype).eps ** 0.5
        seen = alike.to(apart.device) & (apart > rounding * sizes)
        ratio = torch.where(seen, turned / apart.clamp(min=1e-300), 0.0)
        self.bent = torch.maximum(self.bent, ratio.max())

    def _look(self) -> None:
        apart = self.distances()
        if not bool(apart.isfinite().all()):
            raise SpiritlevelError(
                f"the training diverges before step {self.step}: give a smaller rate"
            )
        if self.course and self.course[-1].step == self.step:
            return
        mean, stderr = _mean(apart)
        self.course.append(Apart(self.step, mean, stderr, float(apart.max())))

    def distances(self) -> Tensor:
        """|theta - theta'| of every pair."""
        return _norms(_split(self.params))

    def losses(self) -> Tensor:
        """The loss of every example, in the order of the data, of every training."""
        found = []
        for run in range(2 * self.pairs):
            there = self.objective.at({name: p[run] for name, p in self.params.items()})
            alone = lambda b, o=there: o.total(o.params, b)[0]  # noqa: E731
            mapped = lambda p, e, o=there: loss_of(o, p, e)  # noqa: E731
            rows = of_examples(there, alone, mapped, numbers=max(there.size, 1))
            with torch.no_grad():
                found.append(torch.cat([r.double() for r in rows]))
        return torch.stack(found).cpu()


def _summed(twins: _Twins, rates: list[float], plain: bool, interrupted: str) -> Stability:
    begin = time.perf_counter()
    losses = twins.losses()
    changes = (losses[::2] - losses[1::2]).abs().amax(1)
    k = torch.arange(twins.pairs)
    # the twin never saw `out`, nor the first one `held`: both ways round it is the same mean
    gaps = losses[1::2][k, twins.out] - losses[::2][k, twins.out]
    gaps = (gaps + losses[::2][k, twins.held] - losses[1::2][k, twins.held]) / 2
    known, why = _premises(twins, rates, plain)
    n, sums = len(twins.own), sum(rates)
    apart = None if known is None else 2 * known.lipschitz * sums / n
    return Stability(
        examples=n,
        pairs=twins.pairs,
        steps=twins.step,
        batch=twins.batch,
        course=tuple(twins.course),
        distance=_estimate(twins.distances(), begin),
        difference=_estimate(changes, begin),
        widest=float(changes.max()),
        gap=_estimate(gaps, begin),
        steepest=float(twins.steepest),
        smoothness=float(twins.bent) or None,
        apart_bound=apart,
        bound=None if known is None else hardt_convex(**vars(known), rates=rates, m=n),
        applies=why,
        interrupted=interrupted,
    )


def _premises(twins: _Twins, rates: list[float], plain: bool) -> tuple[Constants | None, str]:
    """The constants of the convex theorem, where all that it asks for is seen to hold."""
    if not plain:
        return None, "no theorem applies: they are about plain SGD, not an optimizer of your own"
    if twins.batch > 1:
        return None, "no theorem applies: they are about steps on one example, batch=1"
    try:
        known = constants(twins.objective)
    except SpiritlevelError as error:
        return None, (
            f"no theorem applies ({error}); the one for other losses wants them between 0 and 1, "
            "with slopes bounded everywhere, and what was met here bounds nothing"
        )
    if max(rates) > 2 / known.smoothness:
        return None, (
            f"the convex theorem does not apply: it wants steps of at most 2 / smoothness = "
            f"{2 / known.smoothness:.4g}; the largest is {max(rates):.4g}"
        )
    return known, (
        f"the convex theorem applies: slopes of at most {known.lipschitz:.4g}, smoothness at most "
        f"{known.smoothness:.4g} for all inputs that are no longer than those of the data"
    )


def _split(params: Named) -> Named:
    """The first training of each pair less its twin."""
    return {name: p[::2] - p[1::2] for name, p in params.items()}


def _norms(params: Named) -> Tensor:
    """Of every row, over all parameters."""
    return sum(p.double().reshape(len(p), -1).square().sum(1) for p in params.values()).sqrt()  # type: ignore[union-attr]


def _mean(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def _estimate(values: Tensor, begin: float) -> Estimate:
    mean, stderr = _mean(values)
    return Estimate(mean, stderr, seconds=time.perf_counter() - begin)


def _most(bound: float | None) -> str:
    if bound is None:
        return ""
    return f", at most {bound * (1 + 5e-4):.4g} in the mean"  # rounded up
