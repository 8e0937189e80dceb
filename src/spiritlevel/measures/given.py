"""What a measure may need beside the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.base import tensor_doors
from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import flatten
from spiritlevel.objective import Objective

Given = Objective | nn.Module | Mapping[str, Tensor] | Tensor | None


def before_training(objective: Objective, init: Any) -> Tensor:
    """The weights before training as a flat vector of the chosen parameters."""
    if isinstance(init, Objective):
        init = init.params
    elif isinstance(init, nn.Module):
        init = dict(init.named_parameters())
    if isinstance(init, Tensor):
        tensor_doors.tensor("init", init, objective.size)
        return init.detach().to(objective.vector)
    tensor_doors.tensors("init", init, objective.shapes)
    missing = [name for name in objective.shapes if name not in init]
    if missing:
        raise SpiritlevelError(
            f"init has no {missing[0]!r}; give the weights of all chosen parameters: "
            f"{', '.join(objective.shapes)}"
        )
    found = flatten({name: init[name].detach().to(objective.vector) for name in objective.shapes})
    if not bool(torch.isfinite(found).all()):
        raise SpiritlevelError("init is not finite; give the weights before training")
    return found


def refuse_given(objective: Objective, init: Any, losses: Any) -> None:
    """Refuse weights that do not fit, and a log that holds no losses."""
    if init is not None:
        before_training(objective, init)
    if losses is None:
        return
    if isinstance(losses, (Tensor, np.ndarray)) and losses.ndim == 1:
        losses = losses.tolist()
    if not isinstance(losses, Sequence) or isinstance(losses, str) or not losses:
        raise SpiritlevelError("losses holds none; give the training loss of every step, a list")
    for loss in losses:
        number("a loss of losses", loss)
