"""The spectral density by stochastic Lanczos quadrature, with a band."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spiritlevel.base.doors import function, number
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.interrupts import keeps_what_is_done
from spiritlevel.base.operator import Operator, only_operators
from spiritlevel.base.progress import bar
from spiritlevel.base.tensors import generator, rademacher
from spiritlevel.results.spectra import Spectra, Spectrum
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.spectral.probes import standard_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Density:
    """phi(x) = (1/size) sum_i delta(x - lambda_i), smoothed by a Gaussian of width `sigma`.

    Every probe gives one row of `nodes` and `weights` (a quadrature rule of the spectrum);
    `value` is the mean over the probes on `grid` and `stderr` its standard error, pointwise.
    """

    grid: Tensor
    value: Tensor
    stderr: Tensor
    nodes: Tensor
    weights: Tensor
    size: int
    sigma: float
    resolution: float
    matvecs: float
    seconds: float
    status: Status = Status.CONVERGED

    def count_below(self, threshold: float) -> Estimate:
        """How many eigenvalues lie below `threshold`; the error is that of `sum_over`."""
        number("threshold", threshold)
        return self.sum_over(high=threshold)

    def sum_over(
        self,
        of: Callable[[Tensor], Tensor] = torch.ones_like,
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> Estimate:
        """sum of f(lambda) over the eigenvalues between `low` and `high`, their number if f = 1.

        The error joins the spread over the probes with what cannot be placed to either side of an
        edge, times f there: half the weight of the node next to it, or of all within `resolution`.
        """
        function("of", of, "a tensor of eigenvalues")
        edges = {"low": low, "high": high}
        for name, edge in edges.items():
            if edge is not None:
                number(name, edge)
        given = [edge for edge in edges.values() if edge is not None]
        # of a matrix that is zero every eigenvalue is known, and on the right side of every edge
        blurred = given if self.resolution else []
        inside = (self.nodes > (-math.inf if low is None else low)).double()
        inside *= self.nodes < (math.inf if high is None else high)
        for edge in blurred:
            inside[(self.nodes - edge).abs() <= self.resolution] = 0.5
        sums = self.size * (self.weights * torch.where(inside > 0, inside * of(self.nodes), 0.0))
        jumps = [float(of(self.nodes.new_tensor([edge])).abs()) for edge in blurred]
        unsure = [self._unplaced(e) * jump for e, jump in zip(blurred, jumps, strict=True)]
        return Estimate(
            float(sums.sum(1).mean()),
            stderr=math.hypot(standard_error(sums.sum(1)), *unsure),
            matvecs=self.matvecs,
            seconds=self.seconds,
            status=self.status,
            remedy="" if self.status is Status.CONVERGED else "run again without interruption",
        )

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """A matplotlib figure with its band, also written to `path` (.svg, .pdf, .png)."""
        from spiritlevel.results.pictures import drawn

        return drawn(Spectra((spectrum_of(self, "density"),), {}), path)  # type: ignore[arg-type]

    def _unplaced(self, edge: float) -> float:
        """How many eigenvalues may lie to either side of it."""
        away = (self.nodes - edge).abs()
        nearest = self.weights.gather(1, away.argmin(1, keepdim=True)).mean()
        blurred = (self.weights * (away <= self.resolution)).sum(1).mean()
        return 0.5 * self.size * max(float(nearest), float(blurred))


def spectrum_of(found: Density, name: str, outliers: tuple[Estimate, ...] = ()) -> Spectrum:
    """The curve with its band as plain data; `outliers` are eigenvalues to be marked."""
    return Spectrum(
        name,
        tuple(found.grid.tolist()),
        tuple(found.value.tolist()),
        tuple(found.stderr.tolist()),
        outliers,
        found.size,
        found.sigma,
    )


def density(
    operator: Operator,
    *,
    probes: int = 8,
    steps: int = 60,
    points: int = 512,
    sigma: float | None = None,
    seed: int | torch.Generator = 0,
) -> Density:
    """Stochastic Lanczos quadrature: `probes` random vectors, `steps` products for each.

    `sigma` is the width of the smoothing, 1 % of the range if None. (Golub and Welsch, 1969;
    Ghorbani, Krishnan and Xiao, 2019)
    """
    only_operators(operator)
    number("probes", probes, 2, whole=True)  # a band needs two
    number("steps", steps, 1, whole=True)
    number("points", points, 1, whole=True)
    if sigma is not None:
        number("sigma", sigma, above=0)
    begin = time.perf_counter()
    steps = min(steps, operator.size)
    nodes, weights, status = _quadrature(operator, probes, steps, generator(seed))
    low, high = float(nodes.min()), float(nodes.max())
    width = sigma if sigma is not None else max(0.01 * (high - low), 1e-12 * max(abs(high), 1e-30))
    grid = torch.linspace(low - 4 * width, high + 4 * width, points, dtype=torch.float64)
    curves = _smoothed(grid, nodes, weights, width)
    return Density(
        grid=grid,
        value=curves.mean(1),
        stderr=curves.std(1) / len(nodes) ** 0.5,
        nodes=nodes,
        weights=weights,
        size=operator.size,
        sigma=width,
        resolution=resolution(operator) * float(nodes.abs().max()),
        matvecs=len(nodes) * steps * operator.cost,
        seconds=time.perf_counter() - begin,
        status=status,
    )


def _smoothed(grid: Tensor, nodes: Tensor, weights: Tensor, width: float) -> Tensor:
    """One curve per probe: a Gaussian at every node."""
    bumps = torch.exp(-0.5 * ((grid[:, None, None] - nodes) / width) ** 2)
    return (bumps * weights).sum(2) / (width * (2 * torch.pi) ** 0.5)


def _quadrature(
    operator: Operator, probes: int, steps: int, draws: torch.Generator
) -> tuple[Tensor, Tensor, Status]:
    """The nodes and weights of every probe; those that are done if it is interrupted."""
    like = torch.zeros((), dtype=operator.dtype, device=operator.device)
    rules: list[tuple[Tensor, Tensor]] = []
    operator.expect(probes * steps)
    status = Status.CONVERGED
    with bar(probes * steps, "density") as progress:
        try:
            for _ in range(probes):
                krylov = Krylov(operator, rademacher(operator.size, draws, like), steps, draws)
                while not krylov.full:
                    krylov.expand()
                    progress.update()
                values, vectors, _ = krylov.ritz()
                rules.append((values, vectors[0] ** 2))
        except KeyboardInterrupt:
            if not keeps_what_is_done() or len(rules) < 2:
                raise
            status = Status.INTERRUPTED
    nodes, weights = (torch.stack(column) for column in zip(*rules, strict=True))
    return nodes, weights, status


def negative_eigenvalues(
    operator: Operator,
    *,
    threshold: float = 0.0,
    probes: int = 8,
    steps: int = 60,
    seed: int | torch.Generator = 0,
) -> Estimate:
    """How many eigenvalues lie below -threshold, from the density.

    Rounding scatters zeros to both sides, so a threshold below the resolution is raised to it.
    """
    number("threshold", threshold, 0)  # it counts below its minus
    found = density(operator, probes=probes, steps=steps, seed=seed)
    return found.count_below(-max(threshold, 2 * found.resolution))


def resolution(operator: Operator) -> float:
    """Relative to the norm: how far apart two nodes must be to be told apart."""
    return max(operator.rounding or 0.0, 100 * torch.finfo(operator.dtype).eps)
