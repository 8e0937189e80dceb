"""Operations as products of sums: in which of their arguments they are piecewise linear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spiritlevel.symmetry.tracing.state import Given


@dataclass(frozen=True)
class Product:
    """What an operation multiplies, and what it bends; all else that it takes is added."""

    factors: tuple[Any, ...] = ()
    bent: tuple[Any, ...] = ()


Form = Callable[[Given], Product | None]  # None where these arguments are not understood


def linear(given: Given) -> Product:
    """Piecewise linear in all arguments together: sums, maxima, rectifiers, moves."""
    return Product()


def step(given: Given) -> Product:
    """Constant in pieces: the derivative is 0 wherever there is one."""
    return Product()


def factors(*names: str) -> Form:
    """A product of these arguments, and sums with the others."""
    return lambda given: Product(tuple(given[name] for name in names))


def bending(*names: str) -> Form:
    """Linear in all arguments but these."""
    return lambda given: Product(bent=tuple(given[name] for name in names))


def einsum(given: Given) -> Product:
    return Product(tuple(given["tensors"]))


def lerp(given: Given) -> Product:
    return Product(((given["self"], given["end"]), given["weight"]))


def quotient(given: Given) -> Product | None:
    return None if given.get("rounding_mode") else Product(bent=(given["other"],))


def norm(given: Given) -> Product:
    """(x - mean) / sqrt(var + eps) * gain + bias, with statistics of its own or given ones."""
    own = given.get("training", given.get("use_input_stats", "running_mean" not in given))
    if own:
        return Product(bent=(given["input"],))
    moved = (given["input"], given["running_mean"])
    return Product((moved, given["weight"]), bent=(given["running_var"],))
