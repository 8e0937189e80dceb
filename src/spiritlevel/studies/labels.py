"""What a measured label stands for, and which one is the same with the orbit divided out."""

from __future__ import annotations

from collections.abc import Collection

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.measures.asking import Asked, asked
from spiritlevel.measures.base import Bottom

REPRESENTATIVE = " @ representative"  # taken at the point of the orbit with the least weight norm


def known(label: str) -> Asked | None:
    """The measure that was asked for by this label; None for a number of the user's own."""
    try:
        found = asked([label.removesuffix(REPRESENTATIVE)])
    except SpiritlevelError:
        return None
    return found[0] if len(found) == 1 else None


def described(label: str) -> tuple[str, str, bool]:
    """Title, family, and whether no rescaling of units moves it."""
    found, moved = known(label), label.endswith(REPRESENTATIVE)
    if found is None:
        return label.replace("_", " "), "own", moved
    title = f"{found.title}, at the representative" if moved else found.title
    return title, found.entry.family, moved or found.entry.promises("unit")


def bottom(label: str, measured: Collection[str]) -> str:
    """The label of the same measure with the orbit divided out; "" if none, or none is needed."""
    if described(label)[2]:
        return ""
    least = [other for other in measured if _least(label, other)]
    return next(iter([*least, *{label + REPRESENTATIVE} & set(measured)]), "")


def _least(label: str, other: str) -> bool:
    """Whether the other is the least value of this norm over the orbit, of G where this is of H."""
    here, there = (one and _norm(one) for one in (known(label), known(other)))
    return here is not None and here == there and described(other)[2]


def _norm(found: Asked) -> str | None:
    """The norm that a measure is; with a factor or to second order it is another number."""
    end = found.entry.bottom
    return end.norm if end and end.factor is Bottom.factor and end.order is None else None
