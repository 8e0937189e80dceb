"""The l2 path norm: all products of weights along paths from an input to an output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.utils.parametrize import is_parametrized

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator, leaves, map_tensors
from spiritlevel.measures.base import UNIT, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.symmetry.predictors import EXAMPLES, canonical_names, on_cpu
from spiritlevel.symmetry.tracing.graph import (
    Predictor,
    Traversal,
    by_name,
    capture,
    in_order,
    name_of,
)
from spiritlevel.symmetry.tracing.registry import known
from spiritlevel.symmetry.tracing.squares import Squares, moves, squared

LINEAR = 1e-5  # relative: how far from additive a network of squares may be


def path_norm(instruments: Instruments) -> Estimate:
    """sqrt(sum over paths of prod w^2): the network of squared weights on an input of ones.

    Neyshabur et al. (2015). Biases are weights of a constant input; a maximum counts all its paths,
    an average its squared coefficients (Gonon et al., 2024); fixed statistics of BatchNorm are
    folded in.
    """
    begin = time.perf_counter()
    return Estimate(path_norm_of(instruments.objective), seconds=time.perf_counter() - begin)


@set_apart()
@torch.no_grad()
def path_norm_of(objective: Objective) -> float:
    """The path norm in float64."""
    exact = objective.to(torch.float64)
    model, loss = on_cpu(exact)
    batch = map_tensors(Tensor.cpu, exact.few(EXAMPLES))
    predictor = Predictor(model, lambda m, b: [loss.outputs(m, b)], batch)
    squares = squares_of(predictor, _inputs(batch))
    point = {**dict(exact.module.named_parameters()), **exact.buffers, **exact.params}
    held = {name: value.detach().cpu() for name, value in point.items()}
    check_linear(lambda make: squares.run(squares.weighted(held), make))
    total = float(squares.total(squares.weighted(held)))
    if not math.isfinite(total):
        raise SpiritlevelError("the path norm overflows: the weights are too large")
    return math.sqrt(total)


@dataclass(frozen=True)
class SquaredNetwork:
    """A network whose weights are squared, as a function of those squares."""

    program: ExportedProgram
    names: Mapping[str, str]  # of parameters and buffers in the graph -> their first names
    example: Any
    copies: int  # of the network side by side: the examples of the example

    def weighted(self, point: Mapping[str, Tensor]) -> dict[str, Any]:
        """What goes into the graph by name: weights squared, buffers as they are."""
        weights = {self.names.get(name) for name in self._parameters()}
        return {n: Squares(v.square(), v) if n in weights else v for n, v in point.items()}

    def total(self, held: Mapping[str, Any]) -> Tensor:
        """The sum over all paths of the products of squares: the path norm squared."""
        return self.run(held, torch.ones_like).sum() / self.copies

    def run(self, held: Mapping[str, Any], make: Callable[[Tensor], Tensor]) -> Tensor:
        """All outputs, for inputs that `make` makes of the example's."""
        data = iter(leaves(self.example))
        inputs: list[Any] = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                inputs.append(_signal(next(data), make))
                continue
            own = self.names.get(_bare(spec.target))
            inputs.append(
                self.program.constants.get(str(spec.target)) if own is None else held[own]
            )
        found = _Squared().run(self.program.graph_module, inputs)
        return torch.cat([squared(one).reshape(-1) for one in found])

    def _parameters(self) -> list[str]:
        specs = self.program.graph_signature.input_specs
        return [_bare(spec.target) for spec in specs if spec.kind == InputKind.PARAMETER]


def squares_of(predictor: Predictor, inputs: Any) -> SquaredNetwork:
    """The network of squares behind a graph; `inputs` are those of its data that are no labels."""
    if not any(t.is_floating_point() for t in leaves(inputs)):
        raise SpiritlevelError("the path norm needs inputs that are numbers, not tokens")
    if any(is_parametrized(m) for m in predictor.model.modules()):
        raise SpiritlevelError("the path norm needs plain weights, not parametrized modules")
    batch = predictor.example
    copies = frozen.examples(batch) if frozen.divisible(batch) else 1
    names = canonical_names(predictor.model)
    return SquaredNetwork(capture(predictor), names, batch, copies)


def _bare(target: Any) -> str:
    return str(target).removeprefix("model.")


def _inputs(batch: Batch) -> Any:
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def _signal(data: Tensor, make: Callable[[Tensor], Tensor]) -> Squares | Tensor:
    return Squares(make(data)) if data.is_floating_point() else data


def check_linear(run: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> None:
    """Of positive numbers, sums, products with weights and rectifiers make an affine map."""
    draws = generator(0)

    def positive(t: Tensor) -> Tensor:
        return gaussian(tuple(t.shape), draws, t).abs()

    kept: list[Tensor] = []

    def first(t: Tensor) -> Tensor:
        kept.append(positive(t))
        return kept[-1]

    one = run(first)
    others = [positive(t) for t in kept]
    places = iter(others)
    two = run(lambda _: next(places))
    sums = iter([a + b for a, b in zip(kept, others, strict=True)])
    both = run(lambda _: next(sums))
    gap = float((both + run(torch.zeros_like) - one - two).abs().max())
    if not gap <= LINEAR * float(both.abs().max()):
        raise SpiritlevelError(
            "the path norm is that of networks of weights, sums and rectifiers; this one has "
            "something else (attention, a norm that depends on the input, a smooth activation)"
        )


class _Squared(Traversal):
    """The network with all its coefficients squared: what its inputs become, by paths."""

    moving = (Squares,)

    def passed(self, node: fx.Node, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
        operation = known(name_of(node))
        try:
            if operation.moves is not None:
                found = moves(operation.moves(node), args, kwargs)
            elif operation.paths is not None:
                found = operation.paths(node, *in_order(node, given), **by_name(node, given))
            else:
                raise NotImplementedError
            if not all(v.value.is_floating_point() for v in self.moved(found)):
                raise NotImplementedError  # whole numbers are rounded ones
        except NotImplementedError:
            raise SpiritlevelError(
                "the path norm knows networks of weights, sums and rectifiers; "
                f"{name_of(node)} is no such"
            ) from None
        return found


ENTRIES: dict[str, Measure] = {
    "path_norm": Measure(
        path_norm,
        title="l2 path norm",
        family="norm",
        invariances=UNIT,
        reference="Neyshabur et al. (2015)",
        cost="one forward pass of one example",
        work=Work(),
        reading="larger means more capacity",
    ),
}
