"""Running statistics of BatchNorm at a point where the network has never been."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spiritlevel.base.doors import one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import kept_rng
from spiritlevel.objective import Objective

Statistics = Literal["frozen", "recomputed"]


def checked(objective: Objective, statistics: Statistics) -> None:
    """Refuse to recompute what is not there."""
    one_of("statistics", statistics, ("frozen", "recomputed"))
    if statistics == "recomputed" and not (objective.mode == "eval" and _layers(objective.module)):
        raise SpiritlevelError(
            'statistics="recomputed" needs BatchNorm with running statistics in eval mode; '
            'use statistics="frozen"'
        )


def recomputed(objective: Objective) -> Objective:
    """The objective with running statistics of its own data.

    Means over the batches of the objective, of what each one has in train mode, as
    torch.optim.swa_utils.update_bn makes them: how the data are cut into batches is seen.
    """
    private = objective.edited(_gathering).replaced(_buffers={})
    with torch.no_grad(), kept_rng():
        for batch in objective.batches:
            private.outputs(objective.params, batch)
    names = {f"{name}.{kind}" for name in _layers(private.module) for kind in _STATISTICS}
    found = {n: b for n, b in private.module.named_buffers() if n.removeprefix(".") in names}
    return objective.at({}, buffers=found)


_STATISTICS = ("running_mean", "running_var")


def _layers(module: nn.Module) -> list[str]:
    return [
        name
        for name, part in module.named_modules()
        if isinstance(part, _BatchNorm) and part.running_mean is not None
    ]


def _gathering(module: nn.Module) -> None:
    """Set to gather statistics: a plain mean over all batches, from nothing."""
    for name in _layers(module):
        layer = module.get_submodule(name)
        assert isinstance(layer, _BatchNorm)
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
