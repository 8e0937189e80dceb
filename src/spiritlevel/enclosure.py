"""Bounds that hold on a whole set of parameters, for nets of linear layers and activations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from spiritlevel.batches import Batch
from spiritlevel.objective import Objective

# Monotone, and their slopes lie between 0 and 1
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity)
Step = tuple[str, nn.Module]


def plain_net(objective: Objective) -> list[Step] | None:
    """The layers of a net that is a chain of linear layers and monotone activations, or None."""
    if not isinstance(objective.module, (nn.Sequential, nn.Linear)) or objective.mode != "eval":
        return None
    steps = list(_chain(objective.module, ""))
    known = (nn.Linear, nn.Flatten, nn.Dropout, *ACTIVATIONS)
    return steps if all(type(module) in known for _, module in steps) else None


def _chain(module: nn.Module, name: str) -> Iterator[Step]:
    if isinstance(module, nn.Sequential):
        for child, inner in module.named_children():
            yield from _chain(inner, f"{name}.{child}" if name else child)
    else:
        yield name, module


@torch.no_grad()
def largest_loss(objective: Objective, radius: float) -> float | None:
    """An upper bound of the mean loss while every parameter moves by at most `radius`.

    Interval arithmetic: W in W0 +- r and h in m +- d give |W h - W0 m| <= |W0| d + r (|m| + d),
    summed. Rounding is not enclosed. None where net or loss are not of a kind that is understood.
    """
    steps, loss = plain_net(objective), objective.loss
    if steps is None or loss.on_outputs is None or loss.likelihood is None or loss.altered:
        return None
    total = 0.0
    for batch in objective.batches:
        here = objective.here(batch)
        middle, spread = _interval(objective, steps, here[0], radius)
        worst = _worst(objective, middle, spread, here[1])
        if worst is None:
            return None
        total += float(loss.on_outputs(worst, here)[0])
    return total / objective.count


def _interval(
    objective: Objective, steps: list[Step], x: Tensor, radius: float
) -> tuple[Tensor, Tensor]:
    middle, spread = x, torch.zeros_like(x)
    for name, module in steps:
        if isinstance(module, nn.Linear):
            weight, bias, moves, slides = _parameters(objective, name, module)
            reach = (middle.abs() + spread).sum(-1, keepdim=True)
            spread = spread @ weight.abs().T + radius * (moves * reach + slides)
            middle = middle @ weight.T + bias
        else:
            low, high = module(middle - spread), module(middle + spread)
            middle, spread = (low + high) / 2, (high - low) / 2
    return middle, spread


def _parameters(
    objective: Objective, name: str, module: nn.Linear
) -> tuple[Tensor, Tensor, float, float]:
    """Weight and bias of a layer, and whether each of them is free to move."""
    names = [f"{name}.{part}" if name else part for part in ("weight", "bias")]
    weight = objective.params.get(names[0], module.weight)
    bias = weight.new_zeros(len(weight))
    if module.bias is not None:
        bias = objective.params.get(names[1], module.bias)
    return weight, bias, *(float(name in objective.params) for name in names)  # type: ignore[return-value]


def _worst(objective: Objective, middle: Tensor, spread: Tensor, y: Tensor) -> Tensor | None:
    """The outputs within middle +- spread for which the loss is largest."""
    likelihood = objective.loss.likelihood
    if likelihood == "softmax" and middle.ndim == 2 and not y.is_floating_point():
        own = torch.arange(middle.shape[1], device=y.device) == y[:, None]
        return middle + torch.where(own, -spread, spread)
    if likelihood == "gaussian" and y.shape == middle.shape:
        return middle + torch.where(middle >= y, spread, -spread)
    if likelihood == "bernoulli" and bool(((y == 0) | (y == 1)).all()):
        return middle + torch.where(y == 1, -spread, spread)
    return None


@torch.no_grad()
def largest_gradient(objective: Objective, radius: float) -> float | None:
    """An upper bound of |grad L| in the ball of this radius: a local Lipschitz constant.

    |dL/dW_k| <= |d_k| |h_(k-1)| with norms of activations and of what comes back bounded layer by
    layer through ||W_k|| + radius. For cross-entropy, whose gradient by outputs is below sqrt(2).
    """
    steps = plain_net(objective)
    if steps is None or objective.loss.likelihood != "softmax" or objective.loss.altered:
        return None
    linear = [(n, m) for n, m in steps if isinstance(m, nn.Linear)]
    norms = [_norms(objective, name, module) for name, module in linear]
    total = 0.0
    for batch in objective.batches:
        if len(batch) != 2:
            return None
        total += float(_squares(batch, steps, norms, radius).sqrt().sum())
    return total / objective.count


def _norms(objective: Objective, name: str, module: nn.Linear) -> tuple[float, float]:
    weight, bias, *_ = _parameters(objective, name, module)
    return float(torch.linalg.matrix_norm(weight, 2)), float(bias.norm())


def _squares(
    batch: Batch, steps: list[Step], norms: list[tuple[float, float]], radius: float
) -> Tensor:
    """The bound of |grad l_i|^2 for every example."""
    size = batch[0].flatten(1).norm(dim=1)
    sizes, layer = [], 0
    for _, module in steps:
        if isinstance(module, nn.Linear):
            sizes.append(size)
            weight, bias = norms[layer]
            size = (weight + radius) * size + bias + radius
            layer += 1
            width = module.out_features
        elif isinstance(module, nn.Sigmoid):  # the only one that is not 0 at 0
            size = size + 0.5 * math.sqrt(width)  # type: ignore[possibly-undefined]
    back, total = math.sqrt(2), torch.zeros_like(size)
    for size, (weight, _) in zip(reversed(sizes), reversed(norms), strict=True):
        total = total + back**2 * (size**2 + 1)
        back *= weight + radius
    return total
