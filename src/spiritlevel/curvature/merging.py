"""BatchNorm merged into the layer before it, as a function of the same parameters.

In eval mode gamma (W x - mean) / s + beta is W' x + b' with W' = W gamma / s: derivatives run
through small tensors of weights, where those of the norm itself run through whole images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import kept_rng, without_tf32
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.following import EXAMPLES, LAYERS, State, apart, followers, state_of
from spiritlevel.objective.objective import Params

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Relative to the largest prediction of an example: rounding is less, another network is more
SAME = {torch.float32: 1e-3, torch.float64: 1e-9}


@dataclass(frozen=True)
class Merging:
    """Which norm goes into which layer, by names, and the states of the norms in which they do."""

    pairs: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, State] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def of(self, objective: Objective) -> Objective:
        """The same function of the same parameters; the objective itself if it cannot be copied."""
        if not self.pairs:
            return objective
        try:
            return objective.edited(self._edit, _Weights(objective, self))
        except (RuntimeError, TypeError):  # what a model keeps of its last run may stand in the way
            return objective

    def seen(self, objective: Objective) -> Objective:
        """The merged objective on a few examples, refused where it is another one."""
        merged = self.of(objective)
        if not all(self.fits(objective, merged, batch) for batch in objective.batches):
            raise SpiritlevelError("the model is another one with its norms merged")
        return merged

    def fits(self, objective: Objective, merged: Objective, batch: Batch) -> bool:
        """Whether nothing but the pairs reads what is theirs, and both models predict the same."""
        if not self.pairs:
            return True
        with torch.no_grad(), kept_rng(), without_tf32():
            try:
                (before, total), alone = apart(objective, self.pairs, batch, self.states)
                if alone != self.pairs:
                    return False
                after, other = merged.together(merged.params, batch)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # a model that reads the norm that is gone, in any way it likes
                return False
            kind = SAME[objective.dtype]
            same = before.keys() == after.keys()
            same = same and all(_alike(before[k], after[k], kind) for k in before)
            return same and _alike(torch.stack(_numbers(total)), torch.stack(_numbers(other)), kind)

    def _edit(self, module: nn.Module) -> None:
        """Layers with a bias, and nothing where the norms were."""
        for layer, norm in self.pairs.items():
            before: Any = module.get_submodule(layer)
            if before.bias is None:
                before.bias = nn.Parameter(before.weight.new_zeros(len(before.weight)))
            parent, _, own = norm.rpartition(".")
            module.get_submodule(parent)._modules[own] = nn.Identity()


def merging(objective: Objective) -> Merging:
    """What can be merged, as a few examples tell; nothing where anything is unusual."""
    if objective.coordinates or not any(isinstance(m, NORMS) for m in objective.module.modules()):
        return Merging()
    parts = dict(objective.module.named_modules(remove_duplicate=False))
    uses = Counter(id(p) for _, p in objective.module.named_parameters(remove_duplicate=False))

    def plain(name: str, kinds: tuple[type, ...]) -> bool:
        """Nothing but what torch makes of its class, and tied to nothing."""
        part: Any = parts[name]
        own = [p for p in part._parameters.values() if p is not None]
        hooks = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
        bare = type(part) in kinds and "forward" not in vars(part) and not hooks
        named = part._parameters.keys() == {"weight", "bias"}
        return bare and named and all(uses[id(p)] == 1 for p in own)

    try:
        found = followers(objective).pairs
        pairs = {a: b for a, b in found.items() if plain(a, LAYERS) and plain(b, NORMS)}
        states = {norm: state_of(parts[norm]) for norm in pairs.values()}
        return Merging(apart(objective, pairs, objective.few(EXAMPLES), states)[1], states)
    except (SpiritlevelError, RuntimeError, TypeError, AttributeError, StopIteration):
        return Merging()  # layers that are called in ways of their own


@dataclass(frozen=True)
class _Norm:
    """Of one pair: what of it is no parameter, and the names of what is."""

    layer: str
    norm: str
    mean: Tensor
    scale: Tensor  # 1 / sqrt(var + eps)
    fixed: Mapping[str, Tensor]

    def into(self, state: dict[str, Tensor]) -> None:
        """The weight and the bias of the layer, from what it and the norm have."""
        held = {**self.fixed, **state}
        weight, bias = held[f"{self.layer}.weight"], held.get(f"{self.layer}.bias")
        gain, shift = (held.get(f"{self.norm}.{own}") for own in ("weight", "bias"))
        scale = self.scale if gain is None else gain * self.scale
        moved = (-self.mean if bias is None else bias - self.mean) * scale
        for own in ("weight", "bias"):
            state.pop(f"{self.norm}.{own}", None)
        state[f"{self.layer}.weight"] = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
        state[f"{self.layer}.bias"] = moved if shift is None else moved + shift


class _Weights:
    """The parameters of the merged model from those of the objective."""

    def __init__(self, objective: Objective, merging: Merging) -> None:
        module, buffers = objective.module, objective.buffers
        own = {n: p.detach() for n, p in module.named_parameters() if n not in objective.shapes}
        self.norms = []
        for layer, norm in merging.pairs.items():
            parts = [f"{part}.{kind}" for part in (layer, norm) for kind in ("weight", "bias")]
            fixed = {name: own[name] for name in parts if name in own}
            mean, var = buffers[f"{norm}.running_mean"], buffers[f"{norm}.running_var"]
            scale = (var + merging.states[norm]["eps"]).rsqrt()
            self.norms.append(_Norm(layer, norm, mean, scale, fixed))

    @property
    def tensors(self) -> list[Tensor]:
        return [t for n in self.norms for t in (n.mean, n.scale, *n.fixed.values())]

    def __call__(self, params: Params) -> dict[str, Tensor]:
        state = dict(params)
        for norm in self.norms:
            norm.into(state)
        return state


def _numbers(total: tuple[Any, Any]) -> list[Tensor]:
    return [torch.as_tensor(part, dtype=torch.float64, device="cpu") for part in total]


def _alike(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Each example relative to what is largest in it."""
    if a.shape != b.shape:
        return False
    rows = a.reshape(len(a), -1) if a.ndim > 1 else a.reshape(1, -1)
    size = torch.nan_to_num(rows.abs(), 0.0, 0.0).amax(1, keepdim=True) if rows.numel() else rows
    apart = (rows - b.reshape(rows.shape)).abs()
    return bool((apart <= tolerance * size).all())  # NaN is no prediction
