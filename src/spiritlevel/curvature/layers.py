"""Squares of the derivatives of every example, layer by layer instead of example by example.

For y = W x the gradient of one example is d x', and sum_i (d_i x_i')^2 = (d^2)' (x^2): no gradient
of a single example is ever laid out. Layers that see several positions, convolutions among them,
sum over those first: one matrix product for each example and all its columns.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
GRADIENTS = 3  # as many numbers, for gradients of single examples and their squares in float64
# Relative: what rounding may do to a gradient that is summed in another order
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-2}


@dataclass
class Seen:
    """What went through a layer: its input (normalized in a norm, padded in a convolution).

    And its output, before anybody writes into it.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def layers_of(objective: Objective) -> dict[str, nn.Module] | None:
    """The layers that hold the parameters, by name; None if some are held by anything else."""
    if objective.coordinates:
        return None
    every = [id(p) for _, p in objective.module.named_parameters(remove_duplicate=False)]
    if len(every) != len(set(every)):  # a tied one is in two layers
        return None
    held: dict[str, nn.Module] = {}
    for name, module in objective.module.named_modules():
        prefix = f"{name}." if name else ""
        own = [prefix + n for n, _ in module.named_parameters(recurse=False)]
        chosen = [n for n in own if n in objective.params]
        if chosen and not _known(module):
            return None
        if chosen:
            held[name] = module
    names = {f"{n}.{p}" if n else p for n, m in held.items() for p, _ in m.named_parameters()}
    return held if set(objective.params) <= names else None


def _known(module: nn.Module) -> bool:
    """One of torch's own layers as it comes: no hooks, weight norms or forward of its own."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if not {name for name, _ in module.named_parameters()} <= {"weight", "bias"}:
        return False
    if type(module) in BATCH_NORMS:
        return module.running_mean is not None and not module.training
    if type(module) in CONVOLUTIONS:
        return module.padding_mode == "zeros"
    return type(module) is nn.Linear


def numbers(objective: Objective, layers: dict[str, nn.Module], one: Batch, columns: int) -> int:
    """How many one example needs: derivatives of all layers, the gradients of the largest."""
    with torch.no_grad(), _watched(layers) as seen:
        objective.outputs(objective.params, one)
    most = total = 0
    for name, layer in layers.items():
        for x, made in zip(seen[name].inputs, seen[name].outputs, strict=True):
            total += columns * made.numel()
            if not isinstance(layer, BATCH_NORMS):
                patches = _patches(layer, x)
                weights = sum(p.numel() for p in layer.parameters())
                laid_out = GRADIENTS * columns * weights if patches.shape[2] > 1 else 0
                most = max(most, patches.numel() + laid_out)
    return total + most


def squares(
    objective: Objective, layers: dict[str, nn.Module], batch: Batch, columns: Tensor, sizes: Tensor
) -> Tensor | None:
    """sum_i s_i^2 sum_c (J_i' v_ic)^2 in float64, flat; None where layers are not all there is.

    `columns` are (examples, outputs, columns), `sizes` the s_i. That every layer runs once on as
    many rows as there are examples, and that no parameter is used beside its layer, is seen on all
    examples that are given.
    """
    with torch.enable_grad(), _watched(layers) as seen:
        point = {k: p.detach().clone().requires_grad_() for k, p in objective.params.items()}
        out = objective.outputs(point, batch)
    if any([len(x) for x in one.inputs] != [len(sizes)] for one in seen.values()):
        return None
    total = {
        name: p.new_zeros(p.shape, dtype=torch.float64) for name, p in objective.params.items()
    }
    mixed = columns @ gaussian(columns.shape[-1], generator(0), columns)
    if not _whole(layers, seen, point, out, mixed.reshape(out.shape)):
        return None
    weights = sizes.double().square()
    tails = [one.outputs[0] for one in seen.values()]
    for (name, one), back in zip(seen.items(), _pulled(out, tails, columns), strict=True):
        if back is None:  # no output depends on it
            continue
        layer = layers[name]
        rule = _of_norm if isinstance(layer, BATCH_NORMS) else _of_weights
        found = rule(layer, one.inputs[0], back, weights)
        for own, value in found.items():
            key = f"{name}.{own}" if name else own
            if key in total:
                total[key] += value.reshape(total[key].shape)
    return torch.cat([value.reshape(-1) for value in total.values()])


def _pulled(out: Tensor, tails: list[Tensor], columns: Tensor) -> list[Tensor | None]:
    """The derivatives by each tail, (columns, *tail), or None where there are none."""
    given = columns.movedim(-1, 0).reshape(-1, *out.shape)
    settings = {"retain_graph": True, "allow_unused": True}
    try:
        return list(torch.autograd.grad(out, tails, given, is_grads_batched=True, **settings))
    except (RuntimeError, ValueError):  # no batching rule: one column after another
        single = [torch.autograd.grad(out, tails, one, **settings) for one in given]
        return [
            None if pieces[0] is None else torch.stack(pieces)
            for pieces in zip(*single, strict=True)
        ]


def _whole(
    layers: dict[str, nn.Module],
    seen: dict[str, Seen],
    point: dict[str, Tensor],
    out: Tensor,
    column: Tensor,
) -> bool:
    """Whether one gradient of all examples together is the sum of d x' over the layers."""
    tails = [one.outputs[0] for one in seen.values()]
    ends = [*tails, *point.values()]
    pulled = torch.autograd.grad(out, ends, column, retain_graph=True, materialize_grads=True)
    wanted = dict(zip(point, pulled[len(tails) :], strict=True))
    for (name, one), d in zip(seen.items(), pulled, strict=False):
        layer, x, prefix = layers[name], one.inputs[0], f"{name}." if name else ""
        if isinstance(layer, BATCH_NORMS):
            both = {"weight": d * x, "bias": d}
            found = {own: value.transpose(0, 1).flatten(1).sum(1) for own, value in both.items()}
        else:
            back = _backs(layer, d, 1)
            weight = torch.einsum("ngop,ngpk->gok", back, _patches(layer, x))
            found = {"weight": weight, "bias": back.sum((0, 3))}
        for own, value in found.items():
            known = wanted.get(f"{prefix}{own}", value).reshape(value.shape)
            if not (value - known).norm() <= ROUNDING[value.dtype] * known.norm():
                return False
    return True


@contextlib.contextmanager
def _watched(layers: dict[str, nn.Module]) -> Iterator[dict[str, Seen]]:
    """Everything that runs through some layers; what follows them gets a copy to write into."""
    seen = {name: Seen() for name in layers}

    def watch(one: Seen) -> Callable[..., Tensor]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
            # here, where the statistics of the objective are in their places
            one.inputs.append(_prepared(module, given[0].detach()))
            one.outputs.append(made)
            return made.clone()

        return hook

    hooks = [layer.register_forward_hook(watch(seen[name])) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _prepared(layer: nn.Module, x: Tensor) -> Tensor:
    """The input of a norm in units of its running statistics, of a convolution with its padding."""
    if isinstance(layer, CONVOLUTIONS):
        return F.pad(x, layer._reversed_padding_repeated_twice)
    if not isinstance(layer, BATCH_NORMS):
        return x
    assert layer.running_mean is not None
    assert layer.running_var is not None
    shape = [1, -1] + [1] * (x.ndim - 2)
    spread = (layer.running_var + layer.eps).sqrt()
    return (x - layer.running_mean.reshape(shape)) / spread.reshape(shape)


def _patches(layer: nn.Module, x: Tensor) -> Tensor:
    """What the weights are multiplied with: (examples, groups, positions, entries of a row)."""
    if not isinstance(layer, CONVOLUTIONS):
        return x.reshape(len(x), 1, -1, x.shape[-1])
    sizes = zip(x.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True)
    spots = [(size - hole * (k - 1) - 1) // step + 1 for size, k, step, hole in sizes]
    along = x.stride()[2:]
    within = [hole * a for hole, a in zip(layer.dilation, along, strict=True)]
    across = [step * a for step, a in zip(layer.stride, along, strict=True)]
    shape = (*x.shape[:2], *layer.kernel_size, *spots)
    windows = x.as_strided(shape, (*x.stride()[:2], *within, *across), x.storage_offset())
    return windows.reshape(len(x), layer.groups, -1, math.prod(spots)).mT


def _backs(layer: nn.Module, d: Tensor, lead: int) -> Tensor:
    """Derivatives by the outputs, (..., groups, outputs of a group, positions) after `lead`."""
    if isinstance(layer, CONVOLUTIONS):
        return d.reshape(*d.shape[:lead], layer.groups, layer.out_channels // layer.groups, -1)
    return d.reshape(*d.shape[:lead], 1, -1, d.shape[-1]).mT


def _of_weights(layer: nn.Module, x: Tensor, d: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Of a linear layer or a convolution, from derivatives (columns, examples, ...)."""
    back, patches = _backs(layer, d, 2), _patches(layer, x)
    bias = torch.einsum("cngo,n->go", back.sum(-1).double().square(), weights)
    if patches.shape[2] == 1:
        squares = back[..., 0].double().square().sum(0) * weights[:, None, None]
        weight = torch.einsum("ngo,ngk->gok", squares, patches[:, :, 0].double().square())
        return {"weight": weight, "bias": bias}
    rows = back.movedim(0, 2)  # (examples, groups, columns, outputs, positions)
    gradients = (rows.flatten(2, 3) @ patches).unflatten(2, rows.shape[2:4])
    squares = gradients.double().square_().sum(2).flatten(1)  # in float32 they would overflow
    return {"weight": weights @ squares, "bias": bias}


def _of_norm(layer: nn.Module, x: Tensor, d: Tensor, weights: Tensor) -> dict[str, Tensor]:
    pairs = {"weight": d * x, "bias": d}
    found = {name: v.reshape(*v.shape[:3], -1).sum(3).double() for name, v in pairs.items()}
    return {name: torch.einsum("cnk,n->k", v.square(), weights) for name, v in found.items()}
