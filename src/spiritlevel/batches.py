"""Data of any kind, frozen: read twice, compared, copied, cut to size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from spiritlevel.errors import SpiritlevelError
from spiritlevel.scope import kept_rng
from spiritlevel.tensors import leaves, map_tensors, same_tree

Batch = Any
DATASET_BATCH = 256


def freeze(data: Any, place: Callable[[Tensor], Tensor]) -> list[Batch]:
    """Copy every batch of `data`, after checking that a second pass gives the same ones.

    `place` puts one tensor where it belongs (device, precision).
    """
    if _is_one_batch(data):
        return _refuse_empty([map_tensors(lambda t: place(t.detach()).clone(), data)])
    loader = _as_iterable(data)
    with kept_rng(*_generators(loader)):
        batches = [map_tensors(lambda t: place(t.detach()).clone(), batch) for batch in loader]
        _refuse_empty(batches)
        if iter(loader) is not loader:
            _refuse_change(batches, loader, place)
    return batches


def examples(batch: Batch) -> int:
    """The number of examples of a batch: the length of its first tensor."""
    first = next(leaves(batch), None)
    return first.shape[0] if first is not None and first.ndim else 1


def rows(batch: Batch, index: slice) -> Batch:
    """Some examples of a batch whose tensors all have one row per example."""
    return map_tensors(lambda t: t[index], batch)


def singles(batch: Batch) -> list[Batch]:
    """The examples of a batch one by one, as batches of one."""
    return [rows(batch, slice(i, i + 1)) for i in range(examples(batch))]


def divisible(batch: Batch) -> bool:
    """Whether the batch is of tensors alone, one row per example, and of more than one example."""
    n = examples(batch)
    if n <= 1 or not _only_tensors(batch):
        return False
    return all(t.ndim > 0 and t.shape[0] == n for t in leaves(batch))


def regroup(batches: list[Batch], size: int) -> list[Batch]:
    """The same examples in order, in batches of nearly equal length, `size` at most.

    Batches of one shape are joined first; where shapes differ (padded text) each is only cut.
    """
    if not all(divisible(batch) or examples(batch) == 1 for batch in batches):
        return batches
    joined = [join(batches)] if alike(batches) else batches
    cut = []
    for batch in joined:
        n = examples(batch)
        pieces = -(-n // size)
        edges = [round(i * n / pieces) for i in range(pieces + 1)]
        cut += [rows(batch, slice(a, b)) for a, b in pairwise(edges)]
    return cut


def _only_tensors(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return all(_only_tensors(value) for value in tree.values())
    if isinstance(tree, (tuple, list)):
        return all(_only_tensors(item) for item in tree)
    return isinstance(tree, Tensor)


def _is_one_batch(data: Any) -> bool:
    if isinstance(data, (Tensor, Mapping)):
        return True
    if not isinstance(data, tuple) or not 0 < len(data) <= 3:
        return False
    # (x, y), (x, y, weight), or several inputs in the place of x
    return isinstance(data[-1], Tensor) and all(isinstance(t, Tensor) for t in data[1:])


def _as_iterable(data: Any) -> Iterable[Batch]:
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=DATASET_BATCH)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        return data
    raise SpiritlevelError(
        f"data is a {type(data).__name__}; give a pair of tensors (x, y), a Dataset, a DataLoader "
        "or an iterable of batches"
    )


def _generators(loader: Any) -> list[torch.Generator | None]:
    holders = [loader, getattr(loader, "sampler", None)]
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders += [batch_sampler, getattr(batch_sampler, "sampler", None)]
    found = [getattr(holder, "generator", None) for holder in holders]
    return [g for g in found if isinstance(g, torch.Generator)]


def _refuse_empty(batches: list[Batch]) -> list[Batch]:
    if sum(examples(batch) for batch in batches) == 0:
        raise SpiritlevelError("data is empty: no batch, or no example in any batch")
    return batches


def _refuse_change(
    batches: list[Batch], loader: Iterable[Batch], place: Callable[[Tensor], Tensor]
) -> None:
    count = -1
    for count, again in enumerate(loader):
        if count >= len(batches) or not same_tree(batches[count], map_tensors(place, again)):
            break
    else:
        if count + 1 == len(batches):
            return
    if isinstance(getattr(loader, "sampler", None), RandomSampler):
        reason = "the DataLoader shuffles: build it with shuffle=False"
    else:
        reason = (
            "likely random augmentation, a random sampler or a stream that is consumed: "
            "fix its seed, or pass list(data) to freeze one pass"
        )
    raise SpiritlevelError(f"data differs between two passes (batch {count}); {reason}")


def alike(batches: list[Batch]) -> bool:
    def form(batch: Batch) -> Any:
        keys = tuple(batch) if isinstance(batch, Mapping) else None
        return type(batch), keys, [(t.shape[1:], t.dtype) for t in leaves(batch)]

    return all(form(batch) == form(batches[0]) for batch in batches)


def join(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    columns = zip(*(leaves(batch) for batch in batches), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_tensors(lambda _: next(joined), batches[0])
