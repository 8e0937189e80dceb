"""The VC dimension of networks of ReLUs, and the bound that follows from a dimension alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from spiritlevel.base.doors import number, one_of, shown
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.asking import chance, examples, share
from spiritlevel.results.bound import Bound, Term

FORMS = ("layers", "units")


def vc_dimension(layers: Sequence[tuple[int, int]], form: str = "layers") -> float:
    """At most this many points can be labelled in all ways by the sign of one output.

    `layers` are (parameters, units) from the first to the output: parameters that enter its units,
    shared ones once, and all its units, with every place of a convolution. Units are ReLUs.
    "layers": L + sum_i W_i log2(4 e R log2(2 e R)), W_i parameters up to layer i, R = sum_i i k_i;
    Bartlett, Harvey, Liaw & Mehrabian 2019, for more than two units.
    "units": 2 W (U + log2(12 L)), since the sign is a combination of fewer than 2^U polynomials of
    degree L; Goldberg & Jerrum 1995, with the constant of Anthony & Bartlett 1999.
    """
    one_of("form", form, FORMS)
    found = _layers(layers)
    depth, units = len(found), sum(k for _, k in found)
    parameters = sum(w for w, _ in found)
    if form == "units":
        return 2.0 * parameters * (units + math.log2(12 * depth))
    if units <= 2:
        raise SpiritlevelError(f"layers has {units} units; give more than two, or form='units'")
    total = sum(w * (depth - i) for i, (w, _) in enumerate(found))
    reach = sum(i * k for i, (_, k) in enumerate(found, 1))
    two_e = 2 * math.e * reach
    return depth + total * math.log2(2 * two_e * math.log2(two_e))


def vc(*, error: float, dimension: float, m: int, delta: float = 0.05) -> Bound:
    """The largest p with p - error <= sqrt(c p), c = 4 (log G(2 m) + log(4 / delta)) / m.

    G(2 m) <= (2 e m / d)^d, the labellings of 2 m points (Sauer), and <= 2^(2 m). For all functions
    of a class of dimension d at once. Vapnik & Chervonenkis 1974; proved in full by Cortes,
    Greenberg & Mohri 2019.
    """
    error, m, delta = share("error", error), examples(m), chance("delta", delta)
    number("dimension", dimension, 1)
    dimension = float(dimension)
    growth = log_growth(dimension, 2 * m)
    c = 4 * (growth + math.log(4 / delta)) / m
    return Bound(
        "vc",
        "VC dimension",
        error + c / 2 + math.sqrt(error * c + c * c / 4),
        "error of this network",
        (
            Term("error", error),
            Term("dimension", dimension),
            Term("examples", m),
            Term("log labellings", growth),
        ),
        delta,
        (
            "the examples are drawn independently from one distribution, and so are new ones",
            "two classes, told by the sign of one output",
            "the architecture was chosen before the examples were seen and has this VC dimension",
        ),
        "Vapnik & Chervonenkis 1974; Cortes, Greenberg & Mohri 2019",
    )


def log_growth(dimension: float, points: int) -> float:
    """log of the most labellings of so many points by a class of this dimension (Sauer)."""
    all_of_them = points * math.log(2)
    if dimension >= points:
        return all_of_them
    return min(all_of_them, dimension * (1 + math.log(points / dimension)))


def _layers(layers: Any) -> list[tuple[int, int]]:
    """Pairs of whole numbers; refuse what is none."""
    if not isinstance(layers, Iterable) or isinstance(layers, (str, bytes)):
        raise SpiritlevelError(f"layers={shown(layers)}: give a list of (parameters, units)")
    found = list(layers)
    if not found:
        raise SpiritlevelError("layers is empty: give (parameters, units) of at least one layer")
    for one in found:
        if not isinstance(one, Sequence) or isinstance(one, str) or len(one) != 2:
            raise SpiritlevelError(f"layers holds {shown(one)}: give pairs (parameters, units)")
        number("layers", one[0], 0, whole=True)
        number("layers", one[1], 1, whole=True)
    return [(int(w), int(k)) for w, k in found]
