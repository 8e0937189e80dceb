"""PAC-Bayes bounds: of the mean error over a posterior, from its divergence to a prior.

Losses lie in [0, 1]. The first four are one event for all posteriors at once,
kl(error, risk) <= (KL + log(2 sqrt(m) / delta)) / m, solved for the risk in four ways: they hold
together, with one delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spiritlevel.base.doors import number, shown
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.asking import chance, divergence, examples, positive, share
from spiritlevel.bounds.binary import kl_inverse
from spiritlevel.results.bound import Bound, Term

OF = "mean error of networks drawn from the posterior"
PREMISES = (
    "the examples are drawn independently from one distribution, and so are new ones",
    "the loss of an example lies in [0, 1]",
    "the prior does not depend on these examples",
)
GRID = "the prior's scale is from a grid fixed in advance, whose entries share delta"
PRECISION = 100  # of Dziugaite & Roy's grid: steps in which the variance falls by a factor e
LARGEST = 0.1  # variance of that grid
ON_GRID = 1e-6  # how far from a whole number an index may be rounded

MAURER = "Maurer 2004, Theorem 5"


def maurer(
    *, error: float, kl: float, m: int, delta: float = 0.05, index: int | None = None
) -> Bound:
    """The largest p with kl(error, p) <= (KL + log(2 sqrt(m) / delta)) / m; Maurer 2004.

    His proof is for m >= 8; below, sum_k C(m, k) (k/m)^k (1 - k/m)^(m-k) <= 2 sqrt(m) by counting,
    so it holds for every m. With the `index` of a prior on a grid, delta is that entry's share.
    """
    budget = _budget(error, kl, m, delta, index)
    found = kl_inverse(error, budget)
    return _bound("maurer", "PAC-Bayes, kl inverted", found, error, kl, m, delta, index)


def mcallester(
    *, error: float, kl: float, m: int, delta: float = 0.05, index: int | None = None
) -> Bound:
    """error + sqrt((KL + log(2 sqrt(m) / delta)) / (2 m)); Pinsker's inequality on Maurer's event.

    McAllester 1999 with the constant of Maurer 2004.
    """
    half = _budget(error, kl, m, delta, index) / 2
    found = float(error) + math.sqrt(half)
    return _bound("mcallester", "PAC-Bayes, square root", found, error, kl, m, delta, index)


def quadratic(
    *, error: float, kl: float, m: int, delta: float = 0.05, index: int | None = None
) -> Bound:
    """(sqrt(error + b) + sqrt(b))^2, b = (KL + log(2 sqrt(m) / delta)) / (2 m).

    kl(q, p) >= (p - q)^2 / (2 p) for q < p, solved for p; Rivasplata et al. 2019.
    """
    half = _budget(error, kl, m, delta, index) / 2
    found = (math.sqrt(float(error) + half) + math.sqrt(half)) ** 2
    return _bound("quadratic", "PAC-Bayes, quadratic", found, error, kl, m, delta, index)


def thiemann(
    *,
    error: float,
    kl: float,
    m: int,
    delta: float = 0.05,
    rate: float | None = None,
    index: int | None = None,
) -> Bound:
    """error / (1 - r/2) + (KL + log(2 sqrt(m) / delta)) / (m r (1 - r/2)), 0 < r < 2.

    For all rates r at once; if None the best one, 2 / (1 + sqrt(1 + 2 error / budget)), where it
    is the quadratic bound. Thiemann et al. 2017.
    """
    budget, error = _budget(error, kl, m, delta, index), float(error)
    if rate is None:
        rate = 2 / (1 + math.sqrt(1 + 2 * error / budget))
    rate = positive("rate", rate)
    if rate >= 2:
        raise SpiritlevelError(f"rate={shown(rate)}: give a number between 0 and 2")
    found = (error + budget / rate) / (1 - rate / 2)
    title = "PAC-Bayes, linear in the error"
    return _bound("thiemann", title, found, error, kl, m, delta, index, {"rate": rate})


def catoni(
    *,
    error: float,
    kl: float,
    m: int,
    rate: float,
    delta: float = 0.05,
    index: int | None = None,
) -> Bound:
    """(1 - exp(-rate error - (KL + log(1 / delta)) / m)) / (1 - exp(-rate)), rate > 0.

    For one rate, fixed before the examples are seen. Catoni 2007.
    """
    error, kl, m, delta = _doors(error, kl, m, delta, index)
    rate = positive("rate", rate)
    paid = (kl - math.log(_share(delta, index))) / m
    found = math.expm1(-rate * error - paid) / math.expm1(-rate)
    return Bound(
        "catoni",
        "PAC-Bayes, a rate fixed in advance",
        found,
        OF,
        _terms(error, kl, m, paid, index, {"rate": rate}),
        delta,
        (*_premises(index), "the rate does not depend on these examples"),
        "Catoni 2007",
    )


def dziugaite_roy(
    *,
    error: float,
    kl: float,
    m: int,
    scale: float,
    delta: float = 0.025,
    precision: float = PRECISION,
    largest: float = LARGEST,
) -> Bound:
    """The largest p with kl(error, p) <= B, a prior N(w0, scale^2 I) of their grid.

    B = (KL + log(pi^2 m / (6 delta)) + 2 log j) / (m - 1), scale^2 = largest exp(-j / precision).
    It is weaker than Maurer's with the same index for every m >= 2. Dziugaite & Roy 2017; where
    the square root is above 1 that is what they print, and no kl is inverted.
    """
    index = _index_of(scale, precision, largest)
    error, kl, m, delta = _doors(error, kl, m, delta, index)
    budget = (kl + math.log(m) - math.log(grid_share(delta, index))) / (m - 1)
    more = {"scale": float(scale), "square root": math.sqrt(budget / 2)}
    return Bound(
        "dziugaite_roy",
        "PAC-Bayes as Dziugaite & Roy",
        kl_inverse(error, budget),
        OF,
        _terms(error, kl, m, budget, index, more),
        delta,
        _premises(index),
        "Dziugaite & Roy 2017",
    )


def grid_share(delta: float, index: int) -> float:
    """6 delta / (pi^2 index^2): what is left of delta for one of countably many, index >= 1."""
    number("index", index, 1, whole=True)
    return 6 * chance("delta", delta) / (math.pi * index) ** 2


def on_grid(
    scale: float, *, precision: float = PRECISION, largest: float = LARGEST
) -> tuple[int, float]:
    """The index and the scale of the entry of Dziugaite & Roy's grid that is nearest to a scale.

    Scales are standard deviations: sqrt(largest exp(-index / precision)), index >= 1.
    """
    index = max(1, round(_log_index(scale, precision, largest)))
    return index, math.sqrt(largest) * math.exp(-index / (2 * float(precision)))


def _log_index(scale: float, precision: float, largest: float) -> float:
    scale, largest = positive("scale", scale), positive("largest", largest)
    return positive("precision", precision) * (math.log(largest) - 2 * math.log(scale))


def _index_of(scale: float, precision: float, largest: float) -> int:
    found = _log_index(scale, precision, largest)
    if round(found) < 1 or abs(found - round(found)) > ON_GRID:
        near = on_grid(scale, precision=precision, largest=largest)[1]
        raise SpiritlevelError(
            f"scale={shown(scale)} is not on the grid; on_grid(scale) is the nearest, {near:.6g}, "
            "and kl has to be that of a prior of this scale"
        )
    return round(found)


def _doors(
    error: float, kl: float, m: int, delta: float, index: int | None
) -> tuple[float, float, int, float]:
    """Plain numbers, or a refusal."""
    if index is not None:
        number("index", index, 1, whole=True)
    return share("error", error), divergence(kl), examples(m), chance("delta", delta)


def _share(delta: float, index: int | None) -> float:
    return delta if index is None else grid_share(delta, index)


def _budget(error: float, kl: float, m: int, delta: float, index: int | None) -> float:
    """How far kl(error, risk) can be: (KL + log(2 sqrt(m) / delta)) / m."""
    _, kl, m, delta = _doors(error, kl, m, delta, index)
    return (kl + math.log(2 * math.sqrt(m)) - math.log(_share(delta, index))) / m


def _premises(index: int | None) -> tuple[str, ...]:
    return PREMISES if index is None else (*PREMISES, GRID)


def _terms(
    error: float,
    kl: float,
    m: int,
    budget: float,
    index: int | None,
    more: Mapping[str, float],
) -> tuple[Term, ...]:
    found = {"error": float(error), "kl": float(kl), "examples": int(m), "budget": budget}
    if index is not None:
        found["index"] = int(index)
    return tuple(Term(name, value) for name, value in (found | dict(more)).items())


def _bound(
    name: str,
    title: str,
    value: float,
    error: float,
    kl: float,
    m: int,
    delta: float,
    index: int | None,
    more: Mapping[str, float] | None = None,
) -> Bound:
    """A bound that follows from Maurer's event."""
    terms = _terms(error, kl, m, _budget(error, kl, m, delta, index), index, more or {})
    source = {
        "maurer": MAURER,
        "mcallester": f"McAllester 1999; {MAURER}",
        "quadratic": f"Rivasplata et al. 2019; Perez-Ortiz et al. 2021; {MAURER}",
        "thiemann": f"Thiemann et al. 2017; {MAURER}",
    }[name]
    return Bound(name, title, float(value), OF, terms, float(delta), _premises(index), source)
