"""Sign flips: the symmetries of odd activations, found by the same walk with fewer rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from spiritlevel.base import tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import generator
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.symmetry.find import collected, walked
from spiritlevel.symmetry.group import Group
from spiritlevel.symmetry.tracing import recurrent
from spiritlevel.symmetry.tracing.rules import RULES, Rule, passes
from spiritlevel.symmetry.tracing.state import Scales, Walk

ODD = frozenset(["tanh", "sin", "asinh", "sinh", "atan", "tan", "erf", "softshrink", "hardshrink"])
# Rules that hold for negative factors too: sums, products, and what is blocked anyway.
LINEAR = frozenset(
    "neg dropout native_dropout feature_dropout clone to _to_copy contiguous detach alias "
    "lift_fresh_copy add sub rsub mul multiply div divide addcmul square reciprocal glu softmax "
    "_softmax log_softmax _log_softmax sum mean cumsum avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d pad constant_pad_nd zeros_like "
    "ones_like full_like new_zeros new_ones zero copy fill slice_scatter select_scatter index_put "
    "linear matmul mm bmm mv dot vdot addmm baddbmm einsum conv1d "
    "conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d embedding index "
    "index_select gather scaled_dot_product_attention layer_norm rms_norm group_norm "
    "instance_norm batch_norm _native_batch_norm_legit_no_training".split()
)


@dataclass(frozen=True)
class Signs:
    """theta -> (-1)^(B s) * theta with the same predictions for every s in {0, 1}^dim."""

    group: Group

    @property
    def dim(self) -> int:
        return self.group.dim

    def random(self, seed: int | torch.Generator = 0) -> Tensor:
        return torch.randint(0, 2, (self.dim,), generator=generator(seed))

    def act(self, params: Mapping[str, Tensor], flips: Tensor) -> dict[str, Tensor]:
        """Flip the signs of the units that `flips` names."""
        tensor_doors.tensors("params", params, self.group.shapes)
        tensor_doors.tensor("flips", flips, self.dim)
        if bool(((flips != 0) & (flips != 1)).any()):
            raise SpiritlevelError(f"flips are {self.dim} numbers 0 or 1")
        exponents = self.group.log_scales(flips.double())
        result = {}
        for name, tensor in params.items():
            signs = [1 - 2 * (term.round().abs() % 2) for term in exponents.get(name, ())]
            for sign in signs:
                tensor = tensor * sign.to(tensor)  # noqa: PLW2901
            result[name] = tensor if signs else tensor.clone()
        return result

    def inverse(self, flips: Tensor) -> Tensor:
        """Every flip undoes itself."""
        tensor_doors.tensor("flips", flips, self.dim)
        return flips.clone()

    def apply(self, objective: Objective, flips: Tensor) -> Objective:
        only_objectives(objective)
        return objective.at(self.act(objective.params, flips))


@set_apart()
def sign_flips(model: nn.Module | Objective, example: Any = None) -> Signs:
    """Units whose sign can be flipped: between linear maps and odd activations, f(-x) = -f(x)."""
    walk = Walk(signed=True)
    group = collected(walk, walked(walk, model, example, _rule))
    whole = [i for i in range(group.dim) if _whole(group, i)]
    return Signs(group.select(whole))


def _whole(group: Group, index: int) -> bool:
    return all(bool((p.exponents == p.exponents.round()).all()) for p in group.pieces(index))


def _rule(node: fx.Node, name: str) -> Rule | None:
    if name in ODD:
        return passes
    if name == "hardtanh":
        return _clipped
    if name in ("rnn_tanh", "rnn_tanh_cell"):
        return recurrent.rnn if name == "rnn_tanh" else recurrent.rnn_cell
    return RULES[name] if name in LINEAR else None


def _clipped(walk: Walk, self: Any, min_val: float, max_val: float) -> Scales:
    if min_val != -max_val:
        raise NotImplementedError
    return passes(walk, self)
