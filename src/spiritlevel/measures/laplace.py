"""The quadratic that touches the loss, under a Gaussian: in closed form."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.tensors import generator
from spiritlevel.measures.base import PERMUTATION, Measure, Work
from spiritlevel.measures.entropy import GAMMA
from spiritlevel.measures.instruments import Instruments
from spiritlevel.spectral import density
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.spectral.probes import standard_error

PROBES, LANCZOS = 12, 16
MORE, NUMBERS = 8, 2**28  # times as many steps for the gradient, and numbers that they may hold
SCALE, SMALLEST = 1.0, 1e-100


def local_entropy_laplace(
    instruments: Instruments, gamma: float = GAMMA, probes: int = PROBES, steps: int = LANCZOS
) -> Estimate:
    """n/2 log 2pi - L - log det(H + gamma I) / 2 + g' (H + gamma I)^-1 g / 2, g the gradient.

    The local entropy of the quadratic that touches the loss (Chaudhari et al., 2017).
    The determinant by stochastic Lanczos quadrature, exactly where the Hessian is small.
    """
    begin, objective = time.perf_counter(), instruments.objective
    found = _quadratic(instruments, gamma, probes, steps, instruments.gradient)
    constant = objective.size / 2 * math.log(2 * math.pi / gamma) - objective.value()
    return found.estimate(instruments, constant, 0.5, begin, "give a larger gamma=")


def determinant_sharpness(
    instruments: Instruments, scale: float = SCALE, probes: int = PROBES, steps: int = LANCZOS
) -> Estimate:
    """log det(I + s^2 H) = -2 log E exp(-x' H x / 2) over x ~ N(0, s^2 I).

    Of the class of Tahmasebi et al. (2024), phi(integral of psi(x' H x / 2) dmu(x)), with psi(t) =
    exp(-t). Lebesgue's measure for mu gives det H, which is 0 at every minimum with a flat
    direction, such as a rescaling; the Gaussian gives s^2 tr H where s is small, and log det H but
    for a constant where it is large. The integral diverges where H has an eigenvalue of -1 / s^2 or
    less, which is refused.
    """
    begin = time.perf_counter()
    if not SMALLEST <= scale <= 1 / SMALLEST:
        raise SpiritlevelError(f"scale={scale:g}: give one from {SMALLEST:g} to {1 / SMALLEST:g}")
    found = _quadratic(instruments, scale**-2, probes, steps, None)
    return found.estimate(instruments, 0.0, -1.0, begin, "give a smaller scale=")


def _quadratic(
    instruments: Instruments, gamma: float, probes: int, steps: int, slope: Tensor | None
) -> _Quadratic:
    """Exactly where the Hessian is small."""
    if instruments.hessian.size <= probes * steps:
        return _dense(instruments.whole, slope, gamma)
    return _quadrature(instruments, gamma, max(probes, 2), steps, slope)


@dataclass(frozen=True)
class _Quadratic:
    """log det(I + H / gamma) with its error, and g' (H + gamma I)^-1 g."""

    log_det: float
    form: float
    stderr: float = 0.0
    products: float = 0.0
    coarse: bool = False  # the steps err by more than the probes

    def estimate(
        self, instruments: Instruments, constant: float, factor: float, begin: float, wider: str
    ) -> Estimate:
        """constant + factor * (form - log det)."""
        found = Estimate(
            constant + factor * (self.form - self.log_det),
            stderr=abs(factor) * self.stderr if self.products else None,
            matvecs=self.products * instruments.hessian.cost,
            seconds=time.perf_counter() - begin,
            status=Status.CONVERGED if self.products else Status.EXACT,
        )
        if self.coarse:
            return replace(found, status=Status.BUDGET, remedy=f"raise steps=, or {wider}")
        if found.error > instruments.rtol * abs(found.value):
            return replace(found, status=Status.BUDGET, remedy="raise probes= or rtol")
        return found


def _dense(hessian: Tensor, slope: Tensor | None, gamma: float) -> _Quadratic:
    values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
    _refuse_saddle(float(values[0]), gamma)
    log_det = float((values / gamma).log1p().sum())
    if slope is None:
        return _Quadratic(log_det, 0.0)
    form = (vectors.T @ slope.double().cpu()).square() / (values + gamma)
    return _Quadratic(log_det, float(form.sum()))


def _quadrature(
    instruments: Instruments, gamma: float, probes: int, steps: int, slope: Tensor | None
) -> _Quadratic:
    operator = instruments.hessian
    ends = instruments.extremes.values
    low, high = ends[-1].value - ends[-1].error, ends[0].value + ends[0].error
    _refuse_saddle(low, gamma)
    rule = density(operator, probes=probes, steps=steps, points=1, seed=instruments.seed)
    terms = operator.size * (rule.weights * (rule.nodes / gamma).log1p()).sum(1)
    # what more Lanczos steps would change falls by this power of the root of the condition number
    root = math.sqrt((gamma + high) / (gamma + low))
    cut = 2 * operator.size * math.log(root) * ((root - 1) / (root + 1)) ** (2 * steps)
    spread = standard_error(terms)
    form, width, rounding, taken = 0.0, 0.0, 0.0, 0
    if slope is not None:
        form, width, rounding, taken = _form(instruments, slope, gamma, steps, spread, (low, high))
    return _Quadratic(
        log_det=float(terms.mean()),
        form=form,
        stderr=math.hypot(spread, cut, width, rounding),
        products=probes * steps + taken,
        coarse=max(cut, width) > spread,
    )


def _form(
    instruments: Instruments,
    slope: Tensor,
    gamma: float,
    steps: int,
    enough: float,
    ends: tuple[float, float],
) -> tuple[float, float, float, int]:
    """g' (H + gamma I)^-1 g, how far off it may be, its rounding error, and how many steps it took.

    It is x' g + r' (H + gamma I)^-1 r, x of the Krylov space of g and r = g - (H + gamma I) x.
    The second term lies between ||r||^2 over the ends of H + gamma I: its middle is added, half of
    the range is the error. Steps are taken until that is `enough`, as far as memory allows.
    """
    operator = instruments.hessian
    if float(slope.norm()) == 0:
        return 0.0, 0.0, 0.0, 0
    square = _square(slope)
    most = max(steps, min(MORE * steps, NUMBERS // operator.size))
    krylov = Krylov(operator, slope, most, generator(instruments.seed))
    while True:
        krylov.expand()
        if krylov.length % steps and not krylov.full:
            continue
        values, coordinates, _ = krylov.ritz()
        shares = coordinates[0] / (values + gamma)
        form = square * float((coordinates[0] * shares).sum())
        m, known = krylov.length, krylov.length + krylov.pending
        rest = krylov.coefficients[m:known, :m] @ (coordinates @ shares)
        least, largest = (square * _square(rest) / (gamma + end) for end in reversed(ends))
        if krylov.full or (largest - least) / 2 <= enough:
            width, rounding = (largest - least) / 2, krylov.rounding * form
            return form + (least + largest) / 2, width, rounding, m


def _square(vector: Tensor) -> float:
    return float(vector.double().square().sum())


def _refuse_saddle(lowest: float, gamma: float) -> None:
    if lowest <= -gamma:
        raise SpiritlevelError(
            f"H + {gamma:g} I is not positive definite: an eigenvalue of H may be {lowest:.3g}; "
            "give a larger gamma= (a smaller scale=), or use local_entropy, without a quadratic"
        )


ENTRIES: dict[str, Measure] = {
    "local_entropy_laplace": Measure(
        local_entropy_laplace,
        title="local entropy, order 2",
        family="entropy",
        invariances=PERMUTATION,
        reference="Chaudhari et al. (2017)",
        cost="210 products",
        shares="extremes",
        ends=2,
        work=Work(products=260),
        reading="larger means more room around the point",
    ),
    "determinant_sharpness": Measure(
        determinant_sharpness,
        title="determinant sharpness",
        family="curvature",
        invariances=PERMUTATION,
        reference="Tahmasebi et al. (2024)",
        cost="210 products",
        shares="extremes",
        ends=2,
        is_sharpness=True,
        work=Work(products=240),
    ),
}
