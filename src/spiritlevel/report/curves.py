"""Losses along lines and densities of eigenvalues in words: every text that their pages show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from spiritlevel.report.numbers import estimate_words
from spiritlevel.report.pictures import (
    SAME,
    Words,
    at,
    change_key,
    change_words,
    common,
    far,
    holes,
    refuted,
    said,
    short,
)
from spiritlevel.results.landscape import Curve, Line
from spiritlevel.results.places import ends
from spiritlevel.results.scales import densities, eigenvalues, scale
from spiritlevel.results.spectra import Spectra, Spectrum


def line_words(line: Line) -> Words:
    """What the template shows of losses along lines."""
    losses = [v for curve in line.curves for v in curve.losses]
    known = scale(losses)
    return {
        **common(line.provenance),
        "headline": line_headline(line),
        "keys": change_key(curve.certificate for curve in line.curves),
        "rows": [_curve_row(curve) for curve in line.curves],
        "barriers": any(curve.barrier is not None for curve in line.curves),
        "radii": any(curve.radius is not None for curve in line.curves),
        "rises": ", ".join(dict.fromkeys(f"{c.rise:g}" for c in line.curves if c.rise is not None)),
        "drawn": known is not None,
        "accurate": any(curve.accuracies is not None for curve in line.curves),
        "broken": any(v is not None and not math.isfinite(v) for v in losses),
        "data": {
            "log": known is not None and known.log,
            "curves": [
                {
                    "name": curve.name,
                    "axis": curve.axis,
                    "losses": short(curve.losses),
                    "accuracies": None if curve.accuracies is None else short(curve.accuracies),
                    "barrier": None if curve.barrier is None else short(curve.barrier.value),
                }
                for curve in line.curves
            ],
            "name": _line_name(line.curves),
        },
    }


def _line_name(curves: Sequence[Curve]) -> str:
    names = dict.fromkeys(curve.direction.name for curve in curves)
    return next(iter(names)) if len(names) == 1 else "place along the line"


def line_headline(line: Line) -> str:
    """Barriers if there are any, else how far the loss rises."""
    losses = [v for curve in line.curves for v in curve.losses]
    least, largest = ends(losses)
    if least is None or largest is None:
        return "No finite loss was found along this line."
    apart = refuted(curve.certificate for curve in line.curves)
    if apart is not None:
        return f"The moved end is another network: its predictions differ by {apart}."
    known = [(c.name, c.barrier.value) for c in line.curves if c.barrier is not None]
    if known:
        first, *rest = [f"{said(value)} ({name})" for name, value in known]
        if not rest:
            return f"On the way the loss rises {said(known[0][1])} above its ends.{holes(losses)}"
        return f"The barrier is {', '.join([first, *rest[:-1]])} and {rest[-1]}.{holes(losses)}"
    many = "this line" if len(line.curves) == 1 else f"these {len(line.curves)} lines"
    return f"Along {many} the loss lies between {said(least)} and {said(largest)}.{holes(losses)}"


def _curve_row(curve: Curve) -> Words:
    least, largest = ends(curve.losses)
    return {
        "name": curve.name,
        "least": said(least),
        "largest": said(largest),
        "points": f"{len(curve.axis):,}",
        "norm": f"{curve.direction.norm:.3g}",
        "barrier": None if curve.barrier is None else estimate_words(curve.barrier),
        "radius": None if curve.radius is None else estimate_words(curve.radius),
        "change": change_words(curve.certificate),
    }


def spectra_words(spectra: Spectra) -> Words:
    """What the template shows of densities of eigenvalues."""
    axis, up = eigenvalues(spectra.spectra), densities(spectra.spectra)
    return {
        **common(spectra.provenance),
        "headline": spectra_headline(spectra),
        "keys": change_key(one.certificate for one in spectra.spectra),
        "rows": [_spectrum_row(one) for one in spectra.spectra],
        "data": {
            "axis": asdict(axis),
            "densities": up,
            "spectra": [
                {
                    "name": one.name,
                    "grid": short(one.grid),
                    "density": short(one.density),
                    "stderr": short(one.stderr),
                    "outliers": short([e.value for e in one.outliers]),
                }
                for one in spectra.spectra
            ],
        },
    }


def top_of(one: Spectrum) -> float:
    """The largest eigenvalue: one that lies apart, or the end of the grid without its margin."""
    return max([e.value for e in one.outliers], default=one.grid[-1] - 4 * one.sigma)


def spectra_headline(spectra: Spectra) -> str:
    first, *others = spectra.spectra
    if not others:
        return f"The largest of {first.size:,} eigenvalues is {said(top_of(first))}."
    certificates = [one.certificate for one in others]
    apart = refuted(certificates)
    if apart is not None:
        return f"These points are not one network: their predictions differ by {apart}."
    same = f"{SAME}: the" if all(certificates) else "The"
    other = max(others, key=lambda one: far(top_of(one), top_of(first)))
    return (
        f"{same} largest eigenvalue is {said(top_of(first))} {at(first.name)} and "
        f"{said(top_of(other))} {at(other.name)}."
    )


def _spectrum_row(one: Spectrum) -> Words:
    low, high = one.grid[0] + 4 * one.sigma, one.grid[-1] - 4 * one.sigma
    return {
        "name": one.name,
        "size": f"{one.size:,}",
        "low": said(low) if low else "0",
        "high": said(high) if high else "0",
        "outliers": [estimate_words(estimate) for estimate in one.outliers],
        "change": change_words(one.certificate),
    }
