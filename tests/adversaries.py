"""Matrices with a known spectrum that mislead whoever looks for its ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

import spiritlevel as sl
from spiritlevel.base.operator import Operator
from spiritlevel.spectral import Which

Spectrum = Callable[[int, torch.Generator], Tensor]
SIZES = (30, 60, 120, 400, 1500)


def uniform(draws: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=draws, dtype=torch.float64))


def logarithmic(draws: torch.Generator, low: float, high: float) -> float:
    return 10 ** uniform(draws, low, high)


def bulk(n: int, draws: torch.Generator) -> Tensor:
    return torch.rand(n, generator=draws, dtype=torch.float64)


def tiny_gap(n: int, draws: torch.Generator) -> Tensor:
    """The second eigenvalue is as good as the first, but for 1e-4 to 0.3 of it."""
    values = 0.3 * bulk(n, draws)
    values[0], values[1] = 1.0, 1.0 - logarithmic(draws, -4, -0.5)
    return values


def many_seconds(n: int, draws: torch.Generator) -> Tensor:
    """One eigenvalue just above a heap of equal ones, which a random start is full of."""
    values = torch.full((n,), 1.0, dtype=torch.float64)
    values[: n // 5] = 0.0
    values[-1] = 1.0 + logarithmic(draws, -3, -0.5)
    return values


def clusters(n: int, draws: torch.Generator) -> Tensor:
    centres = torch.randn(6, generator=draws, dtype=torch.float64)
    places = torch.randint(0, 6, (n,), generator=draws)
    width = logarithmic(draws, -6, -2)
    return centres[places] + width * torch.randn(n, generator=draws, dtype=torch.float64)


def repeated(n: int, draws: torch.Generator) -> Tensor:
    """Few distinct values; the extremes one to five times."""
    count = int(torch.randint(1, 6, (), generator=draws))
    values = 0.5 * bulk(n, draws)
    values[:count], values[count : count + 3] = 1.0, 1.0 - logarithmic(draws, -3, -0.3)
    values[-count:] = -logarithmic(draws, -3, 0)
    return values


def both_signs(n: int, draws: torch.Generator) -> Tensor:
    """Ends that are alike in size but for 1e-4 to 0.3 of it."""
    values = bulk(n, draws) - 0.5
    values[0], values[1] = (
        1.0,
        -1.0 - (2 * (uniform(draws) > 0.5) - 1) * logarithmic(draws, -4, -0.5),
    )
    return values


def near_zero_end(n: int, draws: torch.Generator) -> Tensor:
    """Outliers above, a dense heap at zero, its lower end a little below or above it."""
    values = 10 ** (-6 * bulk(n, draws))
    values[:8] = torch.arange(1, 9, dtype=torch.float64) * 3
    values -= logarithmic(draws, -5, -1) * (uniform(draws) > 0.5)
    return values


def like_a_network(n: int, draws: torch.Generator) -> Tensor:
    """Outliers, a heap at zero, and a few eigenvalues a little below it."""
    values = 1e-3 * torch.randn(n, generator=draws, dtype=torch.float64)
    values[:8] = torch.arange(1, 9, dtype=torch.float64) * 3
    values[8:20] = -0.04 * bulk(12, draws)
    return values


def small_negative_outlier(n: int, draws: torch.Generator) -> Tensor:
    values = 0.1 * bulk(n, draws) ** 4
    values[0], values[1] = 10.0, -logarithmic(draws, -3, 0)
    return values


def huge_range(n: int, draws: torch.Generator) -> Tensor:
    signs = torch.where(bulk(n, draws) > 0.2, 1.0, -1.0)
    return signs * 10 ** (12 * bulk(n, draws) - 6)


def semicircle(n: int, draws: torch.Generator) -> Tensor:
    """The eigenvalues of a random symmetric matrix: a bulk with sparse edges."""
    noise = torch.randn(n, n, generator=draws, dtype=torch.float64) / n**0.5
    return torch.linalg.eigvalsh(noise + noise.T)


def heavy_edge(n: int, draws: torch.Generator) -> Tensor:
    """Eigenvalues crowd at both ends like those of a chain of springs."""
    return torch.cos(torch.pi * bulk(n, draws)) + logarithmic(draws, -2, 0)


def low_rank(n: int, draws: torch.Generator) -> Tensor:
    values = torch.zeros(n, dtype=torch.float64)
    rank = int(torch.randint(1, 8, (), generator=draws))
    values[:rank] = torch.randn(rank, generator=draws, dtype=torch.float64)
    return values


def just_beyond(n: int, draws: torch.Generator) -> Tensor:
    """One eigenvalue beyond a dense edge."""
    values = bulk(n, draws)
    values[0] = 1.0 + logarithmic(draws, -3, -0.5)
    values[1] = -logarithmic(draws, -4, -1)
    return values


SPECTRA: tuple[Spectrum, ...] = (
    tiny_gap,
    many_seconds,
    clusters,
    repeated,
    both_signs,
    near_zero_end,
    like_a_network,
    small_negative_outlier,
    huge_range,
    semicircle,
    heavy_edge,
    low_rank,
    just_beyond,
)


@dataclass(frozen=True)
class Case:
    """A matrix, the question, and the true eigenvalues in rising order."""

    name: str
    operator: Operator
    truth: Tensor
    k: int
    which: Which
    start: Tensor | None
    seed: int

    def extremes(self) -> Tensor:
        """What should be found."""
        if self.which == "magnitude":
            order = self.truth.abs().argsort(descending=True)[: self.k]
            return self.truth[order]
        top, low = self.truth.flip(0)[: self.k], self.truth[: self.k].flip(0)
        return {"largest": top, "smallest": low, "both": torch.cat([top, low])}[self.which]


def reflected(values: Tensor, draws: torch.Generator, dtype: torch.dtype) -> Operator:
    """Q diag(values) Q, with Q a reflection at a random plane: no coordinate is an eigenvector."""
    normal = torch.randn(len(values), generator=draws, dtype=torch.float64)
    u = (normal / normal.norm()).to(dtype)
    d = values.to(dtype)

    def reflect(v: Tensor) -> Tensor:
        return v - 2 * torch.outer(u, u @ v) if v.ndim == 2 else v - 2 * u * (u @ v)

    def matvec(v: Tensor) -> Tensor:
        inner = reflect(v)
        return reflect(d[:, None] * inner if v.ndim == 2 else d * inner)

    return Operator(len(values), dtype, torch.device("cpu"), matvec)


def cases(count: int) -> Iterator[Case]:
    """The same ones every time."""
    for seed in range(count):
        draws = torch.Generator().manual_seed(seed)
        spectrum = SPECTRA[seed % len(SPECTRA)]
        n = SIZES[int(torch.randint(0, len(SIZES), (), generator=draws))]
        n = min(n, 400) if spectrum is semicircle else n
        values = spectrum(n, draws) * logarithmic(draws, -3, 3)
        dtype = (torch.float64, torch.float32)[int(torch.randint(0, 2, (), generator=draws))]
        values = values.to(dtype).double()
        which = get_args(Which)[int(torch.randint(0, 4, (), generator=draws))]
        k = int(torch.randint(1, 5, (), generator=draws))
        kind = int(torch.randint(0, 4, (), generator=draws))
        start = None
        if kind == 0:
            operator = sl.from_matrix(torch.diag(values.to(dtype)))
            start = torch.eye(n, dtype=dtype)[:, int(values.abs().argsort()[n - 2])]
        else:
            operator = reflected(values, draws, dtype)
        yield Case(spectrum.__name__, operator, values.sort().values, k, which, start, seed)
