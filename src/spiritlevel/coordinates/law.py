"""How the Hessian changes with the coordinates, the part of the gradient kept apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import jvp, vjp

from spiritlevel.base.operator import Operator
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import bijection
from spiritlevel.base.tensors import columns
from spiritlevel.coordinates.maps import Reparametrization
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective, only_objectives


@dataclass(frozen=True)
class HessianLaw:
    """H_eta = J' H J + sum_k (dL/dtheta_k) Hess g_k, in its two parts.

    `transported` is J' H J, all there is at a critical point; `of_gradient` is the rest, which is
    not small elsewhere; `objective` is in the coordinates eta, so that hessian(objective) is what
    the sum must be.
    """

    objective: Objective
    transported: Operator
    of_gradient: Operator

    @property
    def total(self) -> Operator:
        one, other = self.transported, self.of_gradient
        return replace(one, matvec=lambda v: one.matvec(v) + other.matvec(v), name="hessian by law")


@set_apart()
def hessian_law(objective: Objective, coordinates: Reparametrization) -> HessianLaw:
    """Both parts of the Hessian in other coordinates, by products at the given point.

    Dinh et al. (2017), section 5; they state it at critical points, where the second part is 0.
    """
    only_objectives(objective)
    bijection("coordinates", coordinates)
    there = objective.reparametrize(coordinates)
    eta, slope = there.vector, objective.gradient()
    plain = hessian(objective)

    def transported(v: Tensor) -> Tensor:
        pushed = jvp(coordinates.forward, (eta,), (v,))[1]
        return _pulled(coordinates, eta, plain @ pushed)

    def of_gradient(v: Tensor) -> Tensor:
        return jvp(lambda e: _pulled(coordinates, e, slope), (eta,), (v,))[1]

    def operator(product: Callable[[Tensor], Tensor], name: str) -> Operator:
        return replace(plain, matvec=_by_columns(product), name=name)

    return HessianLaw(
        there, operator(transported, "J' H J"), operator(of_gradient, "sum of dL/dtheta Hess g")
    )


def _pulled(coordinates: Reparametrization, eta: Tensor, vector: Tensor) -> Tensor:
    """J' x."""
    return vjp(coordinates.forward, eta)[1](vector)[0]  # type: ignore[operator]


def _by_columns(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def matvec(v: Tensor) -> Tensor:
        found = torch.stack([product(c) for c in columns(v)], dim=1)
        return found[:, 0] if v.ndim == 1 else found

    return matvec
