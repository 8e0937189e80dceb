"""Several maps in one tensor, such as the queries, keys and values of an attention."""

from __future__ import annotations

import torch
from torch import Tensor

from spiritlevel.measures.instruments import Instruments
from spiritlevel.symmetry.group import added

DIGITS = 9  # decimals in which two log-scales of order one differ, if they do


def maps(instruments: Instruments) -> dict[str, Tensor]:
    """A number for each element of each parameter: which map of its tensor it belongs to.

    Those of one map are scaled alike by all rescalings of whole layers. Mostly a tensor is one map.
    """
    return instruments.once("maps", lambda: _maps(instruments))


def _maps(instruments: Instruments) -> dict[str, Tensor]:
    layers, found = instruments.group.layerwise(), {}
    # at random: what is scaled by other forms has other values
    scales = layers.log_scales(layers.random(0, 1.0))
    for name, shape in instruments.objective.shapes.items():
        values = added(scales.get(name, ())).round(decimals=DIGITS)
        numbers = values.unique(return_inverse=True)[1]
        found[name] = numbers.expand(shape).to(instruments.objective.device)
    return found


def sizes(value: Tensor, numbers: Tensor) -> Tensor:
    """The Frobenius norm of the piece that each element is in, pieces told by their numbers."""
    flat = numbers.reshape(-1)
    squares = torch.zeros(int(flat.max()) + 1, dtype=torch.float64, device=value.device)
    squares.index_add_(0, flat, value.reshape(-1).double().square())
    return squares.sqrt()[flat].to(value)
