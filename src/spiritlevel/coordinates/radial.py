"""Bijections that move points along rays from a centre, so that its curvature is what one likes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import tensor

NEWTON = 40


@dataclass(frozen=True, eq=False)
class Radial:
    """eta = c + psi(r) (theta - c) / r, the identity outside the ball of radius delta.

    psi(r) = rho r / r_hat up to r_hat, then (rho - delta)(r - delta) / (r_hat - delta) + delta up
    to delta. Its inverse is the same map with r_hat and rho swapped. At the centre
    H_eta = (r_hat / rho)^2 H (Dinh et al., 2017, supplement A).
    """

    center: Tensor
    r_hat: float
    delta: float
    rho: float

    def __post_init__(self) -> None:
        tensor("center", self.center, None)
        for name in ("r_hat", "delta", "rho"):
            number(name, getattr(self, name), above=0)
        if not 0 < self.r_hat < self.delta or not 0 < self.rho < self.delta:
            raise SpiritlevelError(
                "Radial needs radii 0 < r_hat < delta and 0 < rho < delta; got "
                f"r_hat={self.r_hat}, rho={self.rho}, delta={self.delta}"
            )

    @property
    def swapped(self) -> Radial:
        """The inverse as a map of its own."""
        return replace(self, r_hat=self.rho, rho=self.r_hat)

    def forward(self, eta: Tensor) -> Tensor:
        return self.swapped.inverse(eta)

    def inverse(self, theta: Tensor) -> Tensor:
        v, near, far, r = self._ray(theta)
        slope, lift = self._segment()
        factor = torch.where(near, self.rho / self.r_hat, slope + lift / r)
        return torch.where(far, theta, self.center.to(theta) + factor * v)

    def jacobian(self, eta: Tensor) -> Tensor:
        return self.swapped.inverse_jacobian(eta)

    def inverse_jacobian(self, theta: Tensor) -> Tensor:
        """d eta / d theta: (psi' + lift/r) I - (lift/r^3) v v' between the spheres.

        lift = delta (r_hat - rho) / (r_hat - delta). On the spheres, where psi has kinks, it is
        the derivative from within.
        """
        v, near, far, r = self._ray(theta)
        one = torch.eye(len(v), dtype=v.dtype, device=v.device)
        slope, lift = self._segment()
        between = (slope + lift / r) * one - (lift / r**3) * torch.outer(v, v)
        return torch.where(near, self.rho / self.r_hat * one, torch.where(far, one, between))

    def log_abs_det(self, eta: Tensor) -> Tensor:
        """log psi' + (n - 1) log(psi / r): one radial eigenvalue and n - 1 tangential ones."""
        other = self.swapped
        v, near, far, r = other._ray(eta)
        slope, lift = other._segment()
        n = len(v)
        log_near = n * torch.log(r.new_tensor(other.rho / other.r_hat))
        between = torch.log(r.new_tensor(slope)) + (n - 1) * torch.log(slope + lift / r)
        return torch.where(near, log_near, torch.where(far, torch.zeros_like(r), between))

    def _segment(self) -> tuple[float, float]:
        """psi(r) = slope r + lift between the spheres."""
        slope = (self.rho - self.delta) / (self.r_hat - self.delta)
        return slope, self.delta * (self.r_hat - self.rho) / (self.r_hat - self.delta)

    def _ray(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x - c; whether x is in the inner ball, or outside; its radius between the spheres.

        Elsewhere the radius is put to delta: the root has no derivative at the centre, and what
        is not selected must not send NaN backwards.
        """
        v = x - self.center.to(x)
        square = (v * v).sum()
        near, far = square <= self.r_hat**2, square > self.delta**2
        return v, near, far, torch.where(near | far, self.delta**2, square).sqrt()


@dataclass(frozen=True, eq=False)
class Power:
    """eta = (|theta - c|^2 + b)^a (theta - c), a > -1/2, b >= 0; smooth for b > 0.

    At the centre H_eta = b^(-2a) H. With b = 0 the same minimum becomes a kink (a = 1/2) or
    quartic (a = -1/4) in eta (Dinh et al., 2017, section 5).
    """

    center: Tensor
    a: float
    b: float = 0.1

    def __post_init__(self) -> None:
        tensor("center", self.center, None)
        number("a", self.a)
        number("b", self.b, 0)
        if not self.a > -0.5 or not self.b >= 0:
            raise SpiritlevelError(
                f"Power is a bijection for a > -1/2 and b >= 0; got a={self.a}, b={self.b}"
            )

    def inverse(self, theta: Tensor) -> Tensor:
        v = theta - self.center.to(theta)
        return self._factor((v * v).sum(), self.a) * v

    def forward(self, eta: Tensor) -> Tensor:
        return self.center.to(eta) + self._factor(self._square(eta), -self.a) * eta

    def jacobian(self, eta: Tensor) -> Tensor:
        """The inverse of w^a (I + (2a/w) v v'), w = |v|^2 + b, by Sherman and Morrison."""
        v = self.forward(eta) - self.center.to(eta)
        w = (v * v).sum() + self.b
        one = torch.eye(len(v), dtype=v.dtype, device=v.device)
        bent = 2 * self.a / (w + 2 * self.a * (w - self.b))
        return w**-self.a * (one - bent * torch.outer(v, v))

    def log_abs_det(self, eta: Tensor) -> Tensor:
        v = self.forward(eta) - self.center.to(eta)
        w = (v * v).sum() + self.b
        return -len(v) * self.a * w.log() - torch.log(1 + 2 * self.a * (w - self.b) / w)

    def _factor(self, square: Tensor, power: float) -> Tensor:
        """(|v|^2 + b)^power; 1 at the centre if b = 0, where v is 0 anyway."""
        w = square + self.b
        return torch.where(w > 0, torch.where(w > 0, w, 1.0) ** power, 1.0)

    def _square(self, eta: Tensor) -> Tensor:
        """The q = |theta - c|^2 with q (q + b)^(2a) = |eta|^2.

        Newton in log q, where the slope lies between 1 and 1 + 2a; then two more steps in q, which
        change no digit but carry the first three derivatives.
        """
        p = (eta * eta).sum()
        some = p > 0
        if self.b == 0:
            return torch.where(some, torch.where(some, p, 1.0) ** (1 / (1 + 2 * self.a)), 0.0)
        target = torch.where(some, p, 1.0).detach().log()
        y = target.clone()
        for _ in range(NEWTON):
            q = y.exp()
            slope = 1 + 2 * self.a * q / (q + self.b)
            y = y - (y + 2 * self.a * (q + self.b).log() - target) / slope
        q = torch.where(some, y.exp(), 0.0).detach()
        for _ in range(2):
            w = q + self.b
            slope = w ** (2 * self.a - 1) * (w + 2 * self.a * q)
            q = q - (q * w ** (2 * self.a) - p) / slope
        return q
