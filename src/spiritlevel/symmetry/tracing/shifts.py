"""How a shift that is the same everywhere meets an operation: a bias that nothing sees is dead."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from torch import Tensor, fx

from spiritlevel.symmetry.tracing.state import Given, arguments

MASKED = -1e4  # a score below it has no weight, shifted or not


class Way(Enum):
    """What becomes of scores in an operation on their way to a softmax."""

    LOST = auto()
    OPEN = auto()
    MASKED = auto()  # by a finite number: a factor could bring what was masked back into sight
    ENDED = auto()  # in a softmax over their last axis


@dataclass(frozen=True)
class Shift:
    """What an operation does with a shift of one argument; the default sees it."""

    follows: Callable[[fx.Node], bool] = lambda user: False  # the result is shifted likewise
    blind: Callable[[Given, list[str], Tensor], bool] = lambda given, slots, places: False
    keys: str = ""  # the argument that holds keys, where the operation makes scores
    scores: Callable[[fx.Node, fx.Node, Way], Way] = lambda user, node, way: Way.LOST


# Following ------------------------------------------------------------------------------------


def always(user: fx.Node) -> bool:
    return True


def by_number(user: fx.Node) -> bool:
    """Times or over a number, without rounding."""
    given = arguments(user)
    if given.get("rounding_mode") is not None:
        return False
    return isinstance(given["other"], (int, float)) and isinstance(given["self"], fx.Node)


def another_precision(user: fx.Node) -> bool:
    value = user.meta.get("val")
    return value is not None and value.is_floating_point()


# Blindness ------------------------------------------------------------------------------------


def of_keys(given: Given, slots: list[str], places: Tensor) -> bool:
    """Softmax over the keys does not see what is added to all of them."""
    return slots == ["key"] and constant(places, -2)


def of_statistics(option: str) -> Callable[[Given, list[str], Tensor], bool]:
    """A norm subtracts the mean of each channel, where `option` says that it is its own."""

    def blind(given: Given, slots: list[str], places: Tensor) -> bool:
        others = [d for d in range(places.ndim) if d != 1]
        return slots == ["input"] and given[option] and all(constant(places, d) for d in others)

    return blind


def constant(places: Tensor, dim: int) -> bool:
    return bool((places == places.narrow(dim, 0, 1)).all())


# Scores ---------------------------------------------------------------------------------------


def end(user: fx.Node, node: fx.Node, way: Way) -> Way:
    last = arguments(user)["dim"] in (-1, node.meta["val"].ndim - 1)
    return Way.ENDED if last else Way.LOST


def stay(user: fx.Node, node: fx.Node, way: Way) -> Way:
    return way


def stay_floats(user: fx.Node, node: fx.Node, way: Way) -> Way:
    return way if another_precision(user) else Way.LOST


def added(user: fx.Node, node: fx.Node, way: Way) -> Way:
    """Any mask, that of the other scores too."""
    given = arguments(user)
    return way if given["self"] is not given["other"] else Way.LOST


def scaled(user: fx.Node, node: fx.Node, way: Way) -> Way:
    passed = arguments(user)["self"] is node and by_number(user) and way is Way.OPEN
    return Way.OPEN if passed else Way.LOST


def masked(user: fx.Node, node: fx.Node, way: Way) -> Way:
    fill = _fill(user, node)
    if not fill <= MASKED:
        return Way.LOST
    return Way.MASKED if math.isfinite(fill) else way


def _fill(user: fx.Node, node: fx.Node) -> float:
    """The number that takes the place of some scores; infinity if it is not known."""
    given = arguments(user)
    first, second = given["self"], given["value"] if "value" in given else given["other"]
    fill: Any = second if first is node else first
    if isinstance(fill, fx.Node):  # a number as a tensor
        made = arguments(fill)
        fill = made.get("fill_value", made.get("s")) if not fill.all_input_nodes else None
    return float(fill) if isinstance(fill, (int, float)) else math.inf
