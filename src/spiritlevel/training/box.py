"""The box of weights in which outputs hardly change: its volume, and the slope of that volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import twice_differentiable
from spiritlevel.base.tensors import (
    flatten,
    gaussian,
    generator,
    leaves,
    map_tensors,
    spans,
)
from spiritlevel.measures.description import (
    MOST_OUTPUTS,
    minus_log_box,
    silent,
    squared_jacobian,
)
from spiritlevel.objective.loss.heads import predictions
from spiritlevel.objective.module import Scope
from spiritlevel.objective.singles import ROOM

Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a model, by place and by name
Squares = Callable[[dict[str, Tensor]], Tensor]  # of some examples, summed: (outputs, parameters)
NUDGE = 0.1  # relative to the usual weight
AGREES = 1e-6


@dataclass(frozen=True)
class Box:
    """B, the gradient of B by name in float64, and the number of weights that are not in B."""

    value: float
    gradient: dict[str, Tensor]
    silent: int


def box(
    model: nn.Module, live: Mapping[str, Tensor], calls: list[Call], *, mapped: bool = False
) -> Box:
    """B = minus the log volume of the box and its gradient, in float64, the model in eval mode.

    B is a function of S, the mean over the examples of the squared Jacobians of the outputs, so
    that dB = <dB/dS, dS>: S first, and then the gradient of <dB/dS, S>, some examples at a time,
    by vmap if `mapped`, which has to be right for this model: see `mappable`.
    """
    params = {name: p.detach().double() for name, p in live.items()}
    with _as_used(model):
        pieces = [piece for call in calls for piece in _pieces(model, params, call, mapped)]
        examples = sum(count for _, count in pieces)
        with torch.no_grad():
            found = [one(params) for one, _ in pieces]
        _only_alike(found)
        mean = torch.stack(found).sum(0) / examples
        unseen, value, weights = _slope(params, mean)

        def weighed(one: Squares, point: dict[str, Tensor]) -> Tensor:
            return (weights * one(point)).sum() / examples

        parts = [grad(lambda p, one=one: weighed(one, p))(params) for one, _ in pieces]
    slope = {name: torch.stack([part[name] for part in parts]).sum(0) for name in params}
    if not all(bool(piece.isfinite().all()) for piece in slope.values()):
        raise SpiritlevelError("the gradient of B is not finite here; lower lr, or lower weight")
    return Box(value, slope, int(unseen.sum()))


def _slope(params: dict[str, Tensor], mean: Tensor) -> tuple[Tensor, float, Tensor]:
    """Which weights no output sees, B, and dB/dS with zeros for those."""
    shapes = {name: p.shape for name, p in params.items()}
    if not bool(mean.isfinite().all()):
        raise SpiritlevelError(
            "the squared derivatives of the outputs are not finite here; lower lr, or rescale the "
            "data"
        )
    unseen = silent(flatten(params), spans(shapes), mean.sum(0))
    if bool(unseen.all()):
        raise SpiritlevelError("no output depends on any of params; give those of the model")
    seen = mean[:, ~unseen].requires_grad_()
    with torch.enable_grad():
        value = minus_log_box(seen)
        (slope,) = torch.autograd.grad(value, seen)
    weights = torch.zeros_like(mean)
    weights[:, ~unseen] = slope
    return unseen, float(value.detach()), weights


def mappable(model: nn.Module, live: Mapping[str, Tensor], call: Call) -> bool:
    """Whether vmap has the second derivatives that plain differentiation has, on two examples.

    It is wrong through layer norms (torch 2.13), and for some models it does not work at all. Near
    the point, not at it: where weights are zero much of a model is not seen.
    """
    draws, size = generator(0), flatten(dict(live)).detach().double().square().mean().sqrt()
    params = {}
    for name, p in live.items():
        exact = p.detach().double()
        params[name] = exact + NUDGE * size * gaussian(tuple(p.shape), draws, exact)
    few = map_tensors(lambda t: t[:2] if t.ndim else t, call)
    slopes = []
    with _as_used(model):
        for mapped in (False, True):
            one, _ = next(_pieces(model, params, few, mapped))

            def mixed(point: dict[str, Tensor], one: Squares = one) -> Tensor:
                squares = one(point)
                shape = tuple(squares.shape)
                return (squares * gaussian(shape, generator(1), squares.detach())).sum()

            try:
                slopes.append(flatten(grad(mixed)(params)))
            except (RuntimeError, ValueError, IndexError):  # no batching rule, or control flow
                if not mapped:
                    raise
                return False
    right, found = slopes
    return bool((found - right).norm() <= AGREES * right.norm())


def _pieces(
    model: nn.Module, params: dict[str, Tensor], call: Call, mapped: bool
) -> Iterator[tuple[Squares, int]]:
    """The squared Jacobians of a few examples at a time, as functions of the parameters."""
    inputs = map_tensors(lambda t: t.double() if t.is_floating_point() else t, call)
    tensors = list(leaves(inputs))
    count = tensors[0].shape[0] if tensors and tensors[0].ndim else 0
    if not count or any(t.ndim == 0 or t.shape[0] != count for t in tensors):
        raise SpiritlevelError(
            "the model was called with inputs that have no common axis of examples; "
            "FlatMinimumSearch needs one row for each example"
        )
    one = _jacobian_of_one(model, inputs, mapped)
    with torch.no_grad():
        outputs = len(one(params, *(t[0] for t in tensors)))
    at_once = max(ROOM["cpu"] // (outputs * sum(p.numel() for p in params.values())), 1)
    for start in range(0, count, at_once):
        rows = [t[start : start + at_once] for t in tensors]
        yield _summed(one, rows, mapped), len(rows[0])


def _jacobian_of_one(model: nn.Module, inputs: Any, mapped: bool) -> Callable[..., Tensor]:
    """Of the parameters and the tensors of one example without its axis."""
    scope = Scope(model)
    held = {
        f"model.{name}": t.detach().double() if t.is_floating_point() else t
        for name, t in [*model.named_parameters(), *model.named_buffers()]
    }

    def run(module: nn.Module, example: Call) -> Tensor:
        found = predictions(module(*example[0], **example[1]))
        return torch.cat([one.reshape(-1) for one in found.values()])

    def squares(params: dict[str, Tensor], *tensors: Tensor) -> Tensor:
        given = iter(tensors)
        example = map_tensors(lambda _: next(given).unsqueeze(0), inputs)

        def outputs(point: Any) -> Tensor:
            state = {f"model.{name}": value for name, value in point.items()}
            return scope.at({**held, **state}, run, example)

        return squared_jacobian(outputs, params, mapped=mapped)

    return squares


def _summed(one: Callable[..., Tensor], rows: list[Tensor], mapped: bool) -> Squares:
    """Over some examples."""

    def together(params: dict[str, Tensor]) -> Tensor:
        if mapped:
            return vmap(one, in_dims=(None, *[0] * len(rows)))(params, *rows).sum(0)
        return torch.stack([one(params, *example) for example in zip(*rows, strict=True)]).sum(0)

    return together


def _only_alike(found: list[Tensor]) -> None:
    counts = {len(squares) for squares in found}
    if len(counts) > 1 or max(counts) > MOST_OUTPUTS:
        raise SpiritlevelError(
            f"examples have {max(counts)} outputs; this needs the same for all, and at most "
            f"{MOST_OUTPUTS}"
        )


@contextmanager
def _as_used(model: nn.Module) -> Iterator[None]:
    """In eval mode, twice differentiable and in full precision; flags as they were afterwards."""
    flags = [(part, part.training) for part in model.modules()]
    recurrent = any(isinstance(part, nn.RNNBase) for part, _ in flags)
    device = next(model.parameters()).device.type
    for part, _ in flags:
        part.training = False
    try:
        with twice_differentiable(recurrent=recurrent), torch.autocast(device, enabled=False):
            yield
    finally:
        for part, flag in flags:
            part.training = flag
