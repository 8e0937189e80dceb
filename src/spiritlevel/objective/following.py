"""Which BatchNorm follows which layer, as a few examples run through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spiritlevel.base.scope import set_apart
from spiritlevel.objective.objective import Objective

EXAMPLES = 2  # run through the model where it is watched; one alone has no batch statistics
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Followers:
    """The layer before each BatchNorm with fixed statistics -> that norm.

    `others` are norms that follow no such layer directly, or one that another follows too; `runs`
    says how often each layer and norm ran.
    """

    pairs: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)


@set_apart()
@torch.no_grad()
def watch(
    objective: Objective,
    kinds: type | tuple[type, ...],
    saw: Callable[[str, nn.Module, Tensor, Any], None],
) -> None:
    """Run a few examples through the private copy; `saw(name, layer, input, output)` is told."""
    layers = [(n, m) for n, m in objective.module.named_modules() if isinstance(m, kinds)]

    def told(name: str) -> Callable[..., None]:
        return lambda layer, given, named, made: saw(
            name, layer, next(iter((*given, *named.values()))), made
        )

    hooks = [layer.register_forward_hook(told(name), with_kwargs=True) for name, layer in layers]
    try:
        objective.outputs(objective.params, objective.few(EXAMPLES))
    finally:
        for hook in hooks:
            hook.remove()


def followers(objective: Objective) -> Followers:
    """Of tensors that nobody wrote into in between."""
    made: dict[tuple[int, int], str] = {}
    kept: list[Tensor] = []  # so that no other tensor gets the number of one that is gone
    found = Followers()

    def saw(name: str, layer: Any, given: Tensor, output: Tensor) -> None:
        kept.extend((given, output))
        found.runs[name] += 1
        if isinstance(layer, LAYERS):
            if not isinstance(layer, nn.Linear) or output.ndim == 2:
                made[_unwritten(output)] = name
            return  # units of other linear layers are not along the axis of the norm's channels
        before = made.get(_unwritten(given), "")
        if (
            before
            and before not in found.pairs
            and not layer.training
            and layer.running_var is not None
        ):
            found.pairs[before] = name
        else:
            found.others.append(name)

    watch(objective, (*LAYERS, _BatchNorm), saw)
    return found


def _unwritten(tensor: Tensor) -> tuple[int, int]:
    """A tensor until somebody writes into it, as rectifiers in place do."""
    return id(tensor), tensor._version
