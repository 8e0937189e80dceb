"""From a posterior, a prior and errors that were counted to bounds of the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spiritlevel.bounds.pacbayes import maurer, mcallester, quadratic, thiemann
from spiritlevel.results.bound import Bound, Drawn, Row, Term

COUNTING = 0.2  # the share of delta that is spent on the errors of networks that were drawn
ALL = (maurer, mcallester, quadratic, thiemann)  # one event, solved for the error in four ways


def split(delta: float) -> tuple[float, float]:
    """What the bound spends of delta, and what counting errors on drawn networks spends."""
    return (1 - COUNTING) * delta, COUNTING * delta


def certified(
    point: str,
    drawn: Drawn,
    *,
    kl: float,
    m: int,
    delta: float,
    index: int | None = None,
    assumptions: Sequence[str] = (),
) -> list[Row]:
    """Maurer's bound first, then what follows from the same event in simpler forms.

    The error that they are of is the upper end of what was counted, so `delta` is the sum of what
    the bound and the counting spend.
    """
    own, counting = split(delta)
    said = (
        f"delta = {delta:g} is {own:g} of the bound and {counting:g} of the errors, which were "
        f"counted on {drawn.draws} networks drawn from the posterior",
        *assumptions,
    )
    rows = []
    for bound in ALL:
        found: Bound = bound(error=drawn.above, kl=kl, m=m, delta=own, index=index)
        terms = (Term("counted", drawn.error), *found.terms)
        words = (*found.assumptions, *said)
        rows.append(Row(point, replace(found, delta=delta, terms=terms, assumptions=words)))
    return rows
