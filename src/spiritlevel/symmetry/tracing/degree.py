"""Whether a network is piecewise linear in each of its parameters, decided on its graph.

Every tensor carries the set of parameters that it depends on, with the promise that each of its
elements is piecewise linear in each of them alone. Sums, maxima and rectifiers unite the sets;
products keep the promise where no parameter is in two factors; nothing else is known to keep it.
Then d2f/dp2 = 0 for every single parameter p, and diag(H) = diag(G) whatever the loss of f.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import leaves
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch, divisible
from spiritlevel.symmetry.predictors import canonical_names, predictor_of
from spiritlevel.symmetry.tracing.forms import step
from spiritlevel.symmetry.tracing.graph import Traversal, capture, name_of
from spiritlevel.symmetry.tracing.registry import known
from spiritlevel.symmetry.tracing.state import module_of

Reason = Literal["coordinates", "loss", "untraced", "shapes", "product", "operation"]
MOST_KINDS = 4  # shapes of examples for which a graph is made
Params = frozenset[str]
NONE: Params = frozenset()


@dataclass(frozen=True)
class Obstacle:
    """Why a network is not known to be piecewise linear in each of its parameters."""

    reason: Reason
    operation: str = ""
    module: str = ""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.operation} in {self.module}" if self.module else self.operation
        names = ", ".join(self.parameters)
        return {
            "coordinates": "the objective is in other coordinates than those of its model",
            "loss": "the loss is not known to be a function of the outputs alone",
            "untraced": "the model cannot be traced",
            "shapes": f"there are more than {MOST_KINDS} shapes of examples",
            "product": f"{place} multiplies what depends on {names} with itself",
            "operation": f"{place} is not known to be piecewise linear in {names}",
        }[self.reason]


Value = Params | Obstacle


def multilinear(objective: Objective) -> bool:
    """Whether a network is known to be piecewise linear in each of its parameters.

    Then the diagonals of the Hessian and of the Gauss-Newton matrix are the same.
    """
    return obstacle(objective) is None


@set_apart()
def obstacle(objective: Objective) -> Obstacle | None:
    """The first thing that stands against it; None if it is known to be so."""
    if objective.coordinates:
        return Obstacle("coordinates")
    if objective.loss.on_outputs is None:
        return Obstacle("loss")
    kinds = _kinds(objective)
    if len(kinds) > MOST_KINDS:
        return Obstacle("shapes")
    found = (_on_one_kind(objective.on([batch])) for batch in kinds)
    return next((one for one in found if one is not None), None)


def _kinds(objective: Objective) -> list[Batch]:
    """A batch for each shape of examples: a model may take another path for another one."""
    found: dict[tuple[torch.Size, ...], Batch] = {}
    for batch in objective.batches:
        whole = not divisible(batch)
        found.setdefault(tuple(t.shape[not whole :] for t in leaves(batch)), batch)
    return list(found.values())


def _on_one_kind(objective: Objective) -> Obstacle | None:
    predictor, movable = predictor_of(objective, None)
    try:
        program = capture(predictor)
    except SpiritlevelError:
        return Obstacle("untraced")
    inputs = _inputs(program, movable, canonical_names(predictor.model))
    pieces = Pieces()
    found = _united(pieces.moved(pieces.run(program.graph_module, inputs)))
    return found if isinstance(found, Obstacle) else None


def _inputs(program: ExportedProgram, movable: set[str], names: dict[str, str]) -> list[Value]:
    """What goes into the graph: parameters that move, each in itself; the rest is constant."""
    found: list[Value] = []
    for spec in program.graph_signature.input_specs:
        name = names.get(str(spec.target).removeprefix("model.")) if spec.target else None
        moves = spec.kind == InputKind.PARAMETER and name in movable
        found.append(frozenset([name]) if moves and name is not None else NONE)
    return found


class Pieces(Traversal):
    """Carries the parameters that things depend on, or the first obstacle on the way to them."""

    moving = (frozenset, Obstacle)

    def passed(self, node: fx.Node, args: Any, kwargs: Any, given: dict[str, Any]) -> Value:
        name = name_of(node)
        operation = known(name)
        is_complex = any(map(_is_complex, (node, *node.all_input_nodes)))
        if _is_whole(node) or (operation.degree is step and not is_complex):
            return NONE
        depends = _united(self.moved((args, kwargs)))
        if isinstance(depends, Obstacle) or not depends:
            return depends
        if is_complex:  # neither |z| is linear in pieces nor z / |z| constant
            return Obstacle("operation", name, module_of(node), tuple(sorted(depends)))
        form = None if operation.degree is None else operation.degree(given)
        if form is None:
            return Obstacle("operation", name, module_of(node), tuple(sorted(depends)))
        bent = self._held(form.bent)
        if bent:
            return Obstacle("operation", name, module_of(node), tuple(sorted(bent)))
        for one, other in combinations([self._held(factor) for factor in form.factors], 2):
            if one & other:
                return Obstacle("product", name, module_of(node), tuple(sorted(one & other)))
        return depends

    def _held(self, tree: Any) -> Params:
        """The parameters in some arguments, none of which is an obstacle."""
        found = _united(self.moved(tree))
        assert not isinstance(found, Obstacle)
        return found


def _is_whole(node: fx.Node) -> bool:
    """Whether what it makes is constant in pieces: integers, truth values."""
    made = node.meta.get("val")
    return isinstance(made, Tensor) and not (made.is_floating_point() or made.is_complex())


def _is_complex(node: fx.Node) -> bool:
    made = node.meta.get("val")
    return isinstance(made, Tensor) and made.is_complex()


def _united(values: Iterable[Any]) -> Value:
    """The first obstacle, or all parameters; constants depend on none."""
    found = NONE
    for value in values:
        if isinstance(value, Obstacle):
            return value
        found |= value if isinstance(value, frozenset) else NONE
    return found
