"""Which of two networks is flatter, and whether the answer survives their symmetries."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spiritlevel.audits.left import hidden, moving
from spiritlevel.audits.verdicts import Rounding, cheap, differ, rounding_of, unrounded
from spiritlevel.base.doors import a, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import accuracy
from spiritlevel.measures.bottoms import ALIKE, SURE, Bottoms
from spiritlevel.measures.given import Given, refuse_given
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import MEASURES, checked, needs_both_ends
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit import supremum
from spiritlevel.results.comparison import Answer, Comparison, Interval, Pair, Turned
from spiritlevel.results.loop import FAILURES, beside, one_by_one
from spiritlevel.results.provenance import provenance
from spiritlevel.results.symmetry import Left

COMPARED = (
    "loss",
    "hessian_spectral",
    "hessian_trace",
    "expected_sharpness",
    "adaptive_spectral",
    "orbit_trace",
    "orbit_spectral",
)
OTHERS = "other freedoms of {}"
SEARCHED = 1.5  # times: lower bounds that are closer do not say which maximum is larger
EQUAL = 0.02  # relative: orbit minima that are known to be this close are called equal

Compared = tuple[dict[str, Estimate], list[Pair]]
Ends = tuple[Interval, Interval]


@set_apart()
def compare(
    objectives: Mapping[str, Objective],
    measures: Sequence[str] = COMPARED,
    *,
    seed: int = 0,
    tol: float = 1e-3,
    rtol: float = 0.05,
    budget: int = 200,
    init: Mapping[str, Given] | None = None,
) -> Comparison:
    """Which network is sharper by each measure, and does the answer mean anything?

    "sharper, and it survives rescaling": the least values over the two orbits, of the measure's
    own matrix, are in the same order, apart by more than their errors, or no rescaling moves it.
    "sharper only in these coordinates": they are equal, or in the other order. "undecided":
    neither, or what is left is not known. `tol`, `rtol` and `budget` are those of `measure`; `init`
    are the weights before training, by the names of the networks.
    """
    a("objectives", objectives, Mapping, 'Objectives by name, {"a": a, "b": b}')
    only_objectives(*objectives.values())
    accuracy(tol, rtol, budget, seed)
    if len(objectives) < 2:
        raise SpiritlevelError('compare needs at least two networks: compare({"a": a, "b": b})')
    names = checked(measures, single=True)
    before = _before(objectives, init)
    begin = time.perf_counter()
    settings = {"seed": seed, "tol": tol, "rtol": rtol, "budget": budget}
    # compiling for every network would take longer than its products do
    settings |= {"compile": False, "both_ends": needs_both_ends(names)}
    work = _Work(
        {n: Bottoms(Instruments(o, init=before[n], **settings)) for n, o in objectives.items()},
        [f"{n}: {note}" for n, o in objectives.items() for note in o.notes],
    )
    done = one_by_one(names, work.compared, label="compare", refuses=FAILURES).require()
    work.say_what_is_known(beside(done, work.freedoms()))
    told = provenance(begin, work.notes, done, seed=seed)
    values = {name: found for name, (found, _) in done.found.items()}
    pairs = tuple(pair for _, found in done.found.values() for pair in found)
    return Comparison(tuple(objectives), values, pairs, told)


def _before(objectives: Mapping[str, Objective], init: Any) -> dict[str, Given]:
    """The weights before training of every network, None where they are not given."""
    a("init", init, (Mapping, type(None)), 'weights by the names of the networks, {"a": module}')
    for name in init or {}:
        one_of("the network of init", name, objectives)
        refuse_given(objectives[name], init[name], None)
    return {name: (init or {}).get(name) for name in objectives}


@dataclass
class _Work:
    networks: dict[str, Bottoms]
    notes: list[str]

    def freedoms(self) -> dict[str, Callable[[], Any]]:
        """Beside the rescalings, of networks whose least values were asked for."""
        tools = {
            n: b.instruments
            for n, b in self.networks.items()
            if b.found or b.instruments.used("group")
        }
        looks = {n: partial(lambda t: moving(t.objective, t.group), t) for n, t in tools.items()}
        return {OTHERS.format(name): look for name, look in looks.items()}

    def say_what_is_known(self, freedoms: Mapping[str, tuple[Left, ...]]) -> None:
        """Of the data, of products, and of what is not divided out."""
        if len({b.instruments.objective.examples for b in self.networks.values()}) > 1:
            self.notes.append("The networks were given data of different sizes.")
        for name, network in self.networks.items():
            self.notes += [f"{name}: {remark}" for remark in network.instruments.remarks()]
            self.notes += [f"{name}: {one.text}" for one in freedoms.get(OTHERS.format(name), ())]

    def compared(self, name: str) -> Compared:
        """A measure of all networks, and of each two of them."""
        found = self.measured(name)
        both = itertools.combinations(self.networks, 2)
        return found, [_pair(self, name, found, *two) for two in both]

    def measured(self, name: str) -> dict[str, Estimate]:
        found = {n: MEASURES[name].function(b.instruments) for n, b in self.networks.items()}
        return {n: e for n, e in found.items() if isinstance(e, Estimate)}

    def rounding(self, name: str) -> Rounding:
        """What rounding does to a measure of a network, made once for all its pairs."""

        def of(network: str) -> float:
            tools = self.networks[network].instruments
            return tools.once("rounding", partial(rounding_of, MEASURES[name], tools), name)

        return of if cheap(MEASURES[name]) else unrounded

    def least(self, name: str, network: str, here: Estimate) -> Interval | None:
        """Where the least value over one network's orbit lies."""
        bottom = MEASURES[name].bottom
        if bottom is None:
            return None
        try:
            return self.networks[network].interval(bottom, here)
        except SpiritlevelError as error:
            self.notes.append(f"no least {MEASURES[name].title} of {network}: {error}")
            return None

    def alone(self, *networks: str) -> bool:
        """Whether none of them has a rescaling: then any measure stays, for there is no way."""
        try:
            return all(self.networks[n].alone for n in networks)
        except SpiritlevelError:  # symmetries that cannot be found
            return False

    def hides(self, *networks: str) -> bool:
        """Whether one of them may have rescalings that were not found."""
        try:
            tools = [self.networks[n].instruments for n in networks]
            return any(hidden(t.objective, t.group) for t in tools)
        except SpiritlevelError:  # symmetries that cannot be found
            return False

    def alike(self, *networks: str) -> float:
        return max(ALIKE[self.networks[n].instruments.objective.dtype] for n in networks)


def _pair(work: _Work, name: str, values: dict[str, Estimate], one: str, two: str) -> Pair:
    sharper, other = (one, two) if values[one].value >= values[two].value else (two, one)
    high, low = values[sharper], values[other]
    decided = differ({sharper: high, other: low}, work.alike(one, two), work.rounding(name))
    if Status.LOWER_BOUND in (high.status, low.status):  # two searches, not two maxima
        decided = high.value > SEARCHED * low.value
    measure = MEASURES[name]
    decided = decided and not measure.bound
    invariant = measure.promises("unit") or (decided and work.alone(one, two))
    bottom = measure.bottom
    least: Ends | None = None
    turned = None
    if decided and not invariant:
        ends = work.least(name, sharper, high), work.least(name, other, low)
        least = None if ends[0] is None or ends[1] is None else (ends[0], ends[1])
        turned = _turned(work, name, other, high, low)
    answer = _answer(invariant, least) if decided else _close(high, low)
    # what is found of the orbit says nothing where a part of it may not have been found
    found = not measure.promises("unit") or bottom is not None
    hides = answer is Answer.SURVIVES and found and work.hides(one, two)
    answer = Answer.UNDECIDED if measure.bound or hides else answer
    return Pair(
        name,
        measure.title,
        measure.family,
        measure.is_sharpness,
        sharper,
        other,
        (high, low),
        least,
        None if bottom is None else bottom.matrix,
        None if bottom is None else bottom.order,
        turned,
        answer,
        hides,
    )


def _close(high: Estimate, low: Estimate) -> Answer:
    """Of two networks that do not differ beyond errors."""
    apart = high.value - low.value + high.error + low.error
    return Answer.EQUAL if apart <= EQUAL * abs(low.value) else Answer.UNDECIDED


def _turned(work: _Work, name: str, other: str, high: Estimate, low: Estimate) -> Turned | None:
    """The smaller one made larger than the larger one, with its predictions."""
    network, measure = work.networks[other], MEASURES[name]
    instruments = network.instruments
    target = 1.1 * (high.value + SURE * high.error)
    if not target > 0:
        return None

    def value(point: Objective) -> Any:
        if point is instruments.objective:
            return low
        return measure.function(network.twin(point, measure.ends == 2))

    try:
        found = supremum(
            instruments.objective,
            instruments.group,
            value,
            target=target,
            seed=instruments.seed,
            operator=instruments.hessian if instruments.used("hessian") else None,
            pairs=instruments.sharpest if instruments.used("extremes") else None,
        )
    except SpiritlevelError as error:
        work.notes.append(f"{name} of {other} was not turned: {error}")
        return None
    return Turned(found.outcome, found.value, found.reason, found.certificate, found.objective)


def _answer(invariant: bool, least: Ends | None) -> Answer:
    """Of two networks that differ here."""
    if invariant:
        return Answer.SURVIVES
    if least is None:  # it may be turned around, but what is left is unknown
        return Answer.UNDECIDED
    sharper, other = least
    if sharper.low > other.high:
        return Answer.SURVIVES
    if sharper.high < other.low:
        return Answer.COORDINATES
    widest = max(sharper.high, other.high)
    known_equal = widest <= (1 + EQUAL) * min(sharper.low, other.low)
    return Answer.COORDINATES if known_equal else Answer.UNDECIDED
