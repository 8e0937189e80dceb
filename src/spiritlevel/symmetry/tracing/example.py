"""An input to try a model with, where the user gives none."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import fixed_rng
from spiritlevel.base.tensors import generator
from spiritlevel.objective.loss.base import call
from spiritlevel.objective.loss.heads import predictions

SIDES = (32, 28, 224, 64, 96, 128, 256, 299)
TOKENS = 6


def guessed(model: nn.Module) -> Any:
    """The first input that the model takes among those that its first layer suggests."""
    for candidate in _candidates(model):
        try:
            with torch.no_grad(), fixed_rng(0):
                predictions(call(model, candidate))
        except Exception:  # a wrong guess may fail in any way
            continue
        return candidate
    raise SpiritlevelError(
        "no example input was given and none could be guessed from the first layer: pass "
        "example=, a tensor, a tuple of arguments or a dict of named ones"
    )


def _candidates(model: nn.Module) -> list[Any]:
    found: list[Any] = []
    noise = partial(torch.randn, generator=generator(0), dtype=torch.float32, device="cpu")
    embedded = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    tokens = torch.arange(2 * TOKENS).reshape(2, TOKENS)
    if hasattr(model, "config") and embedded is not None:
        ids = tokens % embedded.num_embeddings
        found += [{"input_ids": ids, "use_cache": False}, {"input_ids": ids}]
    for layer in model.modules():
        if isinstance(layer, nn.Embedding):
            found.append(tokens % layer.num_embeddings)
        elif isinstance(layer, nn.Linear):
            width = layer.in_features
            found += [noise(2, width), noise(2, TOKENS, width)]
            side = round(width**0.5)
            found += [noise(2, 1, side, side)] if side * side == width else []
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            dims = len(layer.kernel_size)
            sides = SIDES if dims < 3 else (16, 32, 64)
            found += [noise(2, layer.in_channels, *[s] * dims) for s in sides]
        elif isinstance(layer, nn.RNNBase):
            found.append(noise(2, TOKENS, layer.input_size))
        elif isinstance(layer, nn.TransformerEncoderLayer):
            width = layer.linear1.in_features
            found.append(noise(2, TOKENS, width))
        else:
            continue
        break
    return found
