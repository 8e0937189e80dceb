"""What of a network was fitted to the examples beside the weights that a bound accounts for."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import leaves
from spiritlevel.objective import Objective, classes
from spiritlevel.objective.batches import examples
from spiritlevel.objective.classes import Labels

COPIES = 0.02  # the share of examples that may be alike by chance


def statistics(objective: Objective) -> list[str]:
    """The names of running statistics: they are made of the examples."""
    found = []
    for path, part in objective.module.named_modules():
        if isinstance(part, _NormBase) and part.running_mean is not None:
            found += [f"{path}.{own}".lstrip(".") for own in ("running_mean", "running_var")]
    return found


def refuse_fitted(objective: Objective) -> None:
    """Refuse running statistics: nobody pays for them."""
    for name in statistics(objective):
        raise SpiritlevelError(
            f"the running statistics {name!r} were made of the examples, and this bound accounts "
            "for weights only: take them from before training, or fold the norm into the layer "
            "before it"
        )


def held_by(init: Any) -> Mapping[str, Tensor]:
    """What is known of before training, by name: parameters and buffers."""
    if isinstance(init, Objective):
        return {**dict(init.module.named_parameters()), **init.buffers, **init.params}
    if isinstance(init, nn.Module):
        return {**dict(init.named_parameters()), **dict(init.named_buffers())}
    return init if isinstance(init, Mapping) else {}


def beside(objective: Objective) -> dict[str, Tensor]:
    """What outputs may depend on beside the chosen parameters: others, and tables of numbers."""
    tables = {n: t for n, t in objective.buffers.items() if t.is_floating_point()}
    rest = {n: p for n, p in objective.module.named_parameters() if n not in objective.shapes}
    return {**rest, **tables}


def left_out(objective: Objective, init: Any = None) -> tuple[str, ...]:
    """What has to be assumed of what was not chosen, unless it is known to be as before training.

    Refuses what is known to be otherwise.
    """
    known, unsure = held_by(init), 0
    for name, now in beside(objective).items():
        if name not in known:
            unsure += now.numel()
        elif not torch.equal(now.detach().cpu(), known[name].detach().cpu().to(now.dtype)):
            raise SpiritlevelError(
                f"{name!r} is not among the chosen parameters and not as in init: it may know the "
                "examples, and no bound pays for that; choose all that was trained"
            )
    if not unsure:
        return ()
    return (f"the {unsure} numbers beside the chosen parameters do not depend on these examples",)


def decisions(objective: Objective) -> Labels:
    """The labels, one for each example; several of one example are not independent."""
    known = classes.labels(objective)
    if known.units != objective.examples or not objective.separable:
        raise SpiritlevelError(
            f"bounds need one decision for each example, which no other example changes; there are "
            f"{known.units} for {objective.examples}, or their losses hang together"
        )
    return known


def repeated(objective: Objective) -> int:
    """How many examples are exact copies of another one, where that is more than a few."""
    seen: set[bytes] = set()
    for batch in objective.batches:
        first = next(iter(leaves(batch)))
        if first.ndim == 0 or len(first) != examples(batch):
            return 0
        for row in first.detach().cpu().reshape(len(first), -1).contiguous().numpy():
            seen.add(sha256(row.tobytes()).digest())
    copies = objective.examples - len(seen)
    return copies if copies > COPIES * objective.examples else 0
