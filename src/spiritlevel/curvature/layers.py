"""Squares of the derivatives of every example, layer by layer instead of example by example.

For y = W x the gradient of one example is d x', and sum_i (d_i x_i')^2 = (d^2)' (x^2): no gradient
of a single example is ever laid out. Layers that see several positions sum over them first. For
convolutions this is no faster than the gradients of single examples, so they are left to those.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Relative: what rounding may do to a gradient that is summed in another order
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-2}
# (module, input, derivatives by the output, weights of the examples) -> sums of squares by name
Rule = Callable[[nn.Module, Tensor, Tensor, Tensor], dict[str, Tensor]]


@dataclass
class Seen:
    """What went through a layer: its input (normalized, in a norm), and its output.

    The output is the one before anybody writes into it.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def layers_of(objective: Objective) -> dict[str, nn.Module] | None:
    """The layers that hold the parameters, by name; None if some are held by anything else."""
    every = [id(p) for _, p in objective.module.named_parameters(remove_duplicate=False)]
    if objective.coordinates or len(every) != len(set(every)):  # a tied one is in two layers
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
    return type(module) is nn.Linear


def largest(layers: dict[str, nn.Module]) -> int:
    """Numbers that one example needs at once: its gradient of the largest layer with positions."""
    return max(sum(p.numel() for p in layer.parameters()) for layer in layers.values())


def squares(
    objective: Objective, layers: dict[str, nn.Module], batch: Batch, columns: Tensor, sizes: Tensor
) -> Tensor | None:
    """sum_i s_i^2 sum_c (J_i' v_ic)^2 in float64, flat; None where layers are not all there is.

    `columns` are (examples, outputs, columns), `sizes` the s_i. That every layer runs once, and
    that no parameter is used beside its layer, is seen on all examples that are given.
    """
    with torch.enable_grad(), _watched(layers) as seen:
        point = {k: p.detach().clone().requires_grad_() for k, p in objective.params.items()}
        out = objective.outputs(point, batch)
    if any(len(one.inputs) != 1 for one in seen.values()):
        return None
    total = {
        name: p.new_zeros(p.shape, dtype=torch.float64) for name, p in objective.params.items()
    }
    if not _whole(layers, seen, point, out, columns[..., 0].reshape(out.shape)):
        return None
    weights = sizes.double().square()
    tails = [one.outputs[0] for one in seen.values()]
    for c in range(columns.shape[-1]):
        pulled = torch.autograd.grad(
            out, tails, columns[..., c].reshape(out.shape), retain_graph=True, allow_unused=True
        )
        for (name, one), back in zip(seen.items(), pulled, strict=True):
            if back is None:  # no output depends on it
                continue
            layer = layers[name]
            found = _rule(layer)(layer, one.inputs[0], back, weights)
            for own, value in found.items():
                key = f"{name}.{own}" if name else own
                if key in total:
                    total[key] += value
    return torch.cat([value.reshape(-1) for value in total.values()])


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
        x, prefix = one.inputs[0], f"{name}." if name else ""
        if isinstance(layers[name], nn.Linear):
            back = d.flatten(0, -2)
            found = {"weight": back.T @ x.flatten(0, -2), "bias": back.sum(0)}
        else:
            both = {"weight": d * x, "bias": d}
            found = {own: value.transpose(0, 1).flatten(1).sum(1) for own, value in both.items()}
        for own, value in found.items():
            known = wanted.get(f"{prefix}{own}", value)
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
            one.inputs.append(_normalized(module, given[0].detach()))
            one.outputs.append(made)
            return made.clone()

        return hook

    hooks = [layer.register_forward_hook(watch(seen[name])) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _rule(layer: nn.Module) -> Rule:
    return _linear if isinstance(layer, nn.Linear) else _norm


def _linear(layer: nn.Module, x: Tensor, d: Tensor, weights: Tensor) -> dict[str, Tensor]:
    if x.ndim == 2:
        back = d.double().square() * weights[:, None]
        return {"weight": back.T @ x.double().square(), "bias": back.sum(0)}
    x, d = x.flatten(1, -2), d.flatten(1, -2)
    return _summed(d.mT @ x, d.sum(1), weights)


def _norm(layer: nn.Module, x: Tensor, d: Tensor, weights: Tensor) -> dict[str, Tensor]:
    gain, bias = d * x, d
    if x.ndim > 2:
        gain, bias = gain.flatten(2).sum(2), bias.flatten(2).sum(2)
    return _summed(gain, bias, weights)


def _normalized(layer: nn.Module, x: Tensor) -> Tensor:
    """The input of a norm in units of its running statistics; that of others as it is."""
    if not isinstance(layer, BATCH_NORMS):
        return x
    assert layer.running_mean is not None
    assert layer.running_var is not None
    shape = [1, -1] + [1] * (x.ndim - 2)
    spread = (layer.running_var + layer.eps).sqrt()
    return (x - layer.running_mean.reshape(shape)) / spread.reshape(shape)


def _summed(gain: Tensor, bias: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Gradients of every example, squared and summed."""
    pairs = {"weight": gain, "bias": bias}
    return {
        name: (weights @ value.flatten(1).double().square()).reshape(value.shape[1:])
        for name, value in pairs.items()
    }
