"""Which numbers mean something for this network, and which only for its coordinates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spiritlevel.audited import Audit, Infimum, Row
from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Estimate, Status
from spiritlevel.measures.base import Measure
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.measuring import verdict
from spiritlevel.measures.registry import MEASURES, checked
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.operators import scaled
from spiritlevel.orbit import OrbitMinimum
from spiritlevel.progress import bar
from spiritlevel.scope import heard_interrupts, set_apart
from spiritlevel.sharpening import sharpen
from spiritlevel.symmetry import Certificate, Group, symmetries, verify
from spiritlevel.symmetry.degree import multilinear
from spiritlevel.version import __version__

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
FAR = 1e-2  # relative: predictions that an eps changes by more are not those of one network
SHARP = 1e6  # the least largest eigenvalue of the point that is sharpened
# Relative, beside the errors: what the rounding of parameters and products may do to a value
ALIKE = {torch.float64: 1e-6, torch.float32: 1e-3}
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
) -> Audit:
    """Measure a network at several points that compute the same function, and compare.

    The points are the given one, the balanced one (least trace), the flattest one (least
    Gauss-Newton norm), one moved along every rescaling at random with log-scales N(0, strength^2),
    and one sharpened on purpose. That predictions stay is proved for each before anything is
    measured. A measure that promises to be invariant and moves is a bug. `tol`, `rtol` and `budget`
    are those of `measure`, at the given point; elsewhere the numbers are rougher. Interrupted, it
    returns the rows that are done.
    """
    only_objectives(objective)
    names = checked(measures, single=True)
    if not strength > 0:
        raise SpiritlevelError(f"strength={strength}: give a positive number")
    begin = time.perf_counter()
    group = symmetries(objective) if group is None else group
    ends = [name for name in names if MEASURES[name].shares == "extremes"]
    both_ends = any(name != "hessian_spectral" for name in ends)
    here = {"tol": tol, "rtol": rtol, "budget": budget}
    work = _Work(objective, group, seed, strength, both_ends, here, notes=list(objective.notes))
    work.find_points(names)
    found_points = time.perf_counter()
    rows, interrupted = _rows(work, names)
    rest = verdict(work.here)
    if rest and not rest.startswith("Close to a minimum"):
        work.notes.append(rest)
    provenance = {
        "examples": objective.examples,
        "parameters": objective.size,
        "dtype": str(objective.dtype).removeprefix("torch."),
        "device": str(objective.device),
        "seed": seed,
        "strength": strength,
        "products": work.products,
        "seconds": time.perf_counter() - begin,
        "seconds_for_points": found_points - begin,
        "notes": work.notes,
        "interrupted": interrupted,
        "versions": {"spiritlevel": __version__, "torch": torch.__version__},
    }
    return Audit(tuple(rows), objective, group, work.elements, work.certificates, provenance)


@dataclass
class _Work:
    """One audit while it is made."""

    objective: Objective
    group: Group
    seed: int
    strength: float
    both_ends: bool
    accuracy: dict[str, Any]
    elements: dict[str, Tensor] = field(default_factory=dict)
    points: dict[str, Instruments] = field(default_factory=dict)
    certificates: dict[str, Certificate] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    products: float = 0.0

    @property
    def here(self) -> Instruments:
        return self.points["here"]

    def find_points(self, names: list[str]) -> None:
        """Elements of the group, each with the proof that predictions stay."""
        base, group = self.objective, self.group
        self.points["here"] = Instruments(base, **self.accuracy, **self._settings)
        ways: dict[str, Callable[[], Tensor]] = {
            "moved": lambda: group.random(self.seed, self.strength),
            "sharpened": self._sharpened,
            "balanced": lambda: self.here.least_trace.log_scales,
        }
        if any(MEASURES[name].invariances == ("layer",) for name in names):
            layers = group.layerwise()
            ways["layers"] = lambda: group.of_layers(layers.random(self.seed, self.strength))
        if "orbit_spectral" in names:
            ways["flattest"] = lambda: self.here.least_norm.log_scales
        for name, way in ways.items() if group.dim else ():
            try:
                element = way()
                twin = group.apply(base, element)
            except SpiritlevelError as error:
                self.notes.append(f"not {name}: {error}")
                continue
            certificate = verify(base, twin, group=group).require()
            if certificate.relative > FAR:
                size = f"{certificate.relative:.0e}"
                self.notes.append(f"not {name}: the eps of norms changes predictions by {size}")
                continue
            self.certificates[name] = certificate
            self.elements[name] = element
            self.points[name] = self._there(twin, element, certificate)

    def _sharpened(self) -> Tensor:
        found = sharpen(self.objective, target=SHARP, group=self.group, operator=self.here.hessian)
        return self.group.of_layers(found.element)

    @property
    def _settings(self) -> dict[str, Any]:
        # compiling once for every point would take longer than the products do
        return {
            "seed": self.seed,
            "group": self.group,
            "compile": False,
            "both_ends": self.both_ends,
        }

    def _there(self, twin: Objective, element: Tensor, certificate: Certificate) -> Instruments:
        """Instruments at exp(B t) theta, with D^-1 H D^-1 from products at the given point."""
        budget = min(ELSEWHERE["budget"], self.accuracy["budget"])
        found = Instruments(twin, **{**ELSEWHERE, "budget": budget}, **self._settings)
        if certificate.verdict != "exact":  # then the law does not hold either
            return found
        scales = 1 / self.group.flat_factors(element, self.objective.shapes)
        found.share(
            hessian=lambda: scaled(self.here.hessian, scales),
            diagonal=lambda: self.here.diagonal.scaled(scales),
        )
        return found

    def places(self, measure: Measure) -> list[str]:
        """Where a measure is made: where it should stay, or where it is small and where large."""
        if measure.promises("unit") and measure.family in ("orbit", "curvature"):
            wanted = ["here", "moved"]  # many products each
        elif measure.promises("unit"):
            wanted = ["here", "moved", "sharpened"]
        elif measure.promises("layer"):
            wanted = ["here", "moved", "layers", "sharpened"]
        elif measure.shares == "extremes":
            wanted = ["here", "balanced", "flattest", "sharpened"]
        else:
            wanted = ["here", "balanced", "sharpened"]
        return [name for name in wanted if name in self.points]


def _rows(work: _Work, names: list[str]) -> tuple[list[Row], str | None]:
    """Every measure at its points; what this objective does not have is left out, and said."""
    rows: list[Row] = []
    total = sum(len(work.places(MEASURES[name])) for name in names)
    with bar(total, "audit") as progress, heard_interrupts() as heard:
        try:
            for name in names:
                progress.set_postfix_str(name)
                try:
                    row = _row(work, name, progress.update)
                except SpiritlevelError as error:
                    work.notes.append(f"no {name}: {error}")
                    continue
                except (ArithmeticError, RuntimeError) as error:  # one bad row is not the audit
                    work.notes.append(f"no {name}: {type(error).__name__}: {error}")
                    continue
                if heard:  # something inside kept what it had: that row is not done
                    raise KeyboardInterrupt
                rows.append(row)
        except KeyboardInterrupt:
            if not rows:
                raise
            return rows, f"{len(rows)} of {len(names)} rows were done"
    return rows, None


def _row(work: _Work, name: str, tick: Callable[[], Any]) -> Row:
    measure = MEASURES[name]
    values: dict[str, Estimate] = {}
    for place, found in _estimates(work, measure):
        values[place] = found
        tick()
    alike = ALIKE[work.objective.dtype]
    equality = "identical predictions"
    if any(c.verdict == "approximate" for c in work.certificates.values()):
        worst = max(c.relative for c in work.certificates.values())
        equality = f"predictions equal to {worst:.0e}"
    return Row.judged(name, measure, values, alike, _infimum(work, name, values), equality)


def _estimates(work: _Work, measure: Measure) -> Iterator[tuple[str, Estimate]]:
    for place in work.places(measure):
        instruments = work.points[place]
        shared = bool(measure.shares) and instruments.used(measure.shares)
        found = measure.function(instruments)
        assert isinstance(found, Estimate)
        work.products += 0.0 if shared else found.matvecs
        yield place, found


def _infimum(work: _Work, name: str, values: dict[str, Estimate]) -> Infimum:
    """The least value over the orbit: proved where there is a proof, else the least one seen."""
    least = _proof(work, name)
    if least is not None and least.status is Status.CONVERGED and not least.divided_out:
        return Infimum(least.value, least.lower_bound, True)
    if name in ("orbit_trace", "orbit_spectral"):  # least values by definition
        here = values["here"]
        return Infimum(here.value, here.value - here.error, here.converged)
    finite = [e for e in values.values() if math.isfinite(e.value)] or list(values.values())
    low = min(finite, key=lambda e: e.value)
    return Infimum(low.value + 2 * low.error, None, False)


def _proof(work: _Work, name: str) -> OrbitMinimum | None:
    """The orbit minimum that a measure shrinks to, where it is known."""
    if not work.group.dim or not work.here.used("diagonal"):
        return None
    if name == "layer_minimum":
        return work.here.least_trace
    if name != "hessian_trace" or not multilinear(work.objective):
        return None
    # for such nets the trace of the Hessian is that of the Gauss-Newton matrix
    return work.here.least_trace
