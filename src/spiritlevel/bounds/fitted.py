"""What of a network was fitted to the examples beside the weights that a bound accounts for."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _NormBase

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective import Objective, classes
from spiritlevel.objective.classes import Labels


def refuse_fitted(objective: Objective) -> None:
    """Refuse running statistics: they are made of the examples, and nobody pays for them."""
    for name, part in objective.module.named_modules():
        if isinstance(part, _NormBase) and part.running_mean is not None:
            raise SpiritlevelError(
                f"the running statistics of {name or 'the model'} were made of the examples, and "
                "this bound accounts for weights only: take them from before training, or fold "
                "the norm into the layer before it"
            )


def left_out(objective: Objective) -> tuple[str, ...]:
    """What has to be assumed of the parameters that were not chosen."""
    total = sum(p.numel() for p in objective.module.parameters())
    if objective.size == total:
        return ()
    rest = total - objective.size
    return (f"the {rest} parameters that were not chosen do not depend on these examples",)


def decisions(objective: Objective) -> Labels:
    """The labels, one for each example; several of one example are not independent."""
    known = classes.labels(objective)
    if known.units != objective.examples:
        raise SpiritlevelError(
            f"bounds need one decision for each example; there are {known.units} for "
            f"{objective.examples}, which are not independent of each other"
        )
    return known
