"""The worst loss near the point: in a ball or a box, also relative to each parameter."""

from __future__ import annotations

from torch import Tensor

from spiritlevel.base.estimate import Estimate
from spiritlevel.base.operator import scaled
from spiritlevel.measures.base import (
    BOTH_ENDS,
    DIAGONAL,
    DINH,
    PERMUTATION,
    TOP,
    Bottom,
    Measure,
    Work,
)
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.spectral import eigenpairs
from spiritlevel.witnesses.worst import RADIUS, worst_in_ball

ADAPTIVE_RADIUS = 0.5  # that of its adaptive form (Kwon et al., 2021)
BOX_RADIUS = 2e-3  # amid those of Andriushchenko et al. (2023), and twice that
ADAPTIVE_BOX_RADIUS = 4e-3


def eps_sharpness(instruments: Instruments, radius: float = RADIUS) -> Estimate:
    """max over ||d||_2 <= rho of (L(theta + d) - L) / (1 + L), a lower bound."""
    found = worst_in_ball(
        instruments.objective,
        radius,
        starts=instruments.extremes.vectors[:, :1],
        seed=instruments.seed,
    )
    return found.estimate(found.sharpness)


def eps_sharpness_box(instruments: Instruments, radius: float = BOX_RADIUS) -> Estimate:
    """max over |d_i| <= rho of (L(theta + d) - L) / (1 + L), a lower bound.

    rho ||grad L||_1 / (1 + L) to first order; ascent along the signs of the gradient.
    """
    found = worst_in_ball(
        instruments.objective,
        radius,
        norm="linf",
        starts=instruments.extremes.vectors[:, :1],
        seed=instruments.seed,
    )
    return found.estimate(found.sharpness)


def quadratic_factor(objective: Objective, radius: float = RADIUS) -> float:
    """rho^2 / (2 (1 + L)): what lambda_max is multiplied by."""
    return radius**2 / (2 * (1 + objective.value()))


def eps_sharpness_quadratic(instruments: Instruments, radius: float = RADIUS) -> Estimate:
    """rho^2 lambda_max / (2 (1 + L)), the eps-sharpness to second order at a minimum."""
    top = max(instruments.extremes.values, key=lambda end: end.value)
    factor = quadratic_factor(instruments.objective, radius)
    return Estimate(
        factor * max(top.value, 0.0),
        residual=factor * top.error,
        matvecs=top.matvecs,
        seconds=top.seconds,
        status=top.status,
        remedy=top.remedy,
    )


def adaptive_worst(instruments: Instruments, radius: float = ADAPTIVE_RADIUS) -> Estimate:
    """max over ||d / |theta| ||_2 <= rho of L(theta + d) - L, a lower bound (Kwon et al., 2021).

    Without the eta that Kwon et al. add to |theta|, which would break the invariance: weights that
    are zero stay zero.
    """
    return worst_relative(instruments, instruments.objective.vector.abs(), radius)


def adaptive_box(instruments: Instruments, radius: float = ADAPTIVE_BOX_RADIUS) -> Estimate:
    """max over |d_i| <= rho |theta_i| of L(theta + d) - L, a lower bound.

    Andriushchenko et al. (2023), on all the data instead of batches of 128.
    """
    size = instruments.objective.vector.abs()
    return worst_relative(instruments, size, radius, norm="linf")


def worst_relative(
    instruments: Instruments, scale: Tensor, radius: float, norm: str = "l2"
) -> Estimate:
    """max over ||u|| <= rho of L(theta + s * u) - L, also from where it curves most."""
    top = eigenpairs(scaled(instruments.hessian, scale), tol=0.05, seed=instruments.seed)
    found = worst_in_ball(
        instruments.objective,
        radius,
        norm=norm,
        scale=scale,
        starts=top.vectors,
        seed=instruments.seed,
    )
    return found.estimate(found.rise)


ENTRIES: dict[str, Measure] = {
    "eps_sharpness": Measure(
        eps_sharpness,
        title="eps-sharpness",
        family="worst case",
        invariances=PERMUTATION,
        reference=DINH,
        cost="about 40 gradients",
        is_sharpness=True,
        work=Work(gradients=40),
    ),
    "eps_sharpness_box": Measure(
        eps_sharpness_box,
        title="eps-sharpness in a box",
        family="worst case",
        invariances=PERMUTATION,
        reference="Andriushchenko et al. (2023)",
        cost="about 40 gradients",
        is_sharpness=True,
        work=Work(gradients=40, products=50),
    ),
    "eps_sharpness_quadratic": Measure(
        eps_sharpness_quadratic,
        title="eps-sharpness, order 2",
        family="worst case",
        invariances=PERMUTATION,
        reference=DINH,
        cost=TOP,
        shares="extremes",
        ends=2,
        is_sharpness=True,
        bottom=Bottom("spectral", factor=quadratic_factor, signed=True),
        work=BOTH_ENDS,
    ),
    "adaptive_worst": Measure(
        adaptive_worst,
        title="adaptive worst case",
        family="worst case",
        invariances=DIAGONAL,
        reference="Kwon et al. (2021)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50),
    ),
    "adaptive_box": Measure(
        adaptive_box,
        title="adaptive box",
        family="worst case",
        invariances=DIAGONAL,
        reference="Andriushchenko et al. (2023)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50, products=12),
    ),
}
