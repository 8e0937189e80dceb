"""The watch: what flatness does along a training, and which part of it is coordinates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.scope import set_apart
from spiritlevel.objective import Objective, described, only_objectives
from spiritlevel.results.data import plain, read
from spiritlevel.results.history import Epoch, History, Moment
from spiritlevel.results.provenance import provenance
from spiritlevel.training.sight import Sight
from spiritlevel.training.weights import at_weights, live, prefix_of

Log = Callable[[dict[str, float], int], Any]


class Watch:
    """Looks at a training every so many steps: flatness here, and on the bottom of the orbit.

    - `objective`: the data, the loss and the mode in which is measured; the weights are read from
      the module that is trained, at each look, with its running statistics. Nothing of it changes.
    - `measures`: names, patterns or calls ("keskar(eps=5e-4)") of `MEASURES`; if None the gradient
      norm, the largest eigenvalue, the trace, the gradient noise scale and the alignment.
    - `every`: steps between two looks. `share`: the most of the wall time since the first look that
      looking may take; a look that comes too early is put off to the next due step. The first one
      is made in any case, and so is the last one of `fit`.
    - `least`: also on the bottom of the orbit, where a measure has one.
    - `log`: log(numbers by name, step) for any logger.

    Eigenvalues stop at the relative residual `tol`, traces at the relative standard error `rtol`,
    either at `budget` products. What cannot be read becomes a note; only Ctrl-C is raised.
    """

    def __init__(
        self,
        objective: Objective,
        measures: Sequence[str] | None = None,
        *,
        every: int = 100,
        least: bool = True,
        share: float | None = None,
        log: Log | None = None,
        seed: int = 0,
        tol: float = 1e-3,
        rtol: float = 0.05,
        budget: int = 200,
    ) -> None:
        only_objectives(objective)
        objective.module  # noqa: B018 - in other coordinates live weights are no point of it
        doors.number("every", every, 1, whole=True)
        doors.one_of("least", least, (True, False))
        if share is not None:
            doors.number("share", share, above=0)
        if log is not None:
            doors.function("log", log, "numbers by name and a step")
        self.objective, self.every, self.share, self.log = objective, int(every), share, log
        settings = {"seed": seed, "tol": tol, "rtol": rtol, "budget": budget}
        self.sight = Sight(objective, measures, least=least, **settings)
        self.moments: list[Moment] = []
        self.watched = 0.0  # seconds
        self.put_off = 0
        self._notes: list[str] = []
        self._last = -1  # the step that was last asked about
        self._began: float | None = None
        self._prefix: str | None = None

    def look(
        self, model: nn.Module, *, step: int, rate: float | None = None, now: bool = False
    ) -> Moment | None:
        """What is seen at this step, or None where no look is due: the first call is, or `now`.

        `rate` is the learning rate, for the edge 2 / rate of plain gradient descent.
        """
        doors.number("step", step, 0, whole=True)
        if rate is not None:
            doors.number("rate", rate, 0)
        due = self._last < 0 or step // self.every != self._last // self.every
        self._last = int(step)
        if not (due or now):
            return None
        begin = time.perf_counter()
        if self._began is None:
            self._began = begin
        if not now and self.share is not None and self.watched > self.share * self.elapsed:
            self.put_off += 1
            return None
        if self._prefix is None:
            self._prefix = prefix_of(self.objective, live(model)[0])
        found = self._seen(model, int(step), None if rate is None else float(rate), begin)
        self.moments.append(found)
        self._tell(found)
        self.watched += time.perf_counter() - begin
        return found

    @property
    def elapsed(self) -> float:
        """Seconds of wall time since the first look."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    @set_apart()
    def _seen(self, model: nn.Module, step: int, rate: float | None, begin: float) -> Moment:
        prefix = self._prefix or ""
        return seen(
            self.sight, lambda: at_weights(self.objective, model, prefix), step, rate, begin
        )

    def _tell(self, moment: Moment) -> None:
        if self.log is None:
            return
        try:
            self.log(flat(moment), moment.step)
        except Exception as error:  # a logger that is away is no reason to end a training
            self._notes.append(f"log failed at {moment.name}: {in_one_line(error)}")

    def history(self, epochs: Sequence[Epoch] = (), **told: Any) -> History:
        """All that was seen as a result; `told` is what is known of the training besides."""
        begin = time.perf_counter() - self.elapsed
        notes = [*self.objective.notes, *self.sight.notes, *self._notes, *told.pop("notes", ())]
        if self.put_off:
            notes.append(f"{self.put_off} looks were put off: share={self.share:g}")
        known = {**described(self.objective), "optimizer": "", "seed": None, "stopped": ""}
        known |= {"watched": self.watched, "put_off": self.put_off}
        known["watch_seed"] = self.sight.settings["seed"]
        about: Any = {**provenance(begin, notes, **known), **told}
        return History(tuple(epochs), tuple(self.moments), about)

    # For checkpoints --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that was seen, as plain data: json.dumps takes it."""
        return {
            "moments": plain(self.moments),
            "watched": self.watched,
            "elapsed": self.elapsed,
            "put_off": self.put_off,
            "last": self._last,
            "notes": list(self._notes),
            "sight": self.sight.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        doors.a("state", state, dict, "what state_dict() gave")
        try:
            moments = list(read(tuple[Moment, ...], state["moments"], "moments"))
            numbers = [float(state[key]) for key in ("watched", "elapsed")]
            counts = [int(state[key]) for key in ("put_off", "last")]
            notes = [str(note) for note in state["notes"]]
            self.sight.load_state_dict(state["sight"])
        except (KeyError, TypeError, ValueError) as error:
            raise SpiritlevelError(
                f"state is not what state_dict() gave ({type(error).__name__}: {error})"
            ) from None
        self.moments, self._notes = moments, notes
        self.watched, elapsed = numbers
        self.put_off, self._last = counts
        self._began = time.perf_counter() - elapsed if elapsed else None


def seen(
    sight: Sight,
    point: Callable[[], Objective],
    step: int,
    rate: float | None,
    begin: float,
    name: str = "",
) -> Moment:
    """One moment: the point is made and read; what fails is a note in it."""
    loss, readings, notes = math.nan, (), ()
    try:
        here = point()
        loss = here.value()
        if math.isfinite(loss):
            found = sight.at(here)
            readings, notes = found.readings, found.notes
        else:
            notes = (f"the loss is {loss} here: nothing else can be read",)
    except Exception as error:
        notes = (in_one_line(error),)
    seconds = time.perf_counter() - begin
    return Moment(name or f"step {step}", step, loss, rate, readings, seconds, notes)


def flat(moment: Moment) -> dict[str, float]:
    """A moment for loggers: "lambda_max", "lambda_max/error", "lambda_max/least", "edge"."""
    found = {"loss": moment.loss}
    if moment.edge is not None:
        found["edge"] = moment.edge
    if moment.edge_share is not None:
        found["edge_share"] = moment.edge_share.value
    for reading in moment.readings:
        found[reading.name] = reading.estimate.value
        found |= _bar(reading.name, reading.estimate)
        if reading.least is not None:
            found[f"{reading.name}/least"] = reading.least.value
            found |= _bar(f"{reading.name}/least", reading.least)
    return {key: value for key, value in found.items() if key == "loss" or math.isfinite(value)}


def _bar(name: str, estimate: Estimate) -> dict[str, float]:
    return {f"{name}/error": estimate.error} if estimate.error else {}
