"""Buffers of a module, such as running statistics, as they were."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from spiritlevel.base import doors
from spiritlevel.training.copies import copied, put

Kept = list[tuple[nn.Module, str, Tensor, Tensor]]


def only_modules(model: Any) -> None:
    """Refuse what is no module, but for None."""
    doors.a("model", model, (nn.Module, type(None)), "the torch.nn.Module that is trained")


def kept(model: nn.Module | None) -> Kept:
    """Every buffer with its owner, its name and a copy."""
    owned = [
        (module, name, buffer)
        for module in (model.modules() if model is not None else ())
        for name, buffer in module.named_buffers(recurse=False)
    ]
    copies = copied([buffer for *_, buffer in owned])
    return [(*one, copy) for one, copy in zip(owned, copies, strict=True)]


def restored(buffers: Kept) -> None:
    """Put them back, also where a module has replaced one."""
    put([buffer for _, _, buffer, _ in buffers], [copy for *_, copy in buffers])
    for module, name, buffer, _ in buffers:
        module._buffers[name] = buffer
