"""Densities of the Hessian's eigenvalues, layer by layer or along the orbit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from spiritlevel.base.doors import number
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.operator import Operator, restricted
from spiritlevel.base.scope import set_apart
from spiritlevel.curvature import hessian
from spiritlevel.landscape.looks import refuse
from spiritlevel.landscape.stops import refuse_stops, stops
from spiritlevel.landscape.telling import told
from spiritlevel.objective import Objective
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.loop import one_by_one
from spiritlevel.results.spectra import Spectra, Spectrum
from spiritlevel.spectral import density, eigenvalues
from spiritlevel.spectral.density import spectrum_of
from spiritlevel.symmetry import Group, verify

APART = 1.5  # the least factor between two neighbours that sets those above apart


@set_apart()
def spectra(
    objective: Objective,
    *,
    layers: bool = False,
    orbit: int = 0,
    strength: float = 1.0,
    probes: int = 8,
    steps: int = 60,
    top: int = 12,
    seed: int = 0,
    group: Group | None = None,
) -> Spectra:
    """The density of the Hessian's eigenvalues with its band, and the eigenvalues apart from it.

    By stochastic Lanczos quadrature (Ghorbani, Krishnan and Xiao, 2019). `layers` adds the diagonal
    block of every layer, `orbit` further points of the orbit, as in `plane`. Apart are those of the
    first `top` eigenvalues that lie above the largest factor between two neighbours, if that is at
    least 1.5.
    """
    refuse(objective, group=group, seed=seed)
    refuse_stops(orbit, strength)
    number("probes", probes, 2, whole=True)
    number("steps", steps, 1, whole=True)
    number("top", top, 0, whole=True)
    begin, products = time.perf_counter(), 0.0
    wanted = _operators(objective, stops(objective, group, orbit, strength, seed), layers)

    def make(name: str) -> Spectrum:
        nonlocal products
        found, cost = _spectrum(name, *wanted[name], probes, steps, top, seed)
        products += cost
        return found

    done = one_by_one(list(wanted), make, label="spectra", noun="spectra")
    about = {"seed": seed, "interrupted": done.interrupted, "products": products}
    return Spectra(tuple(done.found.values()), told(objective, begin, None, **about))


def _operators(
    objective: Objective, points: Iterator[tuple[str, Objective]], layers: bool
) -> dict[str, tuple[Operator, Certificate | None]]:
    """The Hessians at all points by name, and their blocks, each with its proof."""
    wanted: dict[str, tuple[Operator, Certificate | None]] = {}
    for name, twin in points:
        same = None if twin is objective else verify(objective, twin)
        operator = hessian(twin, compile=False)
        wanted[name] = operator, same
        prefix = "" if twin is objective else f"{name}: "
        for layer, block in (_blocks(objective) if layers else {}).items():
            wanted[f"{prefix}{layer}"] = restricted(operator, block), same
    return wanted


def _blocks(objective: Objective) -> dict[str, list[str]]:
    """The parameters of every layer."""
    found: dict[str, list[str]] = {}
    for name in objective.shapes:
        found.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return found


def _spectrum(
    name: str,
    operator: Operator,
    certificate: Certificate | None,
    probes: int,
    steps: int,
    top: int,
    seed: int,
) -> tuple[Spectrum, float]:
    found = density(operator, probes=probes, steps=steps, seed=seed)
    count = min(top, operator.size // 2)
    leading = (
        eigenvalues(operator, k=count, tol=0.01, relative_to="norm", seed=seed) if count else ()
    )
    spectrum = replace(spectrum_of(found, name, apart(leading)), certificate=certificate)
    return spectrum, found.matvecs + (leading[0].matvecs if leading else 0.0)


def apart(leading: tuple[Estimate, ...]) -> tuple[Estimate, ...]:
    """The eigenvalues above the largest factor between two neighbours."""
    values = [e.value for e in leading if e.value > 0]
    factors = [a / b for a, b in pairwise(values)]
    if not factors or max(factors) < APART:
        return ()
    return leading[: factors.index(max(factors)) + 1]
