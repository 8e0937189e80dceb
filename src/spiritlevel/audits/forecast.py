"""What a measurement or an audit will take: a few passes are timed, the rest is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from spiritlevel.audits.audit import DEFAULT, wanted_points
from spiritlevel.audits.way import EXAMPLES, STEPS, WIDTH
from spiritlevel.base.doors import a, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import free_bytes
from spiritlevel.base.operator import Operator
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.curvature import ggn, ggn_diagonal, hessian
from spiritlevel.curvature.engine import TAPES_SHARE, Engine
from spiritlevel.measures.base import ONE_END, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import MEASURES, checked, standard
from spiritlevel.objective import Objective, described, only_objectives
from spiritlevel.objective.batches import examples
from spiritlevel.results.forecast import Forecast, Share
from spiritlevel.results.loop import FAILURES
from spiritlevel.results.provenance import provenance
from spiritlevel.symmetry import Group, symmetries
from spiritlevel.symmetry.group import only_groups

SAMPLE = {"cuda": 512, "cpu": 64}  # examples on which an exact diagonal is timed
TRANSIENT = 1.7  # of a tape, while it is recorded: ResNets and transformers alike
BASIS = 32  # vectors of a Krylov basis
POINTS = ("moved", "sharpened", "balanced", "layers", "flattest")
PROOF = 2.0  # passes in float64 for a twin, beside those of the network itself
TRIED, REST = 4.0, 12.0  # products: of the layers that may be sharpened, of a step downhill
SPECTRUM = 50  # products at each stop of the figure
SEARCH = 0.2  # seconds that a point takes beside passes over the data: models, symbols, proofs
KINDS = {
    "passes": "pass",
    "gradients": "gradient",
    "products": "product",
    "gauss_newton": "Gauss-Newton product",
    "diagonals": "exact diagonal",
}


@set_apart()
def estimate(
    objective: Objective,
    measures: Sequence[str] | None = None,
    *,
    audit: bool = False,
    group: Group | None = None,
    budget: int = 200,
    way: bool = True,
) -> Forecast:
    """Products, seconds and bytes of measure(objective, measures), or of an audit of them.

    One pass of each kind that is needed is timed on one microbatch; how many there will be is what
    such work usually takes for a trained network, with the tolerances that are used unasked and
    `budget` as the most products for one measure. `way` is the figure of an audit's report.
    """
    only_objectives(objective)
    only_groups(group)
    a("audit", audit, bool, "True for an audit, False for a measurement at one point")
    a("way", way, bool, "True or False, as for an audit")
    number("budget", budget, 1, whole=True)
    names = checked((DEFAULT if audit else standard()) if measures is None else measures)
    begin = time.perf_counter()
    group = symmetries(objective) if audit and group is None else group
    found = time.perf_counter() - begin
    moves = group is not None and bool(group.dim)
    asked = _asked(names, objective)
    work, clock = _works(asked, budget), _Clock(objective)
    clock.notes += [f"nobody knows what {n} takes: left out" for n in names if not MEASURES[n].work]
    needed = {kind for w in work.values() for kind in KINDS if getattr(w, kind)}
    units = {kind: clock.seconds(kind) for kind in KINDS if kind in needed}
    shares = _shares(work, units, clock, moves)
    if audit:
        spectrum = {"extremes", "probes"} & {measure.shares for measure in asked.values()}
        tried = TRIED if spectrum else TRIED + ONE_END.products
        shares.append(_points(units, clock, found, moves, tried))
        shares += [_way(units, clock)] if way and moves else []
    told = provenance(begin, clock.notes, **described(objective), seed=0, products=clock.products)
    shown = {KINDS[kind]: seconds for kind, seconds in units.items()}
    of = "an audit" if audit else "a measurement"
    return Forecast(of, tuple(shares), clock.memory(), shown, told)


def _shares(
    work: dict[str, Work], units: dict[str, float], clock: _Clock, moves: bool
) -> list[Share]:
    """What the measures take, and whether this is a minimum."""
    shares = [_share(name, one, units, clock, moves) for name, one in work.items()]
    _pay_for_the_start(shares, clock)
    if "products" in units:
        shares.append(Share("rest", "at rest or not", 1, REST, 0.0, 0.0, REST * units["products"]))
    return shares


def _works(measures: dict[str, Measure], budget: int) -> dict[str, Work]:
    """What each measure takes at one point, where what several share is made once for all."""
    work, paid = {}, set[str]()
    for name, measure in measures.items():
        mates = [m for m in measures.values() if measure.shares and m.shares == measure.shares]
        known = [m.work or Work() for m in mates or [measure]]
        largest = max(known, key=lambda w: w.products)
        largest = replace(largest, products=min(largest.products, budget))
        work[name] = Work() if measure.shares in paid else largest
        if work[name].diagonals and "diagonal" in paid:
            work[name] = replace(work[name], diagonals=0.0)
        paid |= {key for key in (measure.shares, "diagonal" if work[name].diagonals else "") if key}
    return work


def _asked(names: list[str], objective: Objective) -> dict[str, Measure]:
    """The measures, with the work that they are where diag H is known exactly if it is."""
    found = {name: MEASURES[name] for name in names}
    if not any(m.exact for m in found.values()) or not Instruments(objective).sums:
        return found
    try:
        ggn_diagonal(objective.on([objective.few(2)]))
    except FAILURES:  # then traces are drawn
        return found
    for name, measure in found.items():
        if measure.exact is not None:
            shares = measure.shares if measure.exact.products else ""
            found[name] = replace(measure, work=measure.exact, shares=shares)
    return found


def _share(name: str, work: Work, units: dict[str, float], clock: _Clock, moves: bool) -> Share:
    """One measure at all its points; diagonals elsewhere follow from the first."""
    measure = MEASURES[name]
    count = len(wanted_points(measure)) if moves else 1
    times = 1 + (count - 1) * work.rough
    counts = {kind: times * getattr(work, kind) for kind in KINDS} | {"diagonals": work.diagonals}
    seconds = sum(number * units.get(kind, 0.0) for kind, number in counts.items())
    seconds += count * (clock.start.get("gauss_newton", 0.0) + SEARCH) if work.gauss_newton else 0.0
    return Share(
        name,
        measure.title,
        count,
        counts["products"] + counts["gauss_newton"],
        counts["gradients"],
        counts["passes"],
        seconds,
    )


def _pay_for_the_start(shares: list[Share], clock: _Clock) -> None:
    """The first that needs products of the Hessian makes the operator, for all of them."""
    for i, share in enumerate(shares):
        if share.products and not (MEASURES[share.name].work or Work()).gauss_newton:
            started = share.seconds + clock.start.get("products", 0.0)
            shares[i] = replace(share, seconds=started)
            return


def _points(
    units: dict[str, float], clock: _Clock, found: float, moves: bool, tried: float
) -> Share:
    """Finding the points of an audit and proving each."""
    if not moves:
        return Share("points", "points and proofs", 1, 0.0, 0.0, 0.0, found)
    count = len(POINTS)
    proofs = (3 + PROOF * count) * clock.seconds("proofs")
    each = units["products"] if "products" in units else clock.seconds("products")
    return Share(
        "points",
        "points and proofs",
        count,
        tried,
        0.0,
        3 + PROOF * count,
        proofs + tried * each + count * SEARCH,
    )


def _way(units: dict[str, float], clock: _Clock) -> Share:
    """The figure: spectra and slices at its stops, in float64, on some of the data."""
    whole = clock.objective.examples
    part = min(EXAMPLES, whole) / whole if clock.objective.separable else 1.0
    stops = 2 * STEPS + 1
    products, passes = stops * SPECTRUM * part, stops * WIDTH * part
    plain = clock.seconds("passes")
    slower = clock.seconds("proofs") / plain if plain else 1.0
    each = units["products"] if "products" in units else clock.seconds("products")
    seconds = slower * (products * each + passes * plain)
    return Share("way", "figure of the report", stops, products, 0.0, passes, seconds)


class _Clock:
    """Times single passes over one microbatch, and counts what they leave in memory."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.part = objective.on(objective.batches[:1])
        self.times = objective.examples / self.part.examples
        self.products = 0.0
        self.notes: list[str] = []
        self.tape = 0.0  # bytes per example
        self.start: dict[str, float] = {}  # seconds until products are played

    def seconds(self, kind: str) -> float:
        """Of one pass of a kind over all the data."""
        ways: dict[str, Callable[[], float]] = {
            "passes": lambda: self._often(self._forward),
            "gradients": lambda: self._often(self.part.gradient),
            "products": lambda: self._product("products", hessian),
            "gauss_newton": lambda: self._product("gauss_newton", ggn),
            "diagonals": self._diagonal,
            "proofs": self._proof,
        }
        try:
            return ways[kind]()
        except SpiritlevelError as error:  # then the measure that needs it is refused too
            self.notes.append(f"no {KINDS.get(kind, kind)}: {error}")
            return 0.0

    def memory(self) -> float:
        """Tapes, as far as there is room for them, one product, and a Krylov basis."""
        whole, one = self.objective, examples(self.part.batches[0])
        device = whole.device.type
        room = TAPES_SHARE.get(device, min(TAPES_SHARE.values())) * free_bytes(whole.device)
        held = min(self.tape * whole.examples, max(room, self.tape * one))
        return held + TRANSIENT * self.tape * one + BASIS * whole.size * whole.vector.itemsize

    def _often(self, action: Callable[[], object], times: float | None = None) -> float:
        action()
        return self._once(action) * (self.times if times is None else times)

    def _once(self, action: Callable[[], object]) -> float:
        cuda = self.objective.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize(self.objective.device)
        begin = time.perf_counter()
        action()
        if cuda:
            torch.cuda.synchronize(self.objective.device)
        return time.perf_counter() - begin

    @torch.no_grad()
    def _forward(self) -> None:
        for batch in self.part.batches:
            self.part.total_of(batch)

    def _product(self, kind: str, make: Callable[[Objective], Operator]) -> float:
        """A product that is played, as the third is and all that follow."""
        v = gaussian(self.part.size, generator(0), self.part.vector)
        begin = time.perf_counter()
        operator = make(self.part)
        made = time.perf_counter() - begin
        self.start[kind] = made + self.times * self._once(lambda: (operator @ v, operator @ v))
        self.products += 4 / self.times
        engine = getattr(operator.matvec, "__self__", None)
        if isinstance(engine, Engine) and engine.sizes:
            self.tape = max(self.tape, *engine.sizes.values())
        return self._often(lambda: operator @ v)

    def _diagonal(self) -> float:
        """From two sizes: what is the same for any number of examples, and what each adds."""
        size, whole = SAMPLE.get(self.objective.device.type, 64), self.objective.examples
        parts = [self.objective.on([self.objective.few(n)]) for n in (size, size // 2)]
        more, less = (self._often(lambda p=p: ggn_diagonal(p), 1.0) for p in parts)
        big, small = (part.examples for part in parts)
        each = max(more - less, 0.0) / (big - small) if big > small else more / big
        return max(more + each * (whole - big), more)

    def _proof(self) -> float:
        exact = self.part.to(torch.float64)

        @torch.no_grad()
        def forward() -> None:
            for batch in exact.batches:
                exact.returned(exact.params, batch)

        return self._often(forward)
