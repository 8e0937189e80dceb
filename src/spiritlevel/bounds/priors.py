"""Where a prior is centred, how wide it is, and what makes it one: it knows nothing of the data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import generator
from spiritlevel.bounds.fitted import held_by, statistics
from spiritlevel.bounds.gaussian import Gaussian, best_scale
from spiritlevel.bounds.pacbayes import grid_share, on_grid
from spiritlevel.bounds.shuffling import taken
from spiritlevel.measures.given import before_training
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.training.feeding import mixed

# The grid of variances LARGEST exp(-j / PRECISION): that of Dziugaite & Roy begins at 0.1, which
# small networks on few examples would leave.
LARGEST, PRECISION = 10.0, 100.0
ENTRIES = 2500  # that a search over the grid looks at; the last is a deviation of 1e-5


def centre(objective: Objective, init: Any, prior: str) -> Tensor:
    """The mean of the prior."""
    if prior == "zero":
        return torch.zeros_like(objective.vector)
    if init is None:
        raise SpiritlevelError(
            'prior="init" is centred at the weights before training: give init=..., a module, a '
            'state_dict or an Objective; or prior="zero"'
        )
    return before_training(objective, init)


def undisturbed(objective: Objective, init: Any) -> Objective:
    """The objective with the buffers from before training: the prior has those.

    Statistics of the examples would make it depend on them.
    """
    known = held_by(init)
    missing = [name for name in statistics(objective) if name not in known]
    if missing:
        raise SpiritlevelError(
            f"the running statistics {missing[0]!r} were made of the examples, which a prior may "
            "not know: give init=the module before training, whose statistics are taken instead"
        )
    names = [n for n, t in objective.buffers.items() if t.is_floating_point() and n in known]
    return objective.at({}, buffers={name: known[name] for name in names}) if names else objective


def rounded(posterior: Gaussian, mean: Tensor) -> tuple[int, Gaussian]:
    """The place on the grid that is nearest to the best scale, and the prior of that scale."""
    best = best_scale(posterior, mean, LARGEST)
    index, scale = on_grid(best, precision=PRECISION, largest=LARGEST)
    return index, Gaussian(mean, torch.full_like(mean, scale))


def scales() -> list[float]:
    """The standard deviations of the grid, from the largest on."""
    return [math.sqrt(LARGEST) * math.exp(-j / (2 * PRECISION)) for j in range(1, ENTRIES + 1)]


def cost(place: int) -> float:
    """What the union over the grid adds for the entry at a place of `scales`, in nats."""
    return math.log(0.5) - math.log(grid_share(0.5, place + 1))


def divided(objective: Objective, share: float, seed: int) -> tuple[Objective, Objective]:
    """The examples that train the prior, a share that `seed` chose, and the rest."""
    number("share", share, above=0.0)
    held = list(objective.batches)
    whole = frozen.join(held) if frozen.alike(held) else None
    if whole is None or not frozen.divisible(whole) or not objective.separable:
        raise SpiritlevelError(
            "share needs examples that can be told apart: batches of tensors of one shape, and a "
            "loss that is a sum over examples"
        )
    n = frozen.examples(whole)
    first = round(share * n)
    if not 1 <= first <= n - 2:
        raise SpiritlevelError(
            f"share={share:g} of {n} examples leaves {first} for the prior and {n - first} for "
            "the bound; give a share that leaves at least 1 and 2"
        )
    order = torch.randperm(n, generator=generator(mixed(seed, "share")))
    size = frozen.examples(held[0])
    parts = [taken(whole, part.sort().values) for part in (order[:first], order[first:])]
    few, rest = (objective.on(frozen.regroup([part], size)) for part in parts)
    return few, rest
