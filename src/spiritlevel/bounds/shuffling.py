"""The frozen data of an objective in a new order every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.tensors import generator, leaves, map_tensors
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.training.feeding import mixed


@dataclass(frozen=True)
class Shuffled:
    """One batch of all examples, or batches that cannot be joined; and how many steps they make."""

    whole: Batch | None
    parts: tuple[Batch, ...]
    size: int
    seed: int
    steps: int

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Those of an epoch from a place on."""
        draws = generator(mixed(self.seed, epoch, "shuffle"))
        if self.whole is None:
            for i in torch.randperm(len(self.parts), generator=draws).tolist()[start:]:
                yield self.parts[i]
            return
        order = torch.randperm(frozen.examples(self.whole), generator=draws)
        order = order.to(next(leaves(self.whole)).device)  # once, and not for every batch
        for chosen in order.split(self.size)[start:]:
            yield taken(self.whole, chosen)


def shuffled(objective: Objective, size: int, seed: int) -> Shuffled:
    """Batches of `size` examples; whole batches where shapes differ or examples belong together."""
    held = list(objective.batches)
    n = sum(frozen.examples(batch) for batch in held)
    joinable = frozen.alike(held) and all(
        frozen.divisible(b) or frozen.examples(b) == 1 for b in held
    )
    if not joinable or not objective.separable or n < 2:
        return Shuffled(None, tuple(held), size, seed, len(held))
    return Shuffled(frozen.join(held), (), size, seed, -(-n // size))


def taken(batch: Batch, chosen: Tensor) -> Batch:
    """Some examples of a batch by their places."""
    return map_tensors(lambda t: t[chosen.to(t.device)], batch)
