"""Curvature in a metric that changes with the units of measurement as curvature does."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.operator import Operator, scaled
from spiritlevel.base.progress import bar
from spiritlevel.base.tensors import generator, rademacher
from spiritlevel.curvature import ggn
from spiritlevel.measures.base import DIAGONAL, TWO, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.spectral import density, eigenpairs
from spiritlevel.spectral.probes import standard_error

DAMPING = 0.1
DENSE = 256  # parameters, for the whole matrix
PAIRS = 8  # leading directions of the metric that are taken out, and more that come with them
LOOKS = (16, 32, 64)  # probes after which the standard error is looked at
STEPS = 100  # of conjugate gradients or of a quadrature, at most
PRODUCTS = 1500  # after which no more probes are drawn
SOLVED = 1e-3  # relative error that the solutions may add
Form = tuple[float, float]  # a number, and how far it may be off


@dataclass
class Metric:
    """M = A + c I by its products, and the inverse by conjugate gradients.

    They are preconditioned by the same matrix with A cut down to the span of `basis` (columns,
    orthonormal), where it has the entries `values`. `products` counts those with A.
    """

    matrix: Operator
    damping: float
    basis: Tensor
    values: Tensor
    products: int = field(default=0)

    def solve(self, b: Tensor, enough: float) -> tuple[Tensor, float]:
        """x near M^-1 b, until ||b - M x|| <= enough; and that length."""
        x, r = torch.zeros_like(b), b.clone()
        z = self.rough(r)
        direction, slope = z, r @ z
        for _ in range(STEPS):
            if float(r.norm()) <= enough or not float(slope) > 0:
                break
            image = self._times(direction)
            step = slope / (direction @ image)
            x, r = x + step * direction, r - step * image
            z = self.rough(r)
            before, slope = slope, r @ z
            direction = z + (slope / before) * direction
        return x, float((b - self._times(x)).norm())

    def _times(self, v: Tensor) -> Tensor:
        self.products += 1
        return self.matrix @ v + self.damping * v

    def rough(self, v: Tensor) -> Tensor:
        """M^-1 v, if A were nothing beside the basis."""
        inner = self.basis.T @ v
        known = inner / (self.values + self.damping) - inner / self.damping
        return v / self.damping + self.basis @ known


def metric_of(matrix: Operator, damping: float, seed: int) -> Metric:
    """A + c I with the leading directions of A at hand."""
    top = eigenpairs(matrix, PAIRS, tol=0.1, relative_to="norm", seed=seed, leading=4 * PAIRS)
    basis = torch.linalg.qr(top.leading)[0]
    spent = int(top[0].matvecs / matrix.cost)
    return Metric(matrix, damping, basis, (top.leading * top.leading_images).sum(0), spent)


def relative_ggn(instruments: Instruments) -> Operator:
    """diag|theta| G diag|theta|: the Gauss-Newton matrix relative to each parameter."""

    def make() -> Operator:
        matrix = ggn(instruments.objective)
        if not matrix.psd:  # a diagonal is only found of a loss that is convex on the data
            _ = instruments.diagonal
        return scaled(matrix, instruments.objective.vector.abs())

    return instruments.once("relative_ggn", make)


def metric_trace(instruments: Instruments, damping: float = DAMPING) -> Estimate:
    """tr((G + c diag(1 / theta^2))^-1 H), G the Gauss-Newton matrix, c the damping.

    Kristiadi et al. (2023): a trace is invariant if its metric is transported too. diag(1/theta^2)
    is, unlike the identity, and makes the metric definite. Where H = G it counts directions.
    """
    begin, sizes = time.perf_counter(), instruments.objective.vector.abs()
    matrix = relative_ggn(instruments)
    if matrix.size <= DENSE:
        return _dense(instruments, damping)
    curves = scaled(instruments.hessian, sizes)
    metric = metric_of(matrix, damping, instruments.seed)
    taken = [_form(metric, curves, column) for column in metric.basis.unbind(1)]
    drawn: list[Form] = []
    draws, status = generator(instruments.seed), Status.BUDGET
    with bar(LOOKS[-1], "trace in a metric") as progress:
        while status is Status.BUDGET and _more(len(drawn), metric.products):
            z = rademacher(matrix.size, draws, sizes)
            z = z - metric.basis @ (metric.basis.T @ z)
            drawn.append(_form(metric, curves, z))
            progress.update()
            if len(drawn) in LOOKS:
                value, error = _summed(taken, drawn)
                status = Status.CONVERGED if error <= instruments.rtol * abs(value) else status
    value, error = _summed(taken, drawn)
    spent = metric.products * matrix.cost + (len(taken) + len(drawn)) * curves.cost
    return Estimate(
        value,
        stderr=error,
        matvecs=spent,
        seconds=time.perf_counter() - begin,
        status=status,
        remedy="" if status is Status.CONVERGED else "raise rtol, or accept the error",
    )


def _more(probes: int, products: float) -> bool:
    """Whether to draw another probe."""
    return probes < LOOKS[0] or (probes < LOOKS[-1] and products < PRODUCTS)


def _dense(instruments: Instruments, damping: float) -> Estimate:
    begin, sizes = time.perf_counter(), instruments.objective.vector.abs().double()
    metric = _whole(instruments).clone()
    metric.diagonal().add_(damping)
    solved = torch.linalg.solve(metric, sizes[:, None] * instruments.whole * sizes)
    return Estimate(
        float(solved.trace()), matvecs=2 * len(sizes), seconds=time.perf_counter() - begin
    )


def _whole(instruments: Instruments) -> Tensor:
    """The relative Gauss-Newton matrix itself."""
    matrix = relative_ggn(instruments)
    return instruments.once("relative_ggn, whole", lambda: matrix.dense().double())


def _form(metric: Metric, curves: Operator, v: Tensor) -> Form:
    """v'M^-1 B v, and how far it may be off: |r'M^-1 B v| <= ||r|| ||B v|| / c."""
    image = curves @ v
    reach = float(image.norm()) / metric.damping
    if not reach > 0:
        return 0.0, 0.0
    rough = abs(float(metric.rough(v) @ image))
    solution, residual = metric.solve(v, SOLVED * rough / reach)
    return float(solution.double() @ image.double()), residual * reach


def _summed(taken: list[Form], drawn: list[Form]) -> Form:
    """tr M^-1 B = sum over q of q'M^-1 B q + E z'P M^-1 B P z, P beside the q; and its error.

    The standard error of the probes, and what the solutions may be off.
    """
    samples = torch.tensor([value for value, _ in drawn], dtype=torch.float64)
    value = sum(value for value, _ in taken) + float(samples.mean())
    slack = sum(slack for _, slack in taken) + sum(slack for _, slack in drawn) / len(drawn)
    return value, standard_error(samples) + slack


def relative_log_determinant(instruments: Instruments, damping: float = DAMPING) -> Estimate:
    """log det(I + diag|theta| G diag|theta| / c), G the Gauss-Newton matrix, c the damping.

    A determinant that no rescaling changes, which is the aim of Tahmasebi et al. (2024): twice the
    volume, in logarithms, that the loss takes from relative perturbations of variance 1/c. By
    stochastic Lanczos quadrature, with as many steps as the largest eigenvalue asks for.
    """
    begin, matrix = time.perf_counter(), relative_ggn(instruments)
    if matrix.size <= DENSE:
        values = torch.linalg.eigvalsh(_whole(instruments)).clamp(min=0)
        spent = time.perf_counter() - begin
        return Estimate(float((values / damping).log1p().sum()), matvecs=matrix.size, seconds=spent)
    top = eigenpairs(matrix, tol=0.01, seed=instruments.seed, leading=0)[0]
    steps, slack = _quadrature_steps((top.value + top.error) / damping, matrix.size)
    draws, status = generator(instruments.seed), Status.BUDGET
    samples = torch.zeros(0, dtype=torch.float64)
    while status is Status.BUDGET and _more(len(samples), steps * len(samples)):
        found = density(matrix, probes=LOOKS[0], steps=steps, seed=draws)
        rises = (found.nodes.clamp(min=0) / damping).log1p()
        samples = torch.cat([samples, found.size * (found.weights * rises).sum(1).cpu()])
        if standard_error(samples) + slack <= instruments.rtol * float(samples.mean()):
            status = Status.CONVERGED
    return Estimate(
        float(samples.mean()),
        stderr=standard_error(samples) + slack,
        matvecs=top.matvecs + len(samples) * steps * matrix.cost,
        seconds=time.perf_counter() - begin,
        status=status,
        remedy="" if status is Status.CONVERGED else "raise rtol, or accept the error",
    )


def _quadrature_steps(ratio: float, size: int) -> tuple[int, float]:
    """How many steps a quadrature of log(1 + x) on [0, ratio] needs, and its error.

    With m nodes it is exact up to the degree 2m - 1, so its error is at most twice that of the
    Chebyshev series, whose terms are 2 q^k / k.
    """
    if ratio <= 0 or size <= STEPS:
        return size, 0.0
    z = 1 + 2 / ratio
    q = z - math.sqrt(z * z - 1)
    errors = [size * 2 * q ** (2 * m) / (m * (1 - q)) for m in range(1, STEPS + 1)]
    enough = SOLVED * math.log1p(ratio)
    steps = next((m for m, error in enumerate(errors, 1) if error <= enough), STEPS)
    return steps, errors[steps - 1]


ENTRIES: dict[str, Measure] = {
    "metric_trace": Measure(
        metric_trace,
        title="trace in a metric",
        family="curvature",
        invariances=DIAGONAL,
        reference="Kristiadi et al. (2023)",
        cost="100 to 500 products",
        points=TWO,
        work=Work(products=40, gauss_newton=200),
        reading="larger means more directions that curve",
    ),
    "relative_log_determinant": Measure(
        relative_log_determinant,
        title="relative log determinant",
        family="curvature",
        invariances=DIAGONAL,
        reference="after Tahmasebi et al. (2024)",
        cost="200 to 1000 products",
        is_sharpness=True,
        points=TWO,
        work=Work(gauss_newton=400),
    ),
}
