"""The l2 path norm: all products of weights along paths from an input to an output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
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
    batch = exact.few(EXAMPLES)
    if not any(t.is_floating_point() for t in leaves(_inputs(batch))):
        raise SpiritlevelError("the path norm needs inputs that are numbers, not tokens")
    if any(is_parametrized(m) for m in exact.module.modules()):
        raise SpiritlevelError("the path norm needs plain weights, not parametrized modules")
    model, loss = on_cpu(exact)
    predictor = Predictor(model, lambda m, b: [loss.outputs(m, b)], map_tensors(Tensor.cpu, batch))
    program = capture(predictor)
    held = _held(exact, program, canonical_names(model))

    def run(make: Callable[[Tensor], Tensor]) -> Tensor:
        data = iter(leaves(predictor.example))
        inputs = [_signal(next(data), make) if value is None else value for value in held]
        (found,) = _Squared().run(program.graph_module, inputs)
        return squared(found)

    _check_linear(run)
    copies = frozen.examples(batch) if frozen.divisible(batch) else 1
    total = float(run(torch.ones_like).sum()) / copies
    if not math.isfinite(total):
        raise SpiritlevelError("the path norm overflows: the weights are too large")
    return math.sqrt(total)


def _inputs(batch: Batch) -> Any:
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def _signal(data: Tensor, make: Callable[[Tensor], Tensor]) -> Squares | Tensor:
    return Squares(make(data)) if data.is_floating_point() else data


def _held(exact: Objective, program: ExportedProgram, names: dict[str, str]) -> list[Any]:
    """What goes into the graph: weights squared, other tensors as they are, None for the data."""
    point = {**dict(exact.module.named_parameters()), **exact.buffers, **exact.params}
    found: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            found.append(None)
            continue
        own = names.get(str(spec.target).removeprefix("model."))
        constant: Any = program.constants.get(str(spec.target))
        value = (constant if own is None else point[own]).detach().cpu()
        weight = spec.kind == InputKind.PARAMETER
        found.append(Squares(value.square(), value) if weight else value)
    return found


def _check_linear(run: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> None:
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
