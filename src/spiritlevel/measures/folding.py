"""BatchNorm multiplied into the layer before it: the same network with other weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import without_tf32
from spiritlevel.measures.weights import refuse_derived
from spiritlevel.objective import Objective
from spiritlevel.objective.following import followers
from spiritlevel.symmetry.gaps import ALIKE, same

Named = dict[str, Tensor]


@torch.no_grad()
def folded(objective: Objective) -> Objective:
    """The same network with every BatchNorm's gain over its spread in the weights before it.

    The norm is left with the gain 1, the spread 1, the same bias and the mean in the new units.
    That it predicts the same is seen on all the data before it is handed out.
    """
    refuse_derived(objective)
    pairs = norms_after_layers(objective)
    if not pairs:
        return objective
    values, buffers = multiplied(objective, pairs, objective.params, objective.buffers)
    chosen = {name: value for name, value in values.items() if name in objective.params}

    @torch.no_grad()
    def edit(module: nn.Module) -> None:
        for name in values.keys() - chosen.keys():
            module.get_parameter(name).copy_(values[name])

    twin = objective.edited(edit).at(chosen, buffers=buffers)
    with without_tf32():
        before, after = objective.predictions(), twin.predictions()
    if not same(before, after, ALIKE[objective.dtype]):
        raise SpiritlevelError(
            "with BatchNorm folded into the layers before it the network predicts something else: "
            "the output of such a layer is also used elsewhere; use fold=False"
        )
    return twin


@torch.no_grad()
def folded_start(objective: Objective, init: Mapping[str, Tensor]) -> Named:
    """The weights before training, folded with the statistics that a new BatchNorm has: 0 and 1."""
    pairs = norms_after_layers(objective)
    fresh = {}
    for norm in pairs.values():
        mean, variance = f"{norm}.running_mean", f"{norm}.running_var"
        fresh[mean] = torch.zeros_like(objective.buffers[mean])
        fresh[variance] = torch.ones_like(objective.buffers[variance])
    return {**init, **multiplied(objective, pairs, init, fresh)[0]}


def multiplied(
    objective: Objective,
    pairs: Mapping[str, str],
    params: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> tuple[Named, Named]:
    """The parameters and the statistics that change, by name."""
    held: Named = {**dict(objective.module.named_parameters()), **params}
    values: Named = {}
    statistics: Named = {}
    for layer, norm in pairs.items():
        module: Any = objective.module.get_submodule(norm)
        mean, variance = f"{norm}.running_mean", f"{norm}.running_var"
        scale = (buffers[variance] + module.eps).rsqrt()
        if f"{norm}.weight" in held:
            scale = scale * held[f"{norm}.weight"]
            values[f"{norm}.weight"] = torch.ones_like(scale)
        for own in (f"{layer}.weight", f"{layer}.bias"):
            if own in held:
                values[own] = held[own] * scale.reshape(-1, *[1] * (held[own].ndim - 1))
        statistics[mean] = buffers[mean] * scale
        statistics[variance] = torch.full_like(buffers[variance], 1 - module.eps)
    return values, statistics


def norms_after_layers(objective: Objective) -> dict[str, str]:
    """The layer before each BatchNorm -> that norm."""
    found = followers(objective)
    if found.others:
        raise SpiritlevelError(
            f"{found.others[0]} cannot be folded: it has to follow a linear layer or a convolution "
            'directly, both used once, with fixed statistics (mode="eval"); use fold=False'
        )
    if len(set(found.pairs.values())) < len(found.pairs):
        raise SpiritlevelError("a BatchNorm that is used twice cannot be folded; use fold=False")
    return found.pairs
