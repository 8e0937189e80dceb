"""Traces, diagonals and norms from random probes, stopped by the standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor

from spiritlevel.base.doors import number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.interrupts import keeps_what_is_done
from spiritlevel.base.operator import SKEW, Operator, not_symmetric, only_operators
from spiritlevel.base.progress import bar
from spiritlevel.base.tensors import gaussian, generator, rademacher

MIN_PROBES = 24
EXACT_SIZE = 2 * MIN_PROBES
# Looking after every probe would stop too early too often: a small standard error is often luck.
LOOKS = 1.5
Quantity = Literal["trace", "frobenius"]


@dataclass(frozen=True)
class Probes:
    """What random signs z saw of A, and what was taken out exactly beforehand.

    With Q orthonormal and P = I - QQ': tr A = tr Q'AQ + E z'PAPz and
    ||A||_F^2 = ||AQ||_F^2 + E ||APz||^2. The rows of `blocks` are z'PAPz split by coordinates.
    All of it is unbiased whatever Q is; a good Q takes the variance away (Meyer et al., 2021).
    """

    taken_blocks: Tensor
    taken_square: float
    blocks: Tensor
    squares: Tensor
    names: tuple[str, ...]
    matvecs: float
    seconds: float
    status: Status
    remedy: str = ""

    @property
    def quadratic(self) -> Tensor:
        return self.blocks.sum(1)

    def trace(self) -> Estimate:
        """tr A, with the standard error of the mean over the probes."""
        return self._mean(self.quadratic, float(self.taken_blocks.sum()))

    def block_traces(self, group: Callable[[str], str] = str) -> dict[str, Estimate]:
        """The trace of every diagonal block, from the same products; `group` joins names."""
        members: dict[str, list[int]] = {}
        for i, name in enumerate(self.names):
            members.setdefault(group(name), []).append(i)
        return {
            name: self._mean(self.blocks[:, where].sum(1), float(self.taken_blocks[where].sum()))
            for name, where in members.items()
        }

    def frobenius(self) -> Estimate:
        """||A||_F, with the delta method for the square root."""
        square = self._mean(self.squares, self.taken_square)
        value = max(square.value, 0.0) ** 0.5
        stderr = None if square.stderr is None else square.stderr / (2 * value) if value else 0.0
        return self._estimate(value, stderr)

    def effective_rank(self, trace: float | None = None) -> Estimate:
        """(tr A)^2 / ||A||_F^2: how many equal eigenvalues would give these two numbers.

        `trace` is tr A, where it is known exactly.
        """

        def ratio(quadratic: Tensor, square: Tensor) -> Tensor:
            total = square + self.taken_square
            sum_of_all = quadratic + self.taken_blocks.sum() if trace is None else trace
            return sum_of_all**2 / total.clamp(min=1e-300)

        value = float(ratio(self.quadratic.mean(), self.squares.mean()))
        n = len(self.squares)
        if self.status is Status.EXACT:
            return self._estimate(value, None)
        left_out = ratio(
            (self.quadratic.sum() - self.quadratic) / (n - 1),
            (self.squares.sum() - self.squares) / (n - 1),
        )
        # the jackknife: n - 1 times as wide as the spread of the values with one probe left out
        return self._estimate(value, (n - 1) * standard_error(left_out))

    def _mean(self, samples: Tensor, taken: float) -> Estimate:
        if self.status is Status.EXACT:
            return self._estimate(taken, None)
        return self._estimate(taken + float(samples.mean()), standard_error(samples))

    def _estimate(self, value: float, stderr: float | None) -> Estimate:
        return Estimate(
            value,
            stderr=stderr,
            matvecs=self.matvecs,
            seconds=self.seconds,
            status=self.status,
            remedy=self.remedy,
        )


Stop = Callable[[Probes], bool]


def standard_error(samples: Tensor) -> float:
    """Of the mean; widened by Student's t for few samples, so that ± 2 covers 95 %."""
    n = len(samples)
    return float(samples.std() / n**0.5) * student(n)


def student(n: int) -> float:
    """Student's t over the normal's, at 95 % and n samples."""
    return float(stdtrit(n - 1, 0.975) / ndtri(0.975))


def probe(
    operator: Operator,
    *,
    stop: Stop,
    budget: int = 200,
    least: int = MIN_PROBES,
    deflate: Tensor | None = None,
    images: Tensor | None = None,
    blocks: Mapping[str, slice] | None = None,
    seed: int | torch.Generator = 0,
) -> Probes:
    """Products with random signs until `stop` is content or `budget` products are spent.

    `stop` is first asked after `least` probes. `deflate` (columns, any basis) is taken out exactly
    before; where its `images` under A are known, no products are spent on it. A small matrix is
    multiplied with the unit vectors instead: the result is then exact.
    """
    only_operators(operator)
    number("budget", budget, whole=True)
    if operator.size <= min(EXACT_SIZE, budget):
        deflate = torch.eye(operator.size, dtype=operator.dtype, device=operator.device)
        images = None
    operator.expect(min(least, budget))
    tally = _Tally(operator, deflate, images, blocks, generator(seed))
    if tally.exact:
        return tally.result(Status.EXACT)
    if budget < tally.products + 2:
        raise SpiritlevelError(
            f"budget={budget}: at least {tally.products + 2} products are needed here"
        )
    try:
        found = _drawn(tally, stop, budget, least)
    except KeyboardInterrupt:
        if not keeps_what_is_done() or len(tally.squares) < 2:
            raise
        return tally.result(Status.INTERRUPTED, "run again, or accept the error")
    return found or tally.result(Status.BUDGET, "raise budget or rtol")


def _drawn(tally: _Tally, stop: Stop, budget: int, look: int) -> Probes | None:
    """Draw until a look at the probes is enough, or until the budget is spent."""
    with bar(budget, "probes") as progress:
        while tally.products < budget:
            tally.draw()
            progress.update()
            if len(tally.squares) < look:
                continue
            look = int(look * LOOKS) + 1
            if stop(found := tally.result(Status.CONVERGED)):
                return found
    return found if stop(found := tally.result(Status.CONVERGED)) else None


class _Tally:
    """What the probes have seen so far."""

    def __init__(
        self,
        operator: Operator,
        deflate: Tensor | None,
        images: Tensor | None,
        blocks: Mapping[str, slice] | None,
        draws: torch.Generator,
    ) -> None:
        self.begin = time.perf_counter()
        self.operator, self.draws = operator, draws
        self.spans = dict(blocks) if blocks else {"all": slice(0, operator.size)}
        self.basis, self.image = _orthonormal(operator, deflate, images)
        self.known = 0 if images is None else self.basis.shape[1]
        self.split: list[Tensor] = []
        self.squares: list[float] = []
        self.last: tuple[Tensor, Tensor] | None = None
        self.skew_squares = 0.0

    @property
    def products(self) -> int:
        return self.basis.shape[1] - self.known + len(self.squares)

    @property
    def exact(self) -> bool:
        """Whether nothing is left for chance."""
        return self.basis.shape[1] == self.operator.size

    def draw(self) -> None:
        z = rademacher(self.operator.size, self.draws, self.image)
        z -= self.basis @ (self.basis.T @ z)
        w = self.operator @ z
        self.split.append(self._by_block(z * w))
        self.squares.append(float(w.double().square().sum()))
        self._compare(z, w)

    def _compare(self, z: Tensor, w: Tensor) -> None:
        """(z'Ay - y'Az)^2 is ||A - A'||^2 on average, as ||Az||^2 is ||A||^2."""
        if self.last is not None:
            y, image = self.last
            self.skew_squares += float((z * image - y * w).double().sum()) ** 2
        self.last = z, w

    def result(self, status: Status, remedy: str = "") -> Probes:
        self._check_symmetry()
        nothing = torch.zeros(1, len(self.spans), dtype=torch.float64, device="cpu")
        return Probes(
            taken_blocks=self._by_block((self.basis * self.image).sum(1)),
            taken_square=float(self.image.double().square().sum()),
            blocks=torch.stack(self.split) if self.split else nothing,
            squares=torch.tensor(self.squares or [0.0], dtype=torch.float64, device="cpu"),
            names=tuple(self.spans),
            matvecs=self.products * self.operator.cost,
            seconds=time.perf_counter() - self.begin,
            status=status,
            remedy=remedy,
        )

    def _check_symmetry(self) -> None:
        """Relative to all of A: what is left after deflation may be rounding alone."""
        inner = (self.basis.T @ self.image).double()
        taken = float(self.image.double().square().sum())
        count = max(len(self.squares), 1)
        skew = float((inner - inner.T).square().sum()) + self.skew_squares / count
        skewness = (skew / (taken + sum(self.squares) / count or 1.0)) ** 0.5
        if skewness > SKEW:
            raise not_symmetric(self.operator, skewness)

    def _by_block(self, terms: Tensor) -> Tensor:
        return torch.stack([terms[span].double().sum() for span in self.spans.values()]).cpu()


def within(rtol: float, *quantities: Quantity) -> Stop:
    """Stop when the standard error of every quantity is at most rtol times its value."""

    def stop(probes: Probes) -> bool:
        found = [getattr(probes, name)() for name in quantities]
        return all((e.stderr or 0.0) <= rtol * abs(e.value) for e in found)

    return stop


def trace(
    operator: Operator,
    *,
    method: Literal["hutchinson", "hutch++"] = "hutchinson",
    rtol: float = 0.05,
    budget: int = 200,
    sketch: int = 8,
    seed: int | torch.Generator = 0,
) -> Estimate:
    """tr A by random signs (Hutchinson, 1989), after a sketch of the range for Hutch++."""
    one_of("method", method, ("hutchinson", "hutch++"))
    _checked(operator, rtol, budget, sketch)
    draws = generator(seed)
    basis, spent = None, 0
    if method == "hutch++":
        basis, spent = _sketch(operator, sketch, draws)
    found = probe(
        operator, stop=within(rtol, "trace"), budget=budget - spent, deflate=basis, seed=draws
    ).trace()
    return _with_cost(found, spent * operator.cost)


def frobenius(
    operator: Operator,
    *,
    rtol: float = 0.05,
    budget: int = 200,
    sketch: int = 8,
    seed: int | torch.Generator = 0,
) -> Estimate:
    """||A||_F = (E ||Az||^2)^(1/2), after a sketch that takes the leading directions out."""
    _checked(operator, rtol, budget, sketch)
    draws = generator(seed)
    basis, spent = _sketch(operator, sketch, draws)
    found = probe(
        operator, stop=within(rtol, "frobenius"), budget=budget - spent, deflate=basis, seed=draws
    ).frobenius()
    return _with_cost(found, spent * operator.cost)


def _checked(operator: Operator, rtol: float, budget: int, sketch: int) -> None:
    only_operators(operator)
    number("rtol", rtol, 0)
    number("budget", budget, 1, whole=True)
    number("sketch", sketch, 0, whole=True)


@dataclass(frozen=True)
class Diagonal:
    """The diagonal of A and the standard error of every entry."""

    value: Tensor
    stderr: Tensor
    matvecs: float
    seconds: float
    status: Status


def diagonal(
    operator: Operator, *, probes: int = 64, sketch: int = 0, seed: int | torch.Generator = 0
) -> Diagonal:
    """diag A = E z * Az with random signs (Bekas et al., 2007); exact from `size` probes on."""
    only_operators(operator)
    number("probes", probes, 2, whole=True)  # an error needs two
    number("sketch", sketch, 0, whole=True)
    begin, draws = time.perf_counter(), generator(seed)
    if probes >= operator.size:
        exact = operator.dense().diagonal()
        elapsed = time.perf_counter() - begin
        cost = operator.size * operator.cost
        return Diagonal(exact, torch.zeros_like(exact), cost, elapsed, Status.EXACT)
    basis, spent = _sketch(operator, sketch, draws)
    basis, image = _orthonormal(operator, basis)
    mean = torch.zeros(operator.size, dtype=torch.float64, device=operator.device)
    scatter = torch.zeros_like(mean)
    with bar(probes, "diagonal") as progress:
        for i in range(1, probes + 1):  # Welford: no row of samples is kept
            z = rademacher(operator.size, draws, image)
            z -= basis @ (basis.T @ z)
            sample = (z * (operator @ z)).double()
            step = sample - mean
            mean += step / i
            scatter += step * (sample - mean)
            progress.update()
    mean += (basis * image).sum(1).double()
    stderr = (scatter / (probes - 1) / probes).sqrt() * student(probes)
    cost = (spent + basis.shape[1] + probes) * operator.cost
    return Diagonal(mean, stderr, cost, time.perf_counter() - begin, Status.CONVERGED)


def _orthonormal(
    operator: Operator, columns: Tensor | None, images: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of the columns and its image under A."""
    if columns is None or columns.shape[1] == 0:
        nothing = torch.zeros(operator.size, 0, dtype=operator.dtype, device=operator.device)
        return nothing, nothing
    basis, mix = torch.linalg.qr(columns.to(dtype=operator.dtype, device=operator.device))
    if images is not None:  # A Q = A X R^-1
        return basis, torch.linalg.solve_triangular(mix, images.to(basis), upper=True, left=False)
    return basis, operator @ basis


def _sketch(operator: Operator, k: int, draws: torch.Generator) -> tuple[Tensor, int]:
    """The image of k random vectors, where the large eigenvalues dominate."""
    k = min(k, operator.size)
    like = torch.zeros((), dtype=operator.dtype, device=operator.device)
    if k == 0:
        return like.new_zeros(operator.size, 0), 0
    return operator @ gaussian((operator.size, k), draws, like), k


def _with_cost(estimate: Estimate, extra: float) -> Estimate:
    return Estimate(**{**vars(estimate), "matvecs": estimate.matvecs + extra})
