"""Buffers of a module, such as running statistics, as they were."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base import doors

Kept = list[tuple[nn.Module, str, Tensor, Tensor]]


def only_modules(model: Any) -> None:
    """Refuse what is no module, but for None."""
    doors.a("model", model, (nn.Module, type(None)), "the torch.nn.Module that is trained")


def kept(model: nn.Module | None) -> Kept:
    """Every buffer with its owner, its name and a copy."""
    found: Kept = []
    for module in model.modules() if model is not None else ():
        for name, buffer in module.named_buffers(recurse=False):
            found.append((module, name, buffer, buffer.clone()))
    return found


@torch.no_grad()
def restored(buffers: Kept) -> None:
    """Put them back, also where a module has replaced one."""
    for module, name, buffer, copy in buffers:
        buffer.copy_(copy)
        module._buffers[name] = buffer
