"""The loss at many places: in the way that suits their size, held to plain passes, and kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.base.scope import set_apart
from spiritlevel.landscape.journal import Journal
from spiritlevel.landscape.passes import Passes, Place, Score
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import examples
from spiritlevel.objective.microbatch import saved_bytes
from spiritlevel.results.loop import one_by_one

# Which way is taken follows from sizes and not from a clock: the same question gets the same bits.
SMALL = {"cpu": 2**21, "cuda": 2**26}  # bytes of a pass for which calls cost more than numbers
AT_ONCE = {"cpu": 2**24, "cuda": 2**31}  # bytes of all passes that are stacked
MOST = 64  # points that are stacked
SECONDS = {"cpu": 2e-9, "cuda": 6e-12}  # of a pass, for every byte
COMPILING = {"cpu": 60.0, "cuda": 12.0}  # seconds ahead that are worth a compiler
# Relative: how far a faster way may be from a plain pass. Convolutions in tf32, as torch sets them
# on a GPU, differ by more from one algorithm to the next.
SAME = {torch.float64: 1e-11, torch.float32: 2e-6}
TF32 = 1e-3


ALONE: dict[str, Callable[[Passes, Place], Score]] = {
    "fused": Passes.played,
    "compiled": Passes.fast,
}


@dataclass(frozen=True)
class Way:
    """How points are evaluated, and how far that was from a plain pass where both were made."""

    name: str = "one by one"
    size: int = 1
    check: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        if self.name == "stacked":
            return f"{self.size} at a time"
        return f"one by one, {self.name}" if self.name in ALONE else self.name


@dataclass(frozen=True)
class Found:
    """Scores in the order of the places; None where it was interrupted."""

    scores: list[Score | None]
    way: Way
    interrupted: str = ""


@set_apart()
def evaluate(
    passes: Passes,
    places: Sequence[Place],
    *,
    journal: Journal | None = None,
    way: Way | None = None,
) -> Found:
    """The loss at every place. A `way` that was found before is kept, where it can be."""
    if not places:
        return Found([], way or Way())
    way = _recalled(journal, lambda: way if way and _fixed(passes) else _chosen(passes, places))
    groups = [list(places[i : i + way.size]) for i in range(0, len(places), way.size)]
    noun = "points" if way.size == 1 else f"groups of {way.size} points"

    def make(name: str) -> list[Score]:
        held = None if journal is None else journal.next()
        if held is not None:
            return [Score(*score) for score in _part(held, "scores")]
        made = _made(passes, way, groups[int(name)])
        if journal is not None:
            journal.add({"scores": [list(score) for score in made]})
        return made

    done = one_by_one([str(i) for i in range(len(groups))], make, label="landscape", noun=noun)
    scores: list[Score | None] = []
    for number, group in enumerate(groups):
        scores += done.found.get(str(number), [None] * len(group))
    return Found(scores, way, done.interrupted)


def _recalled(journal: Journal | None, make: Callable[[], Way]) -> Way:
    """The way that a journal began with: another one would round differently."""
    held = None if journal is None else journal.next()
    if held is not None:
        return Way(**_part(held, "way"))
    way = make()
    if journal is not None:
        journal.add({"way": vars(way)})
    return way


def _part(record: dict[str, Any], name: str) -> Any:
    if name not in record:
        raise SpiritlevelError("the journal holds other records than this call makes: remove it")
    return record[name]


def _made(passes: Passes, way: Way, group: list[Place]) -> list[Score]:
    if way.name == "stacked":
        found = passes.stacked(group)
    else:
        one = ALONE.get(way.name, Passes.one)
        found = [one(passes, place) for place in group]
    if passes.statistics == "frozen":  # the centre is the objective itself
        value = passes.objective.value()
        found = [s if any(p) else s._replace(loss=value) for s, p in zip(found, group, strict=True)]
    return found


# Which way ---------------------------------------------------------------------------------------


def _chosen(passes: Passes, places: Sequence[Place]) -> Way:
    """The way for passes of this size, if it says the same as a plain pass."""
    if not _fixed(passes) or len(places) < 2:
        return Way()
    size, where = _bytes(passes.objective), passes.objective.device.type
    if size <= SMALL.get(where, 0):
        count = min(AT_ONCE[where] // size, MOST, len(places))
        return _tried(passes, Way("stacked", count), places)
    way = _tried(passes, Way("fused"), places) if passes.tapes else Way()
    if way.name == "fused":  # compiled it is no faster
        return way
    if size * SECONDS.get(where, 0.0) * len(places) > COMPILING.get(where, math.inf):
        return _tried(passes, Way("compiled"), places)
    return way


def _fixed(passes: Passes) -> bool:
    """If parameters alone change from place to place: the faster ways know of nothing else."""
    return passes.statistics == "frozen" and not passes.buffers


def _tried(passes: Passes, way: Way, places: Sequence[Place]) -> Way:
    """The way with its distance from plain passes at a few places, or a note.

    They are the ends and one between, and not the centre, whose loss is known.
    """
    moved = [place for place in places if any(place)] or list(places)
    ends = [moved[i] for i in sorted({0, len(moved) // 3, len(moved) - 1})]
    rest = [place for place in places if place not in ends]
    try:
        found = _made(passes, way, [*ends, *rest][: max(way.size, len(ends))])[: len(ends)]
    except torch.OutOfMemoryError:
        return Way(note=f"{way}: memory ran out")
    except Exception as error:  # of a compiler or a batching rule; plain passes are right
        return Way(note=f"not {way}: {in_one_line(error, 120)}")
    truth = [passes.one(place) for place in ends]
    check = max(_apart(a.loss, b.loss) for a, b in zip(found, truth, strict=True))
    if check > _tolerance(passes.objective):
        return Way(note=f"not {way}: it differed from plain passes by {check:.0e}")
    return Way(way.name, way.size, check)


def _tolerance(objective: Objective) -> float:
    tf32 = objective.device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return TF32 if tf32 and objective.dtype == torch.float32 else SAME[objective.dtype]


def _apart(a: float, b: float) -> float:
    """The relative difference; none where both are no numbers."""
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / max(abs(b), 1e-300) if a != b else 0.0
    return 0.0 if str(a) == str(b) else math.inf


def _bytes(objective: Objective) -> int:
    """What one pass over the data computes, by what its backward pass would hold."""
    first = objective.batches[0]
    held = saved_bytes(lambda: objective.total(_leaves(objective), first)[0])
    return max(held * objective.examples // max(examples(first), 1), 1)


def _leaves(objective: Objective) -> dict[str, torch.Tensor]:
    with torch.enable_grad():
        return {k: v.clone().requires_grad_() for k, v in objective.params.items()}
