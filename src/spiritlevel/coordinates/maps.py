"""What a reparametrization is, and the plain ones: linear, diagonal, composed, a user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.func import jacrev

from spiritlevel.base.doors import a, function, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import bijection, seeded, tensor
from spiritlevel.base.tensors import gaussian, generator

AGREES = 1e-6  # relative, there and back


class Reparametrization(Protocol):
    """A bijection g of R^n: theta = g(eta) on flat vectors, differentiable both ways."""

    def forward(self, eta: Tensor, /) -> Tensor:
        """g(eta); torch differentiates it twice."""
        ...

    def inverse(self, theta: Tensor, /) -> Tensor:
        """The eta with g(eta) = theta."""
        ...

    def jacobian(self, eta: Tensor, /) -> Tensor:
        """J = dg/deta, the whole matrix."""
        ...

    def log_abs_det(self, eta: Tensor, /) -> Tensor:
        """log |det J|: by how much g changes volumes."""
        ...


@dataclass(frozen=True, eq=False)
class Linear:
    """theta = A eta."""

    matrix: Tensor

    def __post_init__(self) -> None:
        tensor("matrix", self.matrix, None, None)
        shape = tuple(self.matrix.shape)
        if shape[0] != shape[1]:
            raise SpiritlevelError(f"Linear needs a square matrix; got shape {shape}")
        if not float(torch.linalg.cond(self.matrix.double())) < 1 / torch.finfo(torch.float64).eps:
            raise SpiritlevelError("Linear needs a matrix with an inverse; this one has none")

    def forward(self, eta: Tensor) -> Tensor:
        return self.matrix.to(eta) @ eta

    def inverse(self, theta: Tensor) -> Tensor:
        return torch.linalg.solve(self.matrix.to(theta), theta)

    def jacobian(self, eta: Tensor) -> Tensor:
        return self.matrix.to(eta)

    def log_abs_det(self, eta: Tensor) -> Tensor:
        return torch.linalg.slogdet(self.matrix.to(eta))[1]


@dataclass(frozen=True, eq=False)
class Diagonal:
    """theta = d * eta, one factor for each parameter."""

    factors: Tensor

    def __post_init__(self) -> None:
        tensor("factors", self.factors, None)
        if not bool((self.factors != 0).all()):
            raise SpiritlevelError("Diagonal needs a flat vector of finite factors, none of them 0")

    def forward(self, eta: Tensor) -> Tensor:
        return self.factors.to(eta) * eta

    def inverse(self, theta: Tensor) -> Tensor:
        return theta / self.factors.to(theta)

    def jacobian(self, eta: Tensor) -> Tensor:
        return self.factors.to(eta).diag()

    def log_abs_det(self, eta: Tensor) -> Tensor:
        return self.factors.to(eta).abs().log().sum()


@dataclass(frozen=True, eq=False)
class Chain:
    """g = g_1 o g_2 o ...: the last of the parts is nearest to eta."""

    parts: tuple[Reparametrization, ...]

    def __post_init__(self) -> None:
        a("parts", self.parts, (tuple, list), "a tuple of maps of spiritlevel.coordinates")
        if not self.parts:
            raise SpiritlevelError(
                "parts is empty; give one map of spiritlevel.coordinates or more"
            )
        for part in self.parts:
            bijection("parts", part)

    def forward(self, eta: Tensor) -> Tensor:
        for part in reversed(self.parts):
            eta = part.forward(eta)
        return eta

    def inverse(self, theta: Tensor) -> Tensor:
        for part in self.parts:
            theta = part.inverse(theta)
        return theta

    def jacobian(self, eta: Tensor) -> Tensor:
        whole = torch.eye(len(eta), dtype=eta.dtype, device=eta.device)
        for part in reversed(self.parts):
            whole, eta = part.jacobian(eta) @ whole, part.forward(eta)
        return whole

    def log_abs_det(self, eta: Tensor) -> Tensor:
        total = torch.zeros((), dtype=eta.dtype, device=eta.device)
        for part in reversed(self.parts):
            total, eta = total + part.log_abs_det(eta), part.forward(eta)
        return total


@dataclass(frozen=True, eq=False)
class Custom:
    """A user's own bijection, tried out on samples around `near`, there and back.

    `near` is a point in eta; samples are normal around it with the standard deviation `spread`.
    """

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    near: Tensor
    spread: float = 1.0
    samples: int = 16
    seed: int = 0

    @set_apart()
    def __post_init__(self) -> None:
        function("forward", self.forward, "a flat vector eta")
        function("inverse", self.inverse, "a flat vector theta")
        tensor("near", self.near, None)
        number("spread", self.spread, 0)
        number("samples", self.samples, 1, whole=True)
        seeded(self.seed)
        draws = generator(self.seed)
        for _ in range(self.samples):
            eta = self.near + self.spread * gaussian(tuple(self.near.shape), draws, self.near)
            _there_and_back(self.forward, self.inverse, eta, "inverse(forward(eta)) is not eta")
            theta = self.forward(eta)
            _there_and_back(
                self.inverse, self.forward, theta, "forward(inverse(theta)) is not theta"
            )

    def jacobian(self, eta: Tensor) -> Tensor:
        return dense_jacobian(self.forward, eta)

    def log_abs_det(self, eta: Tensor) -> Tensor:
        return torch.linalg.slogdet(self.jacobian(eta))[1]


def dense_jacobian(forward: Callable[[Tensor], Tensor], eta: Tensor) -> Tensor:
    """dg/deta by reverse mode, for maps without a closed form."""
    return jacrev(forward)(eta)  # type: ignore[return-value]


def _there_and_back(
    there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], x: Tensor, fault: str
) -> None:
    image = there(x)
    if image.shape != x.shape:
        raise SpiritlevelError(
            f"a reparametrization keeps the number of parameters: {tuple(x.shape)} became "
            f"{tuple(image.shape)}"
        )
    gap = float((back(image) - x).abs().max())
    if not gap <= AGREES * float(1 + x.abs().max()):  # also where it is no number
        raise SpiritlevelError(
            f"this map is no bijection: {fault} (off by {gap:.2g} at a sample); mend the inverse, "
            "or sample where the map is defined (near=, spread=)"
        )
