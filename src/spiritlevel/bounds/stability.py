"""Stability bounds of SGD: of what one example changes, and so of the gap to new examples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from spiritlevel.base.doors import number, shown
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.asking import endless, examples, positive
from spiritlevel.results.bound import Bound, Term

OF = "mean gap between the loss on new examples and on those trained on"
PREMISES = (
    "the examples are drawn independently from one distribution, and so are new ones",
    "each step of SGD is on one example, drawn at random or in the order of a random permutation",
    "the loss of every example has this Lipschitz constant and this smoothness in the weights, "
    "wherever SGD can go",
)
REFERENCE = "Hardt, Recht & Singer 2016"


def hardt_convex(
    *,
    lipschitz: float,
    smoothness: float,
    rates: Iterable[float],
    m: int,
    largest: float = math.inf,
) -> Bound:
    """(2 L^2 / m) sum_t rate_t, every rate at most 2 / smoothness; their convex case.

    For losses that are convex in the weights: of linear models. `largest` is the largest loss.
    """
    steps = _rates(rates)
    lipschitz, smoothness, m = _doors(lipschitz, smoothness, m)
    _slow_enough("rates", max(steps), 2 / smoothness, "2 / smoothness")
    terms = {"lipschitz": lipschitz, "smoothness": smoothness, "sum of rates": math.fsum(steps)}
    found = 2 * lipschitz**2 * math.fsum(steps) / m
    premise = "the loss of every example is convex in the weights"
    return _bound("hardt_convex", "stability, convex", found, terms, m, premise, "convex", largest)


def hardt_strongly_convex(
    *,
    lipschitz: float,
    smoothness: float,
    convexity: float,
    rate: float,
    m: int,
    largest: float = math.inf,
) -> Bound:
    """2 L^2 / (convexity m), one rate of at most 1 / smoothness; the strongly convex case.

    For losses that are strongly convex in the weights, which are projected onto a bounded convex
    set after each step. `largest` is the largest loss.
    """
    lipschitz, smoothness, m = _doors(lipschitz, smoothness, m)
    rate, convexity = positive("rate", rate), positive("convexity", convexity)
    if convexity > smoothness:
        raise SpiritlevelError(
            f"convexity={shown(convexity)} is above smoothness={shown(smoothness)}, which no loss "
            "has: give the least and the largest curvature"
        )
    _slow_enough("rate", rate, 1 / smoothness, "1 / smoothness")
    terms = {"lipschitz": lipschitz, "smoothness": smoothness, "convexity": convexity, "rate": rate}
    found = 2 * lipschitz**2 / (convexity * m)
    premise = "the loss is strongly convex in the weights, kept in a bounded convex set"
    title = "stability, strongly convex"
    return _bound(
        "hardt_strongly_convex", title, found, terms, m, premise, "strongly convex", largest
    )


def hardt_nonconvex(
    *, lipschitz: float, smoothness: float, rates: Iterable[float], m: int
) -> Bound:
    """(1 + 1/(b c)) / (m - 1) (2 c L^2)^(1/(b c + 1)) T^(b c/(b c + 1)), b smoothness, T steps.

    rate_t <= c / t, falling or level, losses in [0, 1]; the non-convex case. c is the least that
    the rates allow.
    """
    steps = _rates(rates)
    lipschitz, smoothness, m = _doors(lipschitz, smoothness, m)
    if any(later > sooner for sooner, later in itertools.pairwise(steps)):
        raise SpiritlevelError("rates rise: the bound is for rates that never do; give such")
    c = max(t * rate for t, rate in enumerate(steps, 1))
    product = smoothness * c
    found = (1 + 1 / product) / (m - 1) * (2 * c * lipschitz**2) ** (1 / (product + 1))
    found *= len(steps) ** (product / (product + 1))
    terms = {"lipschitz": lipschitz, "smoothness": smoothness, "c": c, "steps": len(steps)}
    premise = "the loss of an example lies in [0, 1]"
    return _bound("hardt_nonconvex", "stability", found, terms, m, premise, "non-convex", 1.0)


def _bound(
    name: str,
    title: str,
    value: float,
    terms: Mapping[str, float],
    m: int,
    premise: str,
    case: str,
    largest: float,
) -> Bound:
    if not endless(largest):
        number("largest", largest, above=0.0)
    made = tuple(Term(n, float(v)) for n, v in terms.items())
    return Bound(
        name,
        title,
        value,
        OF,
        (*made, Term("examples", m)),
        None,
        (*PREMISES, premise, "the gap is a mean over the draw of the examples and of SGD"),
        f"{REFERENCE}, {case} case",
        float(largest),
    )


def _doors(lipschitz: float, smoothness: float, m: int) -> tuple[float, float, int]:
    """Plain numbers, or a refusal."""
    return positive("lipschitz", lipschitz), positive("smoothness", smoothness), examples(m)


def _rates(rates: Any) -> list[float]:
    """One rate for each step; refuse what is none."""
    if not isinstance(rates, Iterable) or isinstance(rates, (str, Mapping)):
        raise SpiritlevelError(f"rates={shown(rates)}: give a list, the rate of every step")
    found = list(rates)
    if not found:
        raise SpiritlevelError("rates is empty: give the rate of every step")
    return [positive("rates", one) for one in found]


def _slow_enough(name: str, rate: float, most: float, words: str) -> None:
    if rate > most:
        raise SpiritlevelError(f"{name}: {rate:g} is above {words} = {most:g}; give smaller ones")
