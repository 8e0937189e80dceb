"""Data of any kind as the batches of every epoch: the same ones for the same seed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import kept_rng, seed_all
from spiritlevel.base.tensors import generator, leaves, map_tensors
from spiritlevel.objective.batches import (
    Batch,
    batched,
    divisible,
    examples,
    generators,
    is_one_batch,
    read,
    rows,
)

WHOLE = 256  # examples that are evaluated together, where no loader says how many
Source = Callable[[int, int], Iterable[Batch]]  # (epoch, first place) -> what is read


@dataclass(frozen=True)
class Feed:
    """Where the batches of an epoch come from, and what tells these data from others."""

    seed: int
    source: Source
    whole: Callable[[], Iterable[Batch]]  # all examples once, in any batches
    place: Callable[[Tensor], Tensor]  # of one tensor: its device and precision
    steps: int | None
    form: str
    leaps: bool = True  # whether the source can begin in the middle of an epoch
    generators: list[torch.Generator | None] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from a place on.

        Before each is fetched the global random states are set from (seed, epoch, place): what
        augments it and what drops out in its step is the same whatever was done before.
        """
        first = start if self.leaps else 0
        seed_all(mixed(self.seed, epoch, "order"))
        fetched = iter(self.source(epoch, first))
        for place in itertools.count(first):
            seed_all(mixed(self.seed, epoch, place))
            try:
                batch = next(fetched)
            except StopIteration:
                return
            if place >= start:
                yield self.ready(batch)

    def everything(self) -> Iterator[Batch]:
        """All the data once, with the same random numbers every time."""
        seed_all(mixed(self.seed, 0, "everything"))
        for batch in self.whole():
            yield self.ready(batch)

    def first(self) -> Batch:
        """The first batch of the first epoch."""
        with kept_rng(*self.generators):
            for batch in self.batches(1):
                if examples(batch):
                    return batch
        raise SpiritlevelError("data is empty: no batch, or no example in any batch")

    def told(self, first: Batch) -> dict[str, str]:
        """What tells these data from others; workers that stay may draw another first batch."""
        return {"the data": self.form, "the first batch": "" if self.notes else _digest(first)}

    def ready(self, batch: Batch) -> Batch:
        return map_tensors(self.place, batched(read(batch)))


def mixed(*parts: int | str) -> int:
    """A seed from several numbers and words."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "little")


def feed(data: Any, batch_size: int, seed: int, place: Callable[[Tensor], Tensor]) -> Feed:
    """The feed of tensors or arrays (x, y), a mapping, a Dataset, a DataLoader or batches."""
    if is_one_batch(data):
        return _of_tensors(read(data), batch_size, seed, place)
    if isinstance(data, DataLoader):
        return _of_loader(data, seed, place)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return _of_dataset(data, batch_size, seed, place)
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise SpiritlevelError(
            f"data is a {type(data).__name__}; give a pair of tensors or arrays (x, y), a Dataset, "
            "a DataLoader or a list of batches"
        )
    if iter(data) is data:
        raise SpiritlevelError(
            f"data is a {type(data).__name__}, which can be read once; give list(data)"
        )
    if isinstance(data, Sequence):
        many = f"{len(data)} batches"
        return Feed(seed, lambda epoch, first: data[first:], lambda: data, place, len(data), many)
    return Feed(seed, lambda epoch, first: data, lambda: data, place, None, "a stream", leaps=False)


def shuffled(n: int, seed: int, epoch: int) -> Tensor:
    """The order of n examples in an epoch."""
    return torch.randperm(n, generator=generator(mixed(seed, epoch, "shuffle")))


def _order(n: int, size: int, seed: int, epoch: int) -> list[Tensor]:
    return list(shuffled(n, seed, epoch).split(size))


def _of_tensors(batch: Batch, size: int, seed: int, place: Callable[[Tensor], Tensor]) -> Feed:
    n, told = examples(batch), _digest(batch)
    if not divisible(batch):  # one example, or data without a row for each
        return Feed(seed, lambda epoch, first: [batch][first:], lambda: [batch], place, 1, told)

    def source(epoch: int, first: int) -> Iterator[Batch]:
        for chosen in _order(n, size, seed, epoch)[first:]:
            yield map_tensors(lambda t, chosen=chosen: t[chosen.to(t.device)], batch)

    def whole() -> Iterator[Batch]:
        for a in range(0, n, WHOLE):
            yield rows(batch, slice(a, a + WHOLE))

    form = f"{n} examples {told} by {size}"
    return Feed(seed, source, whole, place, -(-n // size), form)


def _of_dataset(data: Any, size: int, seed: int, place: Callable[[Tensor], Tensor]) -> Feed:
    n = len(data)
    if n == 0:
        raise SpiritlevelError("data is an empty Dataset; give one with examples")

    def source(epoch: int, first: int) -> Iterable[Batch]:
        order = [chosen.tolist() for chosen in _order(n, size, seed, epoch)]
        return DataLoader(data, batch_sampler=order[first:])

    form = f"{n} examples of a {type(data).__name__} by {size}"
    whole = DataLoader(data, batch_size=WHOLE)
    return Feed(seed, source, lambda: whole, place, -(-n // size), form)


def _of_loader(loader: Any, seed: int, place: Callable[[Tensor], Tensor]) -> Feed:
    """A loader as it is; its own generators, and a sampler that counts epochs, are told which."""
    own = generators(loader)
    samplers = [loader.sampler, getattr(loader.batch_sampler, "sampler", None)]

    def source(epoch: int, first: int) -> Iterable[Batch]:
        for one in own:
            if one is not None:
                one.manual_seed(mixed(seed, epoch, "loader"))
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)  # type: ignore[union-attr]
        return loader

    steps = None if isinstance(loader.dataset, IterableDataset) else len(loader)
    notes = ()
    if loader.num_workers and loader.persistent_workers:
        notes = ("persistent_workers: random numbers drawn in workers differ after a resumption",)
    form = f"a loader of {steps} batches of a {type(loader.dataset).__name__}"
    return Feed(
        seed,
        source,
        lambda: _undropped(loader),
        place,
        steps,
        form,
        leaps=False,
        generators=own,
        notes=notes,
    )


def _undropped(loader: Any) -> Any:
    """The loader, or one that leaves no example out where it drops the last batch."""
    plain = type(loader.sampler) in (RandomSampler, SequentialSampler)
    if not (plain and loader.drop_last and loader.batch_size):
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
    )


def _digest(batch: Batch) -> str:
    found = hashlib.sha256()
    for tensor in leaves(batch):
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:12]
