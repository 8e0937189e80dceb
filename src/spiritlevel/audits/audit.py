"""Which numbers mean something for this network, and which only for its coordinates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from spiritlevel.audits.left import left
from spiritlevel.audits.verdicts import below, judge, least_seen, rounding_of
from spiritlevel.audits.way import Points, way_along
from spiritlevel.base.doors import number
from spiritlevel.base.errors import ChangedError, SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.interrupts import parts
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import accuracy
from spiritlevel.measures.base import Bottom, Measure
from spiritlevel.measures.bottoms import ALIKE
from spiritlevel.measures.given import Given, refuse_given
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import MEASURES, checked, needs_both_ends
from spiritlevel.measures.rest import rest
from spiritlevel.objective import Objective, described, only_objectives
from spiritlevel.orbit import OrbitMinimum
from spiritlevel.results.audit import Audit, Row
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.loop import FAILURES, Done, beside, one_by_one
from spiritlevel.results.provenance import provenance, reasons
from spiritlevel.results.verdicts import Infimum, Outcome
from spiritlevel.symmetry import Group, verify
from spiritlevel.symmetry.find import group_of
from spiritlevel.witnesses.sharpened import sharpen

DEFAULT = (
    "loss",
    "hessian_spectral",
    "hessian_trace",
    "hessian_frobenius",
    "keskar",
    "expected_sharpness",
    "layer_minimum",
    "adaptive_spectral",
    "fisher_rao",
    "path_norm",
    "orbit_trace",
    "orbit_spectral",
)
FLATTEST = Bottom("spectral", "ggn")  # what has this bottom needs the flattest point
FAR = 1e-2  # relative: predictions that an eps changes by more are not those of one network
LEAST = ("balanced", "flattest")  # the points that are looked for
SHARP = 1e6  # the least largest eigenvalue of the point that is sharpened
PROBES = 64  # of a value that seems to refute a bound
# What moved a million times needs no third digit
ELSEWHERE = {"tol": 1e-2, "rtol": 0.3, "budget": 40, "least_probes": 8}


@set_apart()
def audit(
    objective: Objective,
    measures: Sequence[str] = DEFAULT,
    *,
    strength: float = 1.0,
    seed: int = 0,
    tol: float = 1e-3,
    rtol: float = 0.1,
    budget: int = 200,
    group: Group | None = None,
    way: bool = True,
    init: Given = None,
    losses: Sequence[float] | None = None,
) -> Audit:
    """Measure a network at several points that compute the same function, and compare.

    The points are the given one, the balanced one (least trace), the flattest one (least
    Gauss-Newton norm), one moved along every rescaling at random with log-scales N(0, strength^2),
    and one sharpened on purpose. That predictions stay is proved for each before anything is
    measured. A measure that promises to be invariant and moves is a bug. `tol`, `rtol` and `budget`
    are those of `measure`, at the given point; elsewhere the numbers are rougher. So are `init` and
    `losses`, which stay where they are. `way` is the figure of the report, which takes about as
    long again. Interrupted, it returns what is done.
    """
    only_objectives(objective)
    names = checked(measures, single=True)
    number("strength", strength, above=0)
    accuracy(tol, rtol, budget, seed)
    refuse_given(objective, init, losses)
    begin = time.perf_counter()
    group = group_of(objective, group)
    here = {"tol": tol, "rtol": rtol, "budget": budget}
    course = {"init": init, "losses": losses, "both_ends": needs_both_ends(names)}
    work = _Work(objective, group, seed, strength, here, course, notes=list(objective.notes))
    work.find_points(names)
    found_points = time.perf_counter()
    done = one_by_one(names, lambda name: _row(work, name), label="audit", refuses=FAILURES)
    return _result(work, done.require(), way, begin, found_points)


def _result(work: _Work, done: Done[Row], way: bool, begin: float, found_points: float) -> Audit:
    objective, group = work.objective, work.group
    points = Points(objective, group, work.elements)
    figure = {"figure": lambda: way_along(points)} if way else {}
    steps = {"step downhill": lambda: rest(work.here), **figure}
    more = beside(done, {**steps, "other freedoms": lambda: left(objective, group)})
    standing, freedoms = more.get("step downhill"), more.get("other freedoms", ())
    drawn, shown = more.get("figure", (None, 0.0))
    told = provenance(
        begin,
        [*work.notes, *work.here.remarks()],
        done,
        **described(objective),
        seed=work.seed,
        strength=work.strength,
        products=work.paid + shown + (0 if standing is None else standing.products),
        seconds_for_points=found_points - begin,
    )
    name, rows = type(objective.module).__name__, tuple(done.found.values())
    freedom = group.freedom()
    return Audit(name, rows, freedom, work.certificates, standing, drawn, told, freedoms, points)


Found = tuple[Tensor, Certificate | None]  # an element, and its certificate where there is one


def _bottom(found: OrbitMinimum) -> Found:
    return found.log_scales, found.certificate


@dataclass
class _Work:
    """One audit while it is made."""

    objective: Objective
    group: Group
    seed: int
    strength: float
    accuracy: dict[str, Any]
    course: dict[str, Any]  # and what else is the same everywhere
    elements: dict[str, Tensor] = field(default_factory=dict)
    points: dict[str, Instruments] = field(default_factory=dict)
    certificates: dict[str, Certificate] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # points that there are not, and why
    products: float = 0.0

    @property
    def here(self) -> Instruments:
        return self.points["here"]

    @property
    def paid(self) -> float:
        """All products, those too that a diagonal was compared with."""
        return self.products + sum(point.confirming for point in self.points.values())

    def find_points(self, names: list[str]) -> None:
        """Elements of the group, each with the proof that predictions stay."""
        base, group = self.objective, self.group
        self.points["here"] = Instruments(base, **self.accuracy, **self.settings)
        ways: dict[str, Callable[[], Found]] = {
            "moved": lambda: (group.random(self.seed, self.strength), None),
            "sharpened": self._sharpened,
            "balanced": lambda: _bottom(self.here.least_trace),
        }
        if any(_of_layers(MEASURES[name]) for name in names):
            layers = group.layerwise()
            random = layers.random(self.seed, self.strength)
            ways["layers"] = lambda: (group.of_layers(random), None)
        if any(MEASURES[name].bottom == FLATTEST for name in names):
            ways["flattest"] = lambda: _bottom(self.here.least_norm)
        for name, way in ways.items() if group.dim else ():
            try:
                element, certificate = way()
                twin = group.apply(base, element)
            except ChangedError:
                raise
            except SpiritlevelError as error:
                self.missing[name] = str(error)
                continue
            certificate = certificate or verify(base, twin, group=group).require()
            if certificate.relative > FAR:
                size = f"{certificate.relative:.0e}"
                self.missing[name] = f"the eps of norms changes predictions by {size}"
                continue
            self.certificates[name] = certificate
            self.elements[name] = element
            self.points[name] = self._there(twin, element, certificate)
        self.notes += reasons("not", self.missing)

    def _sharpened(self) -> Found:
        with parts():
            ends = self.here.extremes
        self.products += ends[0].matvecs
        known = {"operator": self.here.hessian, "pairs": self.here.sharpest}
        found = sharpen(self.objective, target=SHARP, group=self.group, **known)
        return self.group.of_layers(found.element), found.certificate

    @property
    def settings(self) -> dict[str, Any]:
        # compiling once for every point would take longer than the products do
        return {
            "seed": self.seed,
            "group": self.group,
            "compile": False,
            **self.course,
        }

    def _there(self, twin: Objective, element: Tensor, certificate: Certificate) -> Instruments:
        """Instruments at exp(B t) theta, with D^-1 H D^-1 from products at the given point."""
        budget = min(ELSEWHERE["budget"], self.accuracy["budget"])
        rough = {**ELSEWHERE, "budget": budget, "certify": False}  # values only, for comparison
        found = Instruments(twin, **rough, **self.settings)
        if certificate.verdict == "exact":  # else the law does not hold either
            found.follow(self.here, element)
        return found

    def places(self, measure: Measure) -> list[str]:
        return [name for name in wanted_points(measure) if name in self.points]


def _of_layers(measure: Measure) -> bool:
    """Whether it promises to stay where whole layers lead, and no more."""
    return measure.promises("layer") and not measure.promises("unit")


def wanted_points(measure: Measure) -> tuple[str, ...]:
    """Where a measure is made: where it should stay, or where it is small and where large."""
    if measure.points:
        return measure.points
    if measure.promises("unit"):
        return "here", "moved", "sharpened"
    if measure.promises("layer"):
        return "here", "moved", "layers", "sharpened"
    if measure.ends:
        return "here", "balanced", "flattest", "sharpened"
    return "here", "balanced", "sharpened"


def _row(work: _Work, name: str) -> Row:
    measure = MEASURES[name]
    values = dict(_estimates(work, measure))
    alike = ALIKE[work.objective.dtype]
    apart = [c.relative for c in work.certificates.values() if c.verdict == "approximate"]
    outcome = judge(
        measure, values, alike, bool(apart), lambda p: rounding_of(measure, work.points[p])
    )
    infimum = _infimum(work, measure, values)
    if infimum.refuted:
        outcome = Outcome.REFUTED
        work.notes.append(
            f"{name} at the point {infimum.refuted} is below {infimum.lower_bound:.6g}, which was "
            "to be the least: an error of spiritlevel's; please report it"
        )
    promised, worst = measure.promises("unit"), max(apart, default=0.0)
    return Row(name, measure.title, measure.family, values, infimum, promised, outcome, worst)


def _estimates(work: _Work, measure: Measure) -> Iterator[tuple[str, Estimate]]:
    for place in work.places(measure):
        instruments = work.points[place]
        shared = bool(measure.shares) and instruments.used(measure.shares)
        found = measure.function(instruments)
        assert isinstance(found, Estimate)
        work.products += 0.0 if shared else found.matvecs
        yield place, found


def _infimum(work: _Work, measure: Measure, values: dict[str, Estimate]) -> Infimum:
    """The least value over the orbit: proved where there is a proof, else the least one seen."""
    bottom = measure.bottom
    matrix = None if bottom is None or bottom.order else bottom.matrix
    point = least_seen(values)
    why = _unsearched(work, measure) if point == "here" else ""
    seen = Infimum(values[point].value, None, False, matrix, point, unsearched=why)
    least = _proof(work, measure)
    if least is None or least.status is not Status.CONVERGED or least.lower_bound is None:
        return seen
    bound, by_definition = least.lower_bound, measure.promises("unit")
    if not math.isfinite(bound) or (least.divided_out and not by_definition):
        return seen
    refuted = _refuted(work, measure, bound, values)
    if refuted is None:
        return Infimum(least.value, bound, True, matrix, "here" if by_definition else "balanced")
    return Infimum(seen.value, bound, False, matrix, point, refuted)


def _unsearched(work: _Work, measure: Measure) -> str:
    """Why none of the points that are looked for is among those of a measure that may move."""
    if not work.group.dim or measure.promises("unit") or set(LEAST) & set(work.places(measure)):
        return ""
    return next((work.missing[p] for p in LEAST if p in work.missing), "its points are others")


def _refuted(
    work: _Work, measure: Measure, bound: float, values: dict[str, Estimate]
) -> str | None:
    """A point whose value lies below a bound, also when it is measured a second time."""
    alike = ALIKE[work.objective.dtype]
    assert measure.bottom is not None
    if measure.bottom.norm == "spectral":  # of a psd matrix: its trace is no less than its norm
        trace = Estimate(work.here.least_trace.value)
        if below(bound, {"balanced": trace}, alike):
            return "balanced"
    point = below(bound, values, alike)
    if point is None:
        return None
    # by chance one in a hundred does: other draws, and more of them
    settings = {**work.settings, "seed": work.seed + 1, "least_probes": PROBES}
    again = Instruments(work.points[point].objective, **work.accuracy, **settings)
    found = measure.function(again)
    assert isinstance(found, Estimate)
    work.products += found.matvecs
    return below(bound, {point: found}, alike)


def _proof(work: _Work, measure: Measure) -> OrbitMinimum | None:
    """The orbit minimum that a measure shrinks to, where it is known."""
    bottom = measure.bottom
    if bottom is None or bottom.order or not work.group.dim or not work.here.used("diagonal"):
        return None
    if bottom.norm == "spectral":
        return work.here.least_norm if bottom.matrix == "ggn" else None
    if bottom.norm != "trace":
        return None
    # for such nets the trace of the Hessian is that of the Gauss-Newton matrix
    known = bottom.matrix == "ggn" or work.here.multilinear
    return work.here.least_trace if known else None
