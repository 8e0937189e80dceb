"""Data of any kind, frozen: read twice, compared, copied, cut to size."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from spiritlevel.base.errors import SpiritlevelError, first_line, in_one_line
from spiritlevel.base.scope import kept_rng
from spiritlevel.base.tensors import leaves, map_leaves, map_tensors, same_tree

Batch = Any
DATASET_BATCH = 256
WATCHERS = ("__torch_function__", "__torch_dispatch__")  # between the model and torch
HOME, TORCH = Path(__file__).parents[1], Path(torch.__file__).parent


def freeze(data: Any, place: Callable[[Tensor], Tensor]) -> list[Batch]:
    """Copy every batch of `data`, after checking that a second pass gives the same ones.

    `place` puts one tensor where it belongs (device, precision).
    """

    def copied(batch: Batch) -> Batch:
        return map_tensors(lambda t: place(t.detach()).clone(), batch)

    if is_one_batch(data):
        return _refuse_empty([copied(read(data))])
    loader = _as_iterable(data)
    with kept_rng(*generators(loader)):
        batches = [copied(batched(read(batch))) for batch in loader]
        _refuse_empty(batches)
        if iter(loader) is not loader:
            _refuse_change(batches, loader, lambda batch: copied(batched(read(batch))))
    return batches


def is_one_batch(data: Any) -> bool:
    """Whether data are one batch and not several: an array, a mapping, or (x, y), (x, y, weight).

    Batches beside each other are of one kind, so members of two kinds are x and y; and so are
    bare arrays, of which none has a target.
    """
    if _is_array(data) or isinstance(data, Mapping):
        return True
    if not _is_pair(data):
        return False
    if all(_is_array(member) for member in data):
        # rows of a list that are no pairs are batches for a loss that needs no targets
        lengths = {tuple(np.shape(member)[:1]) for member in data}
        return isinstance(data, tuple) or (len(lengths) == 1 and () not in lengths)
    if all(isinstance(member, Mapping) for member in data):  # named inputs, named targets
        return not any(set(data[0]) & set(member) for member in data[1:])
    return len({_kind(member) for member in data}) > 1


@contextlib.contextmanager
def explained(batches: list[Batch]) -> Iterator[None]:
    """Say what it is where the model or the loss cannot take a batch, and what is odd about it."""
    try:
        yield
    except (SpiritlevelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        known = isinstance(error, (RuntimeError, TypeError, ValueError))
        if known and (odd := _oddity(batches[0])):
            raise SpiritlevelError(f"{odd} (torch says: {first_line(error)})") from error
        if (place := _theirs(error)) is None:
            raise
        raise SpiritlevelError(
            f"the model or the loss raised {in_one_line(error)} ({place}) on the given data: give "
            "data that both can take, or a function loss(model, batch) -> (sum, count)"
            f"{_remedy(error)}"
        ) from error


def _theirs(error: Exception) -> str | None:
    """Where it was raised, if that is in the model or the loss and not in what calls them."""
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if frame.name not in WATCHERS]
    ours = [i for i, frame in enumerate(frames) if HOME in Path(frame.filename).parents]
    inside = [Path(frame.filename) for frame in frames[ours[-1] + 1 :]]
    if not any(TORCH not in path.parents or TORCH / "nn" in path.parents for path in inside):
        return None
    return f"{inside[-1].name}, line {frames[-1].lineno}"


def _remedy(error: Exception) -> str:
    """A penalty on gradients is evaluated like any loss, where nothing is differentiated."""
    return "; inside a loss, differentiate by torch.func.grad" * ("require grad" in str(error))


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
    """Whether the batch is a table of more than one example."""
    return examples(batch) > 1 and tabular(batch)


def tabular(batch: Batch) -> bool:
    """Whether the batch is of tensors alone, one row per example."""
    n = examples(batch)
    return _only_tensors(batch) and all(t.ndim > 0 and t.shape[0] == n for t in leaves(batch))


def regroup(batches: list[Batch], size: int) -> list[Batch]:
    """The same examples in order, in batches of one length, `size` at most; the last has the rest.

    Batches of one shape are joined first; where shapes differ (padded text) each is only cut.
    """
    if not all(divisible(batch) or examples(batch) == 1 for batch in batches):
        return batches
    joined = [join(batches)] if alike(batches) else batches
    cut = []
    for batch in joined:
        n = examples(batch)
        pieces = -(-n // size)
        length = -(-n // pieces)
        cut += [rows(batch, slice(a, min(a + length, n))) for a in range(0, n, length)]
    return cut


def _only_tensors(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return all(_only_tensors(value) for value in tree.values())
    if isinstance(tree, (tuple, list)):
        return all(_only_tensors(item) for item in tree)
    return isinstance(tree, Tensor)


def _is_pair(batch: Batch) -> bool:
    """(x, y) or (x, y, weight)."""
    return isinstance(batch, (tuple, list)) and len(batch) in (2, 3)


def _is_array(value: Any) -> bool:
    """A tensor, or an array of anybody's that numpy can read."""
    if isinstance(value, Tensor):
        return True
    return hasattr(type(value), "__array__") and np.ndim(value) > 0


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "sequence"
    if isinstance(value, Mapping):
        return "mapping"
    return "array" if _is_array(value) else "other"


def _held(tree: Any) -> list[Any]:
    """Whatever a tree holds, tensors or not."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def read(batch: Batch) -> Batch:
    """A batch whose arrays are tensors and whose integers are int64, the kind torch counts with.

    Bytes among the inputs stay bytes: images that the model may cast itself.
    """
    tensors = map_leaves(_tensor, batch)
    held = _held(tensors)
    if held and tensors is not held[0] and all(isinstance(leaf, Number) for leaf in held):
        raise SpiritlevelError(
            f"a batch is a {type(batch).__name__} of plain numbers; make tensors of them, "
            "torch.tensor(x)"
        )
    inputs = tensors[0] if _is_pair(tensors) else tensors
    images = {id(t) for t in leaves(inputs) if t.dtype is torch.uint8}
    return map_tensors(lambda t: t if id(t) in images else _widened(t), tensors)


def _tensor(leaf: Any) -> Any:
    """The tensor of an array; anything else as it is."""
    if isinstance(leaf, (Tensor, Number)) or not hasattr(type(leaf), "__array__"):
        return leaf
    if isinstance(leaf, np.ma.MaskedArray):
        raise SpiritlevelError("data holds a masked array; fill its gaps, x.filled(0.0)")
    array = np.asarray(leaf)
    try:  # torch takes neither read-only memory nor foreign byte orders nor strides that go back
        native = array.dtype.newbyteorder("=")
        return torch.from_numpy(np.require(array, native, ["C_CONTIGUOUS", "WRITEABLE"]))
    except TypeError:
        raise SpiritlevelError(
            f"data holds an array of {array.dtype}; give numbers, x.astype('float32')"
        ) from None


def _widened(tensor: Tensor) -> Tensor:
    """int64 for integers of any width: in bytes -100, the label to ignore, would be class 156."""
    plain = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool
    return tensor if plain else tensor.long()


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, Number) or (isinstance(leaf, Tensor) and leaf.ndim == 0)


def batched(batch: Batch) -> Batch:
    """A single example, known by a target without dimensions, as a batch of one."""
    if not _is_pair(batch) or next(leaves(batch[0]), None) is None:
        return batch
    if not all(_is_number(target) for target in _held(batch[1:])):
        return batch

    def alone(leaf: Any) -> Any:
        leaf = torch.from_numpy(np.array(leaf)) if isinstance(leaf, Number) else leaf
        return leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf

    return map_leaves(alone, batch)


def _oddity(batch: Batch) -> str:
    """What a model or a loss may stumble over, and what to do about it; "" if nothing is odd."""
    inputs = list(leaves(batch[0] if _is_pair(batch) else batch))
    if any(t.dtype is torch.uint8 for t in inputs):
        return "the model got uint8 inputs: cast them, x.float() / 255"
    if not _is_pair(batch) or not all(isinstance(t, Tensor) and t.ndim for t in batch[:2]):
        return ""
    x, y = batch[:2]
    if len(x) != len(y):
        return f"x has {len(x)} rows and y has {len(y)}: give one target for each example"
    return ""


def _as_iterable(data: Any) -> Iterable[Batch]:
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=DATASET_BATCH)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        return data
    raise SpiritlevelError(
        f"data is a {type(data).__name__}; give a pair of tensors or arrays (x, y), a Dataset, a "
        "DataLoader or an iterable of batches"
    )


def generators(loader: Any) -> list[torch.Generator | None]:
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
    batches: list[Batch], loader: Iterable[Batch], copied: Callable[[Batch], Batch]
) -> None:
    count = -1
    for count, again in enumerate(loader):
        if count >= len(batches) or not same_tree(batches[count], copied(again)):
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
