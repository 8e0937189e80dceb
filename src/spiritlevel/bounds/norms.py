"""Bounds of norms and margins for a network as it is: each where its theorem is about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds import margins
from spiritlevel.bounds.architecture import Chain
from spiritlevel.measures.norms import l1_path_norms
from spiritlevel.objective import Objective
from spiritlevel.results.bound import Bound

# what is said of any network: in its place stands what this one is
GENERAL = (margins.PREMISES[1], "no input that can be drawn has a larger norm than `inputs`")
TRIED = 40  # margins, all of which a bound holds for at once


def spectral_margin(chain: Chain, *, delta: float = 0.05) -> Bound:
    """That of Bartlett, Foster & Telgarsky (2017), at the margin that makes it least."""

    def at(margin: float) -> Bound:
        return margins.spectral_margin(
            error=chain.share_below(margin),
            margin=margin,
            spectral=[one.spectral for one in chain.layers],
            distances=[one.moved_rows for one in chain.layers],
            inputs=chain.length,
            width=chain.width,
            m=chain.examples,
            delta=delta,
        )

    return _least(chain, at, chain.origin)


def spectral_frobenius(chain: Chain, *, radius: float | None = None, delta: float = 0.05) -> Bound:
    """That of Neyshabur, Bhojanapalli & Srebro (2018), at the margin that makes it least.

    `radius` is what no input that can be drawn is longer than; the longest of the data if None.
    """
    _refuse_bent(chain)
    reach = _radius(chain, radius)

    def at(margin: float) -> Bound:
        return margins.spectral_frobenius(
            error=chain.share_below(margin),
            margin=margin,
            spectral=[one.spectral for one in chain.layers],
            frobenius=[max(one.frobenius, one.spectral) for one in chain.layers],
            inputs=reach,
            width=chain.width,
            m=chain.examples,
            delta=delta,
        )

    told = "given" if radius is not None else "premised: that of the longest of the data"
    with_it = " with the constant input" if chain.biased else ""
    return _least(chain, at, f"no input is longer than {reach:.4g}{with_it} ({told})")


def path(objective: Objective, chain: Chain, *, delta: float = 0.05) -> Bound:
    """That of Neyshabur, Tomioka & Srebro (2015), at the margin that makes it least."""
    _refuse_bent(chain)
    norm = float(l1_path_norms(objective).max())

    def at(margin: float) -> Bound:
        return margins.path(
            error=chain.share_below(margin),
            margin=margin,
            norm=norm,
            inputs=chain.largest,
            features=chain.features,
            layers=chain.depth,
            m=chain.examples,
            classes=chain.classes,
            delta=delta,
        )

    return _least(chain, at)


def _least(chain: Chain, at: Callable[[float], Bound], *more: str) -> Bound:
    """The least over some margins of the data; in the words of what this network is."""
    found = _bounds(chain, at)
    own = tuple(said for said in found.assumptions if said not in GENERAL)
    return replace(found, assumptions=(*own, *chain.assumptions, *more))


def _bounds(chain: Chain, at: Callable[[float], Bound]) -> Bound:
    right = chain.margins[chain.margins > 0].sort().values
    if not len(right):
        raise SpiritlevelError("no example is decided rightly: there is no margin to divide by")
    # of margins that most examples do not reach nothing can be had but bounds above a half
    most = max(len(right) - len(chain.margins) // 2, 1)
    places = torch.linspace(0, most - 1, min(TRIED, most)).round().long().unique()
    found, why = list[Bound](), ""
    for place in places:
        try:
            found.append(at(float(right[place])))
        except SpiritlevelError as error:  # a margin that no network of such norms can have
            why = str(error)
    if not found:
        raise SpiritlevelError(why)
    return min(found, key=float)


def _refuse_bent(chain: Chain) -> None:
    if not chain.homogeneous:
        raise SpiritlevelError(
            "this bound is about rectifiers: what lies between the layers has to be homogeneous, "
            "s(c a) = c s(a)"
        )


def _radius(chain: Chain, radius: float | None) -> float:
    if radius is None:
        return chain.radius
    number("radius", radius, above=0.0)
    found = (radius**2 + chain.biased) ** 0.5
    if found < chain.radius * (1 - 1e-6):
        raise SpiritlevelError(
            f"radius={radius:g}: an input of the data is longer; give one that none can exceed"
        )
    return max(found, chain.radius)
