"""What an element of a group does to predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spiritlevel.symmetry import Group


def state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def change(model: nn.Module, group: Group, x: Any, seed: int = 0) -> float:
    """Of the predictions under a random element of the group, relative to the largest."""
    before = {name: tensor.detach().clone() for name, tensor in state(model).items()}
    after = group.act(before, group.random(seed))
    with torch.no_grad():
        old, new = (functional_call(model, values, (x.clone(),)) for values in (before, after))
    return float((old - new).abs().max() / old.abs().max().clamp_min(1e-300))
