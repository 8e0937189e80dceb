"""What is known of one operation, in one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import fx

from spiritlevel.symmetry.tracing.forms import Form
from spiritlevel.symmetry.tracing.moves import Action
from spiritlevel.symmetry.tracing.shifts import Shift

Rule = Callable[..., Any]
NO_SHIFT = Shift()


@dataclass(frozen=True)
class Operation:
    """How things pass an operation. What is left out is not known: it blocks, which is sound.

    Rules of walks take all arguments as in the schema, behind the walk or the node:
    `scales(walk, ...)`, `labels(walk, ...)` and `signs(walk, ...)` Scales for what moves,
    `paths(node, ...)` Squares. `interval(func, ...)` takes Bounds as the operation takes tensors.
    """

    moves: Callable[[fx.Node], Action] | None = None  # elements, no more: ids, places, squares
    scales: Rule | None = None  # the equations between positive factors
    labels: Rule | None = None  # which elements are of one unit
    signs: Rule | None = None  # the equations between factors of either sign
    bends: bool = False  # known to let no factor through
    degree: Form | None = None  # in what it is piecewise linear
    interval: Rule | None = None  # bounds
    writes: bool = False  # element by element, so that bounds can be written in place
    paths: Rule | None = None  # sums over paths of squared coefficients
    matrix: Literal["first", "last"] | None = None  # axes of its matrix that are rows and columns
    bias: str = ""  # the argument that is added
    channels: int | None = None  # the axis of the result along which the bias lies
    renames: bool = False  # the result is the tensor that goes in
    shift: Shift = NO_SHIFT  # what a shift that is the same everywhere does


UNKNOWN = Operation()
