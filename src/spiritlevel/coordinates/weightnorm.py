"""Weight normalization as a bijection: lengths and directions of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import a, names
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import tensor
from spiritlevel.coordinates.maps import dense_jacobian
from spiritlevel.objective import Objective, only_objectives


@dataclass(frozen=True, eq=False)
class WeightNorm:
    """w = g v / |v| for some rows w of the parameters (Salimans and Kingma, 2016).

    The length of v changes nothing, so it is fixed: v = (1, u) in coordinates whose first axis is
    the row at `center`. A row (g, u) has as many numbers as w, and g carries the sign, so this is a
    bijection of all rows that are not orthogonal to where they started. At the centre u = 0 and
    curvature along directions is multiplied by g^2, along lengths by 1.

    `blocks` are (start, rows, width) in the flat vector; what they leave out stays as it is.
    """

    center: Tensor
    blocks: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        tensor("center", self.center, None)
        a("blocks", self.blocks, (tuple, list), "a tuple of (start, rows, width)")
        for block in self.blocks or [None]:
            _refuse_block(block, len(self.center))
        for start, rows, width in self.blocks:
            lengths = self.center[start : start + rows * width].view(rows, width).norm(dim=1)
            if not bool((lengths > 0).all()):
                raise SpiritlevelError(
                    "WeightNorm needs rows that have a direction; some are zero: leave them out"
                )

    def forward(self, eta: Tensor) -> Tensor:
        return self._on_rows(eta, _from_polar)

    def inverse(self, theta: Tensor) -> Tensor:
        return self._on_rows(theta, _to_polar)

    def jacobian(self, eta: Tensor) -> Tensor:
        return dense_jacobian(self.forward, eta)

    def log_abs_det(self, eta: Tensor) -> Tensor:
        """sum over rows of (m - 1) log |g| - (m / 2) log(1 + |u|^2), m the width."""
        total = torch.zeros((), dtype=eta.dtype, device=eta.device)
        for start, rows, width in self.blocks:
            block = eta[start : start + rows * width].view(rows, width)
            spread = (1 + block[:, 1:].square().sum(1)).log()
            total = total + ((width - 1) * block[:, 0].abs().log() - width / 2 * spread).sum()
        return total

    def _on_rows(self, vector: Tensor, action: Callable[..., Tensor]) -> Tensor:
        pieces, end = [], 0
        for start, rows, width in self.blocks:
            stop = start + rows * width
            mirror = _mirror(self.center[start:stop].view(rows, width).to(vector))
            pieces += [vector[end:start], action(vector[start:stop].view(rows, width), *mirror)]
            end = stop
        return torch.cat([piece.reshape(-1) for piece in [*pieces, vector[end:]]])


def _refuse_block(block: Any, size: int) -> None:
    whole = isinstance(block, (tuple, list)) and len(block) == 3
    if not whole or not all(isinstance(n, int) and n >= 0 for n in block):
        raise SpiritlevelError(f"blocks holds {block!r}; give (start, rows, width), whole numbers")
    if not 0 < block[1] * block[2] <= size - block[0]:
        raise SpiritlevelError(f"blocks holds {block!r}; give rows that lie in a vector of {size}")


def weight_norm(objective: Objective, params: str | Sequence[str] = "*.weight") -> WeightNorm:
    """The map for the matrices of an objective whose names match, one row per output unit."""
    only_objectives(objective)
    patterns = names("params", params)
    chosen = [
        (objective.spans[name].start, shape[0], shape.numel() // shape[0])
        for name, shape in objective.shapes.items()
        if len(shape) > 1 and any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if not chosen:
        raise SpiritlevelError(
            f"params={params!r} matches no matrix; there are: {', '.join(objective.shapes)}"
        )
    return WeightNorm(objective.vector, tuple(chosen))


def _mirror(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors h and signs s: x -> s (x - 2 h h'x) swaps each row's axis with the first."""
    unit = rows / rows.norm(dim=1, keepdim=True)
    sign = torch.where(unit[:, :1] >= 0, 1.0, -1.0).to(rows)
    h = unit.clone()
    h[:, :1] += sign
    return h / h.norm(dim=1, keepdim=True), -sign


def _turned(x: Tensor, h: Tensor, sign: Tensor) -> Tensor:
    return sign * (x - 2 * h * (h * x).sum(1, keepdim=True))


def _from_polar(rows: Tensor, h: Tensor, sign: Tensor) -> Tensor:
    g, u = rows[:, :1], rows[:, 1:]
    v = torch.cat([torch.ones_like(g), u], dim=1)
    return _turned(g * v / (1 + u.square().sum(1, keepdim=True)).sqrt(), h, sign)


def _to_polar(rows: Tensor, h: Tensor, sign: Tensor) -> Tensor:
    z = _turned(rows, h, sign)
    if not bool((z[:, 0] != 0).all()):
        raise SpiritlevelError("a row is orthogonal to where WeightNorm started: no such point")
    g = z[:, :1].sign() * z.norm(dim=1, keepdim=True)
    return torch.cat([g, z[:, 1:] / z[:, :1]], dim=1)
