"""Parameters that every rescaling scales alike, taken together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from spiritlevel.symmetry import Group

Array = NDArray[Any]


@dataclass(frozen=True)
class Cells:
    """Elements with one and the same row of B, parameter by parameter.

    A convolution has one cell for each pair of channels, whatever its taps. `exponents` is B with
    one row per cell; `gather` sums a flat vector over the cells.
    """

    shapes: dict[str, torch.Size]
    parts: dict[str, torch.Size]
    exponents: csr_matrix

    @property
    def dim(self) -> int:
        return int(self.exponents.shape[1])  # type: ignore[index]

    def gather(self, vector: Tensor) -> Array:
        """Sums over the cells; the last axis may hold several vectors."""
        found, start = [], 0
        for name, shape in self.shapes.items():
            piece = vector[start : start + shape.numel()].reshape((*shape, *vector.shape[1:]))
            kept = torch.Size([*self.parts[name], *vector.shape[1:]])
            found.append(piece.sum_to_size(kept).reshape((-1, *vector.shape[1:])).double().cpu())
            start += shape.numel()
        return torch.cat(found).numpy()

    def log_scales(self, t: Array) -> Array:
        return self.exponents @ t

    def spread(self, values: Array, like: Tensor) -> Tensor:
        """One number per cell as one per parameter, a flat vector."""
        found, start = [], 0
        for name, shape in self.shapes.items():
            part = self.parts[name]
            piece = torch.from_numpy(values[start : start + part.numel()]).reshape(part)
            found.append(piece.to(like).expand(shape).reshape(-1))
            start += part.numel()
        return torch.cat(found)


def cells(group: Group, shapes: Mapping[str, torch.Size]) -> Cells:
    """The cells of a group, for the parameters of an objective in order."""
    parts, rows = {}, []
    for name, shape in shapes.items():
        placed = group.placements.get(name, ())
        part = torch.broadcast_shapes(torch.Size([1] * len(shape)), *(i.shape for i in placed))
        row = csr_matrix((part.numel(), group.dim))
        for index in placed:
            row = row + group.forms[index.expand(part).reshape(-1).numpy()]
        parts[name] = part
        rows.append(row)
    return Cells(dict(shapes), parts, csr_matrix(vstack(rows)))
