"""The weight matrices of a network, in order, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import is_parametrized

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective import Objective

PARTS = ("query", "key", "value")  # what torch's attention holds in one matrix
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)  # their gains may have two axes


@dataclass(frozen=True)
class Weight:
    """One linear map: its values, (out, in) or (out, in, *window), and the layer that holds it."""

    name: str
    layer: str
    values: Tensor

    @property
    def matrix(self) -> Tensor:
        """(out, all the rest) in float64: a convolution's kernel with its window in a row."""
        return self.values.double().reshape(len(self.values), -1)

    def minus(self, other: Weight) -> Weight:
        return replace(self, values=self.values.double() - other.values.double())


def weights_of(objective: Objective, params: Mapping[str, Tensor] | None = None) -> list[Weight]:
    """All weight matrices among the chosen parameters, at the point or at `params`.

    They are the parameters of two dimensions or more: those of linear layers, convolutions,
    recurrent layers (their gates together), attention (queries, keys and values apart), and
    embeddings, which are linear maps of one-hot vectors. Tied ones are there once; a token of the
    shape (1, 1, width) is a vector, and so are biases and gains.
    """
    refuse_derived(objective)
    point = objective.params if params is None else params
    found = [weight for name in objective.shapes for weight in _weights(objective, name, point)]
    if not found:
        raise SpiritlevelError(
            "there is no weight matrix among the chosen parameters "
            f"({', '.join(objective.shapes)}); choose some with params="
        )
    return found


def matrices_of(objective: Objective) -> list[str]:
    """The names of the parameters that are weight matrices or kernels."""
    return list(dict.fromkeys(weight.name.partition("[")[0] for weight in weights_of(objective)))


def refuse_derived(objective: Objective) -> None:
    """Weights that are made of other parameters are none of their own."""
    for name, module in objective.module.named_modules():
        own = module._parameters.keys()
        hooked = {"weight_g", "weight_v"} <= own or any(key.endswith("_orig") for key in own)
        if is_parametrized(module) or hooked:
            raise SpiritlevelError(
                f"the weights of {name or 'the model'} are made of other parameters; make them "
                "plain ones (torch.nn.utils.parametrize.remove_parametrizations, prune.remove)"
            )


def _weights(objective: Objective, name: str, point: Mapping[str, Tensor]) -> list[Weight]:
    layer, _, own = name.rpartition(".")
    module, values = objective.module.get_submodule(layer), point[name].detach()
    if isinstance(module, NORMS):
        return []
    if values.ndim > 2 and not isinstance(module, nn.modules.conv._ConvNd):
        values = values.squeeze()  # a table that is added to a batch
    if values.ndim < 2:
        return []
    if isinstance(module, nn.MultiheadAttention) and own == "in_proj_weight":
        pieces = zip(PARTS, values.chunk(3), strict=True)
        return [Weight(f"{name}[{part}]", layer, piece) for part, piece in pieces]
    return [Weight(name, layer, values)]
