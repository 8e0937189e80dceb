"""Bounds that hold on a whole set of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch
from spiritlevel.witnesses.intervals import Interval, NotEnclosed

# Their slopes lie between 0 and 1
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity)


@torch.no_grad()
def largest_loss(objective: Objective, radius: float) -> float | None:
    """An upper bound of the mean loss while every parameter moves by at most `radius`.

    The objective itself is run, on intervals: inputs, hooks, shared layers and penalties are those
    that it has. Rounding is not enclosed. None where an operation has no bounds.
    """
    box = {n: Interval(p - radius, p + radius) for n, p in objective.params.items()}

    def high(batch: Batch) -> float:
        found, count = objective.total(box, batch)
        if isinstance(count, Interval):
            raise NotEnclosed
        return float(found.high if isinstance(found, Interval) else found)

    try:
        bound = objective.mean(high)
    except NotEnclosed:
        return None
    return bound if math.isfinite(bound) else math.inf


@torch.no_grad()
def largest_gradient(objective: Objective, radius: float) -> float | None:
    """An upper bound of |grad L| in the ball of this radius: a local Lipschitz constant.

    |dL/dW_k| <= |d_k| |h_(k-1)| with norms of activations and of what comes back bounded layer by
    layer through ||W_k|| + radius. For chains of linear layers and activations, each used once, and
    cross-entropy, whose gradient by outputs is at most sqrt(2). None for others.
    """
    steps, loss = plain_net(objective), objective.loss
    if steps is None or loss.likelihood != "softmax" or loss.altered or objective.coordinates:
        return None

    def slopes(batch: Batch) -> float:
        if len(batch) != 2 or not isinstance(batch[0], Tensor) or batch[1].is_floating_point():
            raise NotEnclosed
        squares = _squares(objective.here(batch)[0], steps, radius)
        if squares is None:
            raise NotEnclosed
        return float(squares.sqrt().sum())

    try:
        return objective.mean(slopes)
    except NotEnclosed:
        return None


@dataclass(frozen=True)
class Layer:
    """A module of a chain; the norms of weight and bias at the point, where it is linear."""

    module: nn.Module
    weight: float = 0.0
    bias: float = 0.0


def plain_net(objective: Objective) -> list[Layer] | None:
    """The modules of a chain of linear layers and activations that runs as it is written, or None.

    A hook, a forward of one's own or a parameter under two names would make it another function.
    """
    if objective.coordinates or objective.mode != "eval":
        return None
    chain = list(_chain(objective.module, ""))
    hooked = any(
        m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m)
        for m in objective.module.modules()
    )
    known = (nn.Linear, nn.Flatten, nn.Dropout, *ACTIVATIONS)
    if hooked or not all(type(module) in known for _, module in chain):
        return None
    used = [id(p) for _, module in chain for p in module.parameters()]
    return [_layer(objective, *one) for one in chain] if len(used) == len(set(used)) else None


def _chain(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for child, inner in module._modules.items():  # also those that come a second time
        if inner is not None:
            yield from _chain(inner, f"{name}.{child}" if name else child)


def _layer(objective: Objective, name: str, module: nn.Module) -> Layer:
    if not isinstance(module, nn.Linear):
        return Layer(module)
    prefix = f"{name}." if name else ""
    held = {n: objective.params.get(prefix + n, p) for n, p in module.named_parameters()}
    bias = float(held["bias"].norm()) if "bias" in held else 0.0
    return Layer(module, float(torch.linalg.matrix_norm(held["weight"], 2)), bias)


def _squares(x: Tensor, layers: list[Layer], radius: float) -> Tensor | None:
    """The bound of |grad l_i|^2 for every example; None where a layer sees more than rows."""
    sizes, size, shape = [], x.flatten(1).norm(dim=1), x.shape[1:]
    for layer in layers:
        if isinstance(layer.module, nn.Linear):
            if len(shape) != 1:  # one bias would serve many positions
                return None
            sizes.append(size)
            size = (layer.weight + radius) * size + layer.bias + radius
            shape = torch.Size([layer.module.out_features])
        elif isinstance(layer.module, nn.Flatten):
            if (layer.module.start_dim, layer.module.end_dim) != (1, -1):
                return None
            shape = torch.Size([shape.numel()])
        elif isinstance(layer.module, nn.Sigmoid):  # the only one that is not 0 at 0
            size = size + 0.5 * math.sqrt(shape.numel())
    back, total = math.sqrt(2), torch.zeros_like(size)
    linear = [layer for layer in layers if isinstance(layer.module, nn.Linear)]
    for entering, layer in zip(reversed(sizes), reversed(linear), strict=True):
        total = total + back**2 * (entering**2 + 1)
        back *= layer.weight + radius
    return total
