"""Copies of many small tensors in a few calls: on a GPU a call costs more than its numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


def copied(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each."""
    found = [torch.empty_like(t) for t in tensors]
    put(found, tensors)
    return found


@torch.no_grad()
def put(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write each value into its place; those of one kind in one call."""
    alike: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, tensor in enumerate(places):
        alike[tensor.device, tensor.dtype].append(number)
    for numbers in alike.values():
        torch._foreach_copy_([places[n] for n in numbers], [values[n] for n in numbers])


def together(numbers: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Scalars as one vector, where the first one lies."""
    alike: defaultdict[Hashable, list[Tensor]] = defaultdict(list)
    for one in numbers:
        alike[one.device, one.dtype].append(one)
    where = numbers[0].device
    return torch.cat([torch.stack(part).to(device=where, dtype=dtype) for part in alike.values()])
