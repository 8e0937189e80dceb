"""What is seen at one point of a training: measures, here and on the bottom of the orbit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.interrupts import heard_interrupts
from spiritlevel.base.tensor_doors import accuracy
from spiritlevel.measures.asking import Asked, asked
from spiritlevel.measures.bottoms import SURE, Bottoms
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.results.history import Reading
from spiritlevel.symmetry import Group, symmetries
from spiritlevel.symmetry.find import refuse_moved_loss

WATCHED = ("gradient_norm", "lambda_max", "hessian_trace", "gradient_noise_scale", "alignment")
STILL = "this network has no rescalings: nothing of what is seen is of the coordinates"


@dataclass(frozen=True)
class Seen:
    """The readings at one point, and what could not be read, with the reasons."""

    readings: tuple[Reading, ...]
    notes: tuple[str, ...]


class Sight:
    """How points are looked at: which measures, how well, and the symmetries, found once.

    They are a property of the architecture: at each point a random element is held to the numbers
    and the point at the bottom is proved to be the same network before its value is believed.
    """

    def __init__(
        self,
        objective: Objective,
        measures: Sequence[str] | None,
        *,
        least: bool,
        seed: int,
        tol: float,
        rtol: float,
        budget: int,
    ) -> None:
        accuracy(tol, rtol, budget, seed)
        self.objective, self.least = objective, least
        self.asked = asked(WATCHED if measures is None else measures)
        self.settings: dict[str, Any] = {"seed": seed, "tol": tol, "rtol": rtol, "budget": budget}
        self.settings["compile"] = False  # what one look could share is not worth it
        self.offset: Tensor | None = None  # from the least trace to the least norm, at the last one
        self.notes: list[str] = []

    @functools.cached_property
    def group(self) -> Group | None:
        """The rescalings of the architecture; None, with the reason, where there are none."""
        if not self.least:
            return None
        try:
            found = symmetries(self.objective)
        except Exception as error:  # a network that cannot be traced is watched all the same
            self.notes.append(f"nothing is known of the bottom of the orbit: {in_one_line(error)}")
            return None
        if not found.dim:
            self.notes.append(STILL)
        return found if found.dim else None

    def at(self, point: Objective) -> Seen:
        """All that can be read at this point; what cannot is said. Ctrl-C is raised."""
        notes: dict[str, str] = {}
        tools = Instruments(point, group=self.group, **self.settings)
        with heard_interrupts() as heard:
            try:
                readings = self._read(tools, notes)
            except Exception as error:  # inside torch, Ctrl-C may come out as a RuntimeError
                if heard:
                    raise KeyboardInterrupt from error
                raise
            if heard:  # something inside kept what it had and went on
                raise KeyboardInterrupt
        return Seen(tuple(readings), tuple(f"no {name}: {why}" for name, why in notes.items()))

    def _read(self, tools: Instruments, notes: dict[str, str]) -> list[Reading]:
        readings: list[Reading] = []
        for one in self.asked:
            found = _kept(lambda one=one: _read_one(one, tools), one.label, notes)
            readings += [] if found is None else found
        if self.group is None:
            return readings
        bottoms = Bottoms(tools, offset=self.offset)
        group = self.group
        if _kept(lambda: (refuse_moved_loss(tools.objective, group),), "bottom", notes) is None:
            return readings
        known = {one.label: one for one in self.asked}
        seen = [self._with_least(r, known.get(r.name), bottoms, notes) for r in readings]
        self._remember(bottoms)
        return seen

    def _with_least(
        self, reading: Reading, one: Asked | None, bottoms: Bottoms, notes: dict[str, str]
    ) -> Reading:
        bottom = None if one is None or reading.invariant else one.entry.bottom
        if one is None or bottom is None or bottom.order is not None or one.parameters:
            return reading  # to second order, or for other parameters, it would be another number
        here = reading.estimate
        found = _kept(
            lambda: bottoms.interval(bottom, here), f"least {reading.title or reading.name}", notes
        )
        if found is None:
            return reading
        paid = bottoms.minimum(bottom.norm, bottom.matrix)
        # a norm is no bound from below of a signed end: what is least is not above what is here
        value = min(found.value, here.value) if bottom.signed else found.value
        high = min(found.high, here.value + SURE * here.error) if bottom.signed else found.high
        cost, seconds = paid.products, paid.seconds
        least = Estimate(high, matvecs=cost, seconds=seconds, status=Status.UPPER_BOUND)
        if found.low > 0:  # else nothing is known from below
            rest = "" if paid.status is Status.CONVERGED else "the search did not come to rest"
            width = max(value - found.low, high - value)
            least = replace(least, value=value, bound=width, status=paid.status, remedy=rest)
        return replace(reading, least=least)

    def _remember(self, bottoms: Bottoms) -> None:
        """How far the least norm lies from the least trace: the next search begins there."""
        norm = bottoms.found.get(("spectral", "hessian"))
        if norm is None:
            return
        try:
            self.offset = norm.log_scales - bottoms.instruments.least_trace.log_scales
        except SpiritlevelError:  # a loss without such a trace
            self.offset = None

    def state_dict(self) -> dict[str, Any]:
        offset = None if self.offset is None else self.offset.tolist()
        return {"offset": offset, "notes": list(self.notes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        given = state["offset"]
        self.offset = None if given is None else torch.tensor(given, dtype=torch.float64)
        self.notes = [str(note) for note in state["notes"]]


def _read_one(one: Asked, tools: Instruments) -> list[Reading]:
    found = one.entry.function(tools, **one.parameters)
    stays = one.entry.promises("unit")
    if isinstance(found, Estimate):
        return [Reading(one.label, found, title=one.title, invariant=stays)]
    return [
        Reading(f"{one.label}.{part}", e, title=f"{one.title} {part}", invariant=stays)
        for part, e in found.items()
    ]


def _kept(make: Callable[[], Any], name: str, notes: dict[str, str]) -> Any:
    """What is made; any failure becomes a note: a training does not end because of a look."""
    try:
        return make()
    except Exception as error:
        notes[name] = in_one_line(error)
        return None
