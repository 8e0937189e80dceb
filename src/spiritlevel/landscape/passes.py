"""Passes over the data at many points: one by one, many stacked, fused, or compiled."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import free_bytes, relieved
from spiritlevel.base.scope import kept_rng
from spiritlevel.base.tensors import leaves, map_tensors, unflatten
from spiritlevel.curvature.tape import Tape, Unrecordable, record
from spiritlevel.landscape.fused import can_fuse, fused
from spiritlevel.landscape.statistics import Statistics, recomputed
from spiritlevel.objective import Objective
from spiritlevel.objective import classes as decisions
from spiritlevel.objective.batches import Batch, alike, divisible, examples, join
from spiritlevel.objective.classes import Labels
from spiritlevel.objective.module import channels_last, tensors_of

Place = tuple[float, ...]
TOGETHER = 256  # examples in a fused pass: convolutions of more are no faster
HELD = 0.25  # of the memory that is free: what parts that never change may take


class Score(NamedTuple):
    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class Passes:
    """L(theta + sum_k a_k d_k) and the share of right decisions there, over all the data."""

    objective: Objective
    directions: tuple[Tensor, ...]
    buffers: tuple[dict[str, Tensor], ...] = ()  # what moves along with each direction
    statistics: Statistics = "frozen"
    labels: Labels | None = field(default=None)
    compiled: dict[Any, Callable[..., Tensor]] = field(default_factory=dict)

    def vector(self, place: Place) -> Tensor:
        """The point at a place; the origin itself at zero. It is rounded once, at the end."""
        point = origin = self.objective.vector
        for a, direction in zip(place, self.directions, strict=True):
            if a:
                point = point + a * direction
        return point.to(origin)

    def at(self, place: Place) -> Objective:
        """The objective there, with the buffers that belong to it."""
        there = self.objective.at(self.vector(place), buffers=self._buffers(place))
        return recomputed(there) if self.statistics == "recomputed" else there

    def _buffers(self, place: Place) -> dict[str, Tensor]:
        own, found = self.objective.buffers, {}
        for a, moves in zip(place, self.buffers, strict=False):
            for name, move in moves.items():
                found[name] = found.get(name, own[name]) + a * move
        return {name: buffer.to(own[name]) for name, buffer in found.items()}

    # The ways ----------------------------------------------------------------------------------

    def one(self, place: Place) -> Score:
        """Plainly: a pass of the model over every batch."""
        there = self.at(place)
        sums = [
            relieved(lambda n=n: _score(there, self.labels, n, there.params)) for n in self._all
        ]
        return self._means(sum(sums).cpu())  # type: ignore[union-attr]

    def stacked(self, places: Sequence[Place]) -> list[Score]:
        """All at once: every operation of the model on the parameters of all places."""
        points = torch.stack([self.vector(place) for place in places])
        total: Any = 0
        for n in self._all:
            total = total + relieved(lambda n=n: self._stacked(points, n))
        return [self._means(row) for row in total.cpu()]

    def _stacked(self, points: Tensor, number: int) -> Tensor:
        def score(vector: Tensor) -> Tensor:
            named = unflatten(vector, self.objective.shapes)
            return _score(self.objective, self.labels, number, named)

        with torch.no_grad(), kept_rng():
            return vmap(score)(points)

    def fast(self, place: Place) -> Score:
        """Compiled, one program for the most common form of batches; others plainly."""
        vector = self.vector(place)
        total = torch.zeros(2, dtype=torch.float64, device=self.objective.device)
        forms = [tuple((t.shape, t.dtype) for t in leaves(b)) for b in self.objective.batches]
        common = Counter(forms).most_common(1)[0][0]
        if common not in self.compiled:
            self.compiled[common] = torch.compile(self._of_batch, dynamic=False, fullgraph=True)
        for n, (batch, form) in enumerate(zip(self.objective.batches, forms, strict=True)):
            y, kept = (None, None) if self.labels is None else self._labels(n)
            run = self.compiled[common] if form == common else self._of_batch
            with torch.no_grad(), kept_rng():
                total = total + run(vector, self.objective.here(batch), y, kept)
        return self._means(total.cpu())

    def played(self, place: Place) -> Score:
        """From tapes, with normalizations, sums and ReLUs inside of convolutions."""
        vector = self.vector(place)
        total = torch.zeros(2, dtype=torch.float64, device=self.objective.device)
        for tape in self.tapes:
            total = total + relieved(lambda tape=tape: tape(vector))
        return self._means(total.cpu())

    @functools.cached_property
    def tapes(self) -> tuple[Tape, ...]:
        """A pass over each batch as fused operations; none where there is nothing to fuse."""
        if not can_fuse(self.objective):
            return ()
        made: list[Tape] = []
        room = HELD * free_bytes(self.objective.device)
        try:
            for batch, y, kept in self._joined():
                tape = self._taped(batch, y, kept)
                if tape is None or (room := room - tape.nbytes()) < 0:
                    return ()
                made.append(tape)
        except Unrecordable:  # played from the beginning, it is right
            return ()
        return tuple(made)

    def _joined(self) -> Iterator[tuple[Batch, Tensor | None, Tensor | None]]:
        """Some batches in one, where that changes no loss, and their labels."""
        batches = list(self.objective.batches)
        joins = self.objective.separable and alike(batches) and all(map(divisible, batches))
        count = max(TOGETHER // examples(batches[0]), 1) if joins else 1
        for start in range(0, len(batches), count):
            some, y, kept = slice(start, start + count), None, None
            if self.labels is not None:
                y, kept = torch.cat(self.labels.batches[some]), torch.cat(self.labels.counted[some])
            yield map_tensors(channels_last, join(batches[some])), y, kept

    def _taped(self, batch: Batch, y: Tensor | None, kept: Tensor | None) -> Tape | None:
        known = [t for t in (*leaves(batch), y, kept) if t is not None]
        there = tensors_of(self.objective.module)

        def run(vector: Tensor) -> Tensor:
            return self._of_batch(vector, self.objective.here(batch), y, kept)

        with torch.no_grad(), kept_rng():
            _, tape = record(run, self.objective.vector.clone(), known, there)
        return None if tape.strange else fused(tape)

    def _of_batch(
        self, vector: Tensor, batch: Batch, y: Tensor | None, kept: Tensor | None
    ) -> Tensor:
        named = unflatten(vector, self.objective.shapes)
        return _of_outputs(self.objective, named, batch, y, kept)

    def _labels(self, number: int) -> tuple[Tensor, Tensor]:
        assert self.labels is not None
        return self.labels.batches[number], self.labels.counted[number]

    @property
    def _all(self) -> range:
        return range(len(self.objective.batches))

    def _means(self, sums: Tensor) -> Score:
        loss, right = sums.tolist()
        known = self.labels
        return Score(loss / self.objective.count, None if known is None else right / known.units)


def passes(
    objective: Objective,
    directions: Sequence[Tensor],
    *,
    buffers: Sequence[dict[str, Tensor]] = (),
    statistics: Statistics = "frozen",
) -> Passes:
    """Passes with the labels of a classifier where there are some."""
    try:
        known = decisions.labels(objective)
    except SpiritlevelError:  # no classifier: it has no accuracy
        known = None
    return Passes(objective, tuple(directions), tuple(buffers), statistics, known)


def _score(objective: Objective, known: Labels | None, number: int, params: Any) -> Tensor:
    """The summed loss of a batch and its right decisions."""
    batch = objective.batches[number]
    y, kept = (None, None) if known is None else (known.batches[number], known.counted[number])
    with torch.no_grad(), kept_rng():
        return _of_outputs(objective, params, batch, y, kept)


def _of_outputs(
    objective: Objective, params: Any, batch: Batch, y: Tensor | None, kept: Tensor | None
) -> Tensor:
    on_outputs = objective.loss.on_outputs
    if y is None or kept is None or on_outputs is None:
        total = objective.total(params, batch)[0].double()
        return torch.stack([total, torch.zeros_like(total)])
    out = objective.outputs(params, batch)
    total = on_outputs(out, objective.here(batch))[0].double()
    own, other = decisions.against(decisions.rows(objective, out), y)
    return torch.stack([total, ((own > other) & kept).sum().double()])
