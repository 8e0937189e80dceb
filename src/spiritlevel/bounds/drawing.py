"""The errors of networks drawn from a posterior, many at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from spiritlevel.base.interrupts import patient_interrupts
from spiritlevel.base.memory import relieved
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import kept_rng
from spiritlevel.base.tensors import gaussian, generator, unflatten
from spiritlevel.bounds.gaussian import Gaussian
from spiritlevel.bounds.sampling import mean_above
from spiritlevel.objective import Objective, classes
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.classes import Labels
from spiritlevel.objective.microbatch import saved_bytes
from spiritlevel.results.bound import Drawn
from spiritlevel.training.feeding import mixed

AT_ONCE = {"cpu": 2**24, "cuda": 2**31}  # bytes of all passes that are stacked
MOST = 64  # networks that are stacked
SAME = 1e-3  # share of decisions that rounding may change where networks are stacked


@dataclass(frozen=True)
class Drawing:
    """Networks around the mean of a posterior, and the labels that they are held to."""

    objective: Objective
    posterior: Gaussian
    known: Labels
    seed: int
    together: int = 1

    def group(self, number: int, count: int) -> list[float]:
        """The errors of the first networks of a group; each group has a seed of its own."""
        draws = generator(mixed(self.seed, "drawn", number))
        mean, spread = self.posterior.mean, self.posterior.spread
        noise = gaussian((self.together, len(mean)), draws, mean)[:count]
        points = (mean + spread * noise).to(self.objective.vector)
        return self.errors(points) if self.together > 1 else [self.error(p) for p in points]

    def errors(self, points: Tensor) -> list[float]:
        """All at once: every operation of the model on all of them."""
        wrong = torch.zeros(len(points), dtype=torch.float64, device=points.device)
        for n in range(len(self.objective.batches)):
            with torch.no_grad(), kept_rng():
                wrong += relieved(lambda n=n: vmap(lambda p: self._wrong(p, n))(points))
        return (wrong / self.known.units).tolist()

    def error(self, point: Tensor) -> float:
        """One plainly."""
        with torch.no_grad(), kept_rng():
            parts = [
                relieved(lambda n=n: self._wrong(point, n))
                for n in range(len(self.objective.batches))
            ]
        return float(sum(parts)) / self.known.units

    def _wrong(self, point: Tensor, number: int) -> Tensor:
        batch: Batch = self.objective.batches[number]
        y, kept = self.known.batches[number], self.known.counted[number]
        out = self.objective.outputs(unflatten(point, self.objective.shapes), batch)
        own, other = classes.against(classes.rows(self.objective, out), y)
        return (~(own > other) & kept).sum().double()


def drawing(objective: Objective, posterior: Gaussian, seed: int) -> Drawing:
    """As many at once as memory likes, if they decide as they do one by one."""
    one = Drawing(objective, posterior, classes.labels(objective), seed)
    together = _affordable(objective)
    if together < 2:
        return one
    several = replace(one, together=together)
    noise = gaussian((2, objective.size), generator(seed), objective.vector)
    points = (posterior.mean + posterior.spread * noise).to(objective.vector)
    try:
        found = several.errors(points)
    except Exception:  # of a batching rule, or of memory; one by one is right
        return one
    apart = max(abs(a - one.error(p)) for a, p in zip(found, points, strict=True))
    return several if apart <= SAME else one


def drawn_errors(
    drawing: Drawing, draws: int, held: Sequence[float] = (), label: str = "drawn networks"
) -> tuple[list[float], bool]:
    """The errors of `draws` networks, after those that are held; and whether Ctrl-C ended it."""
    errors = list(held)
    with bar(draws, label, done=len(errors)) as progress, patient_interrupts() as patience:
        try:
            while len(errors) < draws:
                number, inside = divmod(len(errors), drawing.together)
                count = min(drawing.together, draws - number * drawing.together)
                made = drawing.group(number, count)[inside:]
                errors += made
                progress.update(len(made))
        except BaseException:  # inside torch, Ctrl-C may come out as another error
            if not patience.came:
                raise
    return errors, patience.came


def mean_error(errors: Sequence[float], delta: float) -> Drawn:
    """Their mean, and what the mean over the whole posterior is below.

    By betting, which holds whenever the drawing is ended (Ville's inequality).
    """
    values = np.asarray(errors, dtype=np.float64)
    scatter = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    stderr = scatter / math.sqrt(len(values))
    return Drawn(float(values.mean()), stderr, len(values), mean_above(values, delta), delta)


def _affordable(objective: Objective) -> int:
    point = {k: v.clone().requires_grad_() for k, v in objective.params.items()}
    with torch.enable_grad(), kept_rng():
        held = saved_bytes(lambda: objective.total(point, objective.batches[0])[0])
    room = AT_ONCE.get(objective.device.type, 0)
    return min(max(room // max(held, 1), 1), MOST)
