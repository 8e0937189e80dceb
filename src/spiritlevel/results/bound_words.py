"""What bounds allow one to say, sentence by sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spiritlevel.base.spoken import at_least, at_most, percent_at_most, share, short_power

if TYPE_CHECKING:
    from spiritlevel.results.bound import Bound, Bounds, Drawn, Origin

MAIN = "maurer"  # the tightest of those that follow from one event, of every point and posterior
POINTS = {
    "here": "the network as it is, or its posterior as it was trained",
    "orbit": "rescaled, with the same predictions, to where the divergence is least",
    "balanced": "rescaled, with the same predictions, to where the weights are smallest",
}
NEARLY = 5e-3  # relative: what rescaling takes away of a divergence rounds to 0% below


def sentences(bounds: Bounds) -> tuple[str, ...]:
    """The guarantee, what rescaling does to it, what was measured, and what says nothing."""
    origin = bounds.origin
    if origin is None:
        return (_of_rows(bounds),)
    said = [_guarantee(bounds), _rescaled(bounds, origin), _measured(origin), _vacuous(bounds)]
    return tuple(filter(None, said))


def legend(bounds: Bounds) -> list[str]:
    """What the points are, where there is more than one."""
    points = dict.fromkeys(row.point for row in bounds.rows)
    if len(points) < 2:
        return []
    return [f"{point}: {POINTS[point]}" for point in points if point in POINTS]


def main_at(bounds: Bounds, point: str) -> Bound | None:
    """The main bound at a point, if there is one."""
    return next((r.bound for r in bounds.rows if (r.name, r.point) == (MAIN, point)), None)


def surely(delta: float | None) -> str:
    """The share of all draws of the data for which it holds."""
    return "" if delta is None else f"with probability {1 - delta:.6g}"


def _guarantee(bounds: Bounds) -> str:
    main, origin = bounds.main, bounds.origin
    if main is None or origin is None:
        return _of_rows(bounds)
    bound = main.bound
    over = f"over the draw of the {origin.examples:,} examples"
    who = (
        "networks drawn from its posterior" if bounds.informed else "networks drawn around this one"
    )
    if bound.vacuous:
        return (
            f"No guarantee: {surely(bound.delta)} {over}, the bound on the error of {who} is "
            f"{at_most(bound.value)}, and {bound.trivial:g} is known without it."
        )
    return (
        f"{_capital(surely(bound.delta))} {over}, {who} err on at most "
        f"{percent_at_most(bound.value)} of new examples."
    )


def _of_rows(bounds: Bounds) -> str:
    """Of bounds that no posterior is behind."""
    known = [row.bound for row in bounds.rows if not row.bound.vacuous]
    if not bounds.rows:
        return "No bound was computed."
    if not known:
        return f"None of {_many(len(bounds.rows), 'bound')} says more than is known without it."
    best = min(known, key=lambda bound: bound.value)
    if len(known) == 1:
        return f"{_capital(str(best))}."
    return (
        f"{_capital(str(best))}, if it was chosen before: the least of {len(known)} bounds that "
        "say something, each of which holds by itself."
    )


def _rescaled(bounds: Bounds, origin: Origin) -> str:
    if origin.least is None:
        return ""
    limit = origin.lower_bound
    nowhere = (
        "" if limit is None else f" (with this prior nowhere on the orbit below {at_least(limit)})"
    )
    if origin.kl - origin.least <= NEARLY * origin.kl:
        return (
            f"Rescaling weights hardly lowers the divergence: {_nats(origin.kl)} nats as trained, "
            f"{_nats(origin.least)} where it is least{nowhere}."
        )
    part = share((origin.kl - origin.least) / origin.kl)
    here = main_at(bounds, "here")
    plain = "" if here is None else f" As it was trained, the bound is {_worth(here)}."
    return (
        f"Rescaling weights lowers the divergence from {_nats(origin.kl)} to "
        f"{_nats(origin.least)} nats{nowhere}: {part} of it was coordinates.{plain}"
    )


def _measured(origin: Origin) -> str:
    test = "" if origin.test is None else f", and on {_mean(origin.test)} of the test examples"
    return (
        f"Measured: {origin.error.draws:,} of these networks err on {_mean(origin.error)} of these "
        f"examples{test}."
    )


def _vacuous(bounds: Bounds) -> str:
    empty = sum(row.bound.vacuous for row in bounds.rows)
    if not empty:
        return ""
    one = empty == 1
    return (
        f"{empty} of {_many(len(bounds.rows), 'bound')} {'is' if one else 'are'} vacuous: no "
        f"smaller than what is known without {'it' if one else 'them'}."
    )


def _worth(bound: Bound) -> str:
    return "100%" if bound.vacuous else percent_at_most(bound.value)


def _mean(drawn: Drawn) -> str:
    width = f" ± {100 * drawn.stderr:.2f}" if drawn.stderr >= 5e-5 else ""
    return f"{100 * drawn.error:.2f}{width}%"


def _nats(value: float) -> str:
    return short_power(f"{value:#.4g}".removesuffix("."))


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
