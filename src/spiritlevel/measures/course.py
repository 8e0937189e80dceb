"""How fast the training went, read from its losses."""

from __future__ import annotations

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import DIAGONAL, JIANG, Measure, Work
from spiritlevel.measures.instruments import Instruments

EARLY, LATE = 0.1, 0.01


def steps_to_loss(instruments: Instruments, level: float = EARLY) -> Estimate:
    """The number of the first step whose training loss is at most a level, counted from 1.

    Jiang et al. (2020), for cross-entropy 0.1. The losses are taken as they are given: those of
    batches scatter, so that a lucky one ends the count; give smoothed ones to avoid that.
    """
    return Estimate(float(_first(instruments.losses, level)))


def steps_between_losses(
    instruments: Instruments, start: float = EARLY, end: float = LATE
) -> Estimate:
    """Steps from the first training loss of at most one level to the first of at most a lower one.

    Jiang et al. (2020), from cross-entropy 0.1 to 0.01; losses as they are given.
    """
    if not end < start:
        raise SpiritlevelError(f"start={start:g}, end={end:g}: give an end below the start")
    losses = instruments.losses
    return Estimate(float(_first(losses, end) - _first(losses, start)))


def _first(losses: list[float], level: float) -> int:
    number("level", level)
    for step, loss in enumerate(losses, 1):
        if loss <= level:
            return step
    raise SpiritlevelError(
        f"the training loss was never at most {level:g} in {len(losses)} steps (the least was "
        f"{min(losses):.3g}); train on, or choose another level"
    )


ENTRIES: dict[str, Measure] = {
    "steps_to_loss": Measure(
        steps_to_loss,
        title="steps to a loss",
        family="course",
        invariances=(*DIAGONAL, "output"),
        reference=JIANG,
        cost="nothing",
        work=Work(),
        needs=("losses",),
        reading="larger means slower at first",
    ),
    "steps_between_losses": Measure(
        steps_between_losses,
        title="steps between two losses",
        family="course",
        invariances=(*DIAGONAL, "output"),
        reference=JIANG,
        cost="nothing",
        work=Work(),
        needs=("losses",),
        reading="larger means slower at last",
    ),
}
