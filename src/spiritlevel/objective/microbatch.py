"""How many examples are processed together: as many as memory allows, or as the user says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import free_bytes
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch

# Second-order products hold about this many times what one backward pass saves.
PEAK_FACTOR = 4
CPU_BYTES = 512 * 2**20  # small enough for caches, large enough for the matrix products
CUDA_SHARE = 0.25  # larger microbatches are no faster, and while one is recorded it takes most


def cut(batches: list[Batch], size: int | None, *, separable: bool) -> list[Batch]:
    """The same examples, `size` at a time, where that changes no loss; as they are if None."""
    if size is None:
        return batches
    if not separable:
        raise cannot_cut(size)
    return frozen.regroup(batches, size)


def cannot_cut(size: int) -> SpiritlevelError:
    return SpiritlevelError(
        f"microbatch={size} would change the loss, which is no sum over the "
        "examples of a batch (BatchNorm or dropout in train mode, or a loss of pairs): "
        "leave it out"
    )


def affordable(loss: Callable[[Batch], Tensor], few: Batch, device: torch.device) -> int:
    """How many examples fit: by what a backward pass saves for each."""
    n = frozen.examples(few)
    half = frozen.rows(few, slice(0, n // 2)) if n > 1 else few
    more, less = (saved_bytes(lambda b=b: loss(b)) for b in (few, half))
    each = max((more - less) / (n - n // 2) if n > 1 else more, 1.0)
    room = CUDA_SHARE * free_bytes(device) if device.type == "cuda" else CPU_BYTES
    return max(int(room / (PEAK_FACTOR * each)), 1)


def saved_bytes(forward: Callable[[], Tensor]) -> int:
    """The memory that autograd keeps for the backward pass of `forward`."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    del result
    return sum(seen.values())
