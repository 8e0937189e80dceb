"""Surfaces, lines and spectra by hand: values that a test knows."""

from __future__ import annotations

import math
from typing import Any

from spiritlevel.base.estimate import Estimate
from spiritlevel.results.certificate import Certificate, Verdict
from spiritlevel.results.landscape import (
    Curve,
    Direction,
    Line,
    OfLandscape,
    Sheet,
    Step,
    Surface,
    Values,
)
from spiritlevel.results.spectra import Spectra, Spectrum

AXIS = tuple(k / 4 for k in range(-4, 5))
FIRST, SECOND = Direction("first", "gaussian", 3.0), Direction("second", "gaussian", 2.5)


def provenance(**more: Any) -> OfLandscape:
    told: dict[str, Any] = {
        "parameters": 2778,
        "examples": 1437,
        "mode": "eval",
        "dtype": "float64",
        "device": "cpu",
        "seed": 7,
        "products": 0.0,
        "seconds": 12.34,
        "notes": ["a note"],
        "refused": {},
        "interrupted": "",
        "versions": {"spiritlevel": "0.1.0"},
        "engine": "one by one",
        "check": 2e-16,
        "statistics": "frozen",
    }
    return {**told, **more}  # type: ignore[return-value]


def certificate(relative: float, verdict: Verdict = "exact") -> Certificate:
    return Certificate(verdict, 10 * relative, relative, relative, relative, 1437)


def bowl(factor: float = 1.0, least: float = 0.01) -> tuple[Values, ...]:
    """least + factor (x^2 + 2 y^2): 0.01 at the centre, 3.01 at the corners."""
    return tuple(tuple(least + factor * (x * x + 2 * y * y) for x in AXIS) for y in AXIS)


def put(values: tuple[Values, ...], *places: tuple[int, int, float | None]) -> tuple[Values, ...]:
    """The same with other values at some places (i, j)."""
    rows = [list(row) for row in values]
    for i, j, value in places:
        rows[j][i] = value
    return tuple(map(tuple, rows))


def surface(*sheets: Sheet, **more: Any) -> Surface:
    told = more.pop("provenance", provenance())
    return Surface(AXIS, AXIS, (FIRST, SECOND), sheets or (Sheet("here", bowl()),), told, **more)


def orbit(factor: float = 10.0, second: Certificate | None = None) -> Surface:
    """Three points of an orbit, with a path in the plane of the first."""
    half = tuple(tuple(0.5 for _ in AXIS) for _ in AXIS)
    return surface(
        Sheet("here", bowl(), half),
        Sheet("balanced", bowl(0.5), half, None, certificate(0.0)),
        Sheet("sharpened", bowl(factor), half, None, second or certificate(3e-15)),
        path=tuple(Step(f"epoch {k}", -0.75 + k / 4, 0.5 - k / 6, 0.1 * k, 2.0) for k in range(4)),
        explained=(0.8, 0.1),
    )


def line(*barriers: float, **more: Any) -> Line:
    """Curves between two ends, each with a barrier in the middle."""
    axis = tuple(k / 10 for k in range(11))
    curves = tuple(
        Curve(
            name,
            axis,
            tuple(0.1 + 0.1 * t + height * 4 * t * (1 - t) for t in axis),
            tuple(1 - 0.5 * t for t in axis),
            Direction("from a to b", "given", 9.0),
            Estimate(height),
            None,
            certificate(4e-16) if name == "aligned" else None,
        )
        for name, height in zip(("as they are", "aligned"), barriers, strict=False)
    )
    return Line(curves, provenance(), **more)


def rays() -> Line:
    """Two lines through a point; the second leaves the finite numbers and then stops."""
    whole = tuple(0.5 + x * x for x in AXIS)
    broken = (*(0.5 + 3 * x * x for x in AXIS[:-3]), math.inf, math.nan, None)
    curves = (Curve("one", AXIS, whole, None, FIRST), Curve("two", AXIS, broken, None, SECOND))
    return Line(curves, provenance())


def spectrum(name: str, size: float = 1.0, same: Certificate | None = None) -> Spectrum:
    """A bell of this size around 0 and one eigenvalue at twice the size."""
    sigma = 0.05 * size
    grid = tuple(size * (-0.5 + 3 * k / 200) for k in range(201))

    def bell(z: float, centre: float) -> float:
        return math.exp(-(((z - centre) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))

    density = tuple(0.99 * bell(z, 0) + 0.01 * bell(z, 2 * size) for z in grid)
    errors = tuple(0.1 * d for d in density)
    top = Estimate(2 * size, residual=1e-5 * size)
    return Spectrum(name, grid, density, errors, (top,), 100, sigma, same)


def spectra(factor: float = 300.0) -> Spectra:
    other = spectrum("sharpened", factor, certificate(2e-15))
    return Spectra((spectrum("here"), other), provenance())
