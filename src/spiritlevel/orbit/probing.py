"""Losses at perturbations that are as long, or in the same proportions, all along an orbit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from spiritlevel.base.operator import Operator
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.objective import Objective
from spiritlevel.orbit.cells import Array
from spiritlevel.orbit.classes import Classes, grid_of
from spiritlevel.orbit.proofs import Choice, Proof, chosen, row
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry import Group
from spiritlevel.witnesses.worst import BALLS, climb, finite

LOOSE = 0.05  # relative residual of an eigenvector to begin with
LADDER = (0.25, 0.5, 2.0, 4.0)  # radii beside the one that is asked for
STEPS = 6
NEARLY = 1 - 2.0**-20  # of the way to no unit at all, which is on no orbit of it
ALIKE = 1e-9  # relative: of lengths that are one
ROUNDED = 100  # eps: how much shorter than a radius a step is, so that rounding leaves it inside


def within(radius: float, objective: Objective) -> float:
    """A little less than a radius."""
    return radius * (1 - ROUNDED * torch.finfo(objective.dtype).eps)


@dataclass
class Tally:
    """What was looked at, in gradients and products."""

    passes: float = 0.0


@dataclass(frozen=True)
class Probed:
    """A perturbation within one class, its length, and by how much the loss rises there."""

    length: float
    rise: float
    step: Tensor


@dataclass
class Ways:
    """What was probed within one class of parameters."""

    objective: Objective
    places: Tensor
    tally: Tally
    noise: float = 0.0  # of products with the Hessian
    probed: list[Probed] = field(default_factory=list)

    def slope(self, u: Tensor) -> tuple[float, Tensor]:
        self.tally.passes += 1
        loss, there = self._at(u).value_and_gradient()
        return loss, there[self.places]

    def _at(self, u: Tensor) -> Objective:
        theta = self.objective.vector.clone()
        theta[self.places] += u
        return self.objective.at(theta)

    def begin(self, hessian: Operator, radius: float, seed: int) -> None:
        """Climb from both ends of the axis of most curvature and towards zeros, then go on."""
        here = self.objective.vector[self.places]
        axis = self._axis(hessian, seed)
        for start in (axis, -axis, -here):
            if float(start.norm()) > 0:
                self.climb(start, radius)
        if float(here.norm()) > 0:
            self.look(-here)
        if not self.probed:
            return
        best = max(self.probed, key=lambda p: p.rise)
        for factor in LADDER:
            self.look(best.step * (factor * radius / best.length))

    def climb(self, start: Tensor, radius: float) -> None:
        """The worst that a search from a direction meets within a radius."""
        base, radius = self.objective.value(), within(radius, self.objective)
        u = start * (radius / float(start.norm()))
        loss, u, _ = climb(self.slope, base, BALLS["l2"], u, radius, STEPS)
        self._keep(u, loss)

    def look(self, u: Tensor) -> None:
        self.tally.passes += 1
        self._keep(u, finite(self._at(u).value()))

    def _keep(self, u: Tensor, loss: float) -> None:
        rise, length = loss - self.objective.value(), float(u.double().norm())
        if math.isfinite(rise) and rise > 0 and length > 0:
            self.probed.append(Probed(length, rise, u))

    def _axis(self, hessian: Operator, seed: int) -> Tensor:
        """Where the Hessian of the class has its largest eigenvalue."""
        block = _block(hessian, self.places)
        return _top(block, self.noise, seed, self.tally).to(self.objective.vector)

    def shortest(self, level: float) -> Probed | None:
        """The shortest that was seen to raise the loss so far."""
        enough = (p for p in self.probed if p.rise >= level)
        return min(enough, key=lambda p: p.length, default=None)

    def step(self, level: float) -> Tensor:
        """The same among all parameters."""
        found, best = torch.zeros_like(self.objective.vector), self.shortest(level)
        assert best is not None
        found[self.places] = best.step
        return found

    def expected(self, level: float) -> float:
        """The same between and beyond what was seen, where a rise grows as the square."""
        best = self._best()
        rises, lengths = [math.log(p.rise) for p in best], [math.log(p.length) for p in best]
        wanted = math.log(level)
        inside = float(np.interp(wanted, rises, lengths))
        beyond = min(wanted - rises[0], 0.0) + max(wanted - rises[-1], 0.0)
        return math.exp(inside + beyond / 2)

    def near(self, length: float) -> list[Tensor]:
        """The steps of the best probes that are next to a length, on either side."""
        shorter = [p.step for p in self._best() if p.length <= length]
        longer = [p.step for p in self._best() if p.length > length]
        return [*shorter[-1:], *longer[:1]]

    def _best(self) -> list[Probed]:
        """Those that no shorter one surpasses, in order."""
        best: list[Probed] = []
        for p in sorted(self.probed, key=lambda p: (p.length, -p.rise)):
            if best and p.rise <= best[-1].rise:
                continue
            if best and p.length <= best[-1].length * (1 + ALIKE):  # shorter by rounding alone
                best.pop()
            best.append(p)
        return best


def _block(hessian: Operator, places: Tensor) -> Operator:
    """The rows and columns of a matrix that belong to some parameters."""

    def matvec(v: Tensor) -> Tensor:
        full = v.new_zeros((hessian.size, *v.shape[1:]))
        full[places] = v
        return hessian.matvec(full)[places]

    name = f"{hessian.name} of a class"
    return replace(hessian, size=len(places), matvec=matvec, spans={}, name=name)


def noise_of(hessian: Operator, seed: int, tally: Tally) -> float:
    """What rounding leaves in a product with one standard normal vector, where all is zero."""
    tally.passes += 1
    return ROUNDED * torch.finfo(hessian.dtype).eps * _spread(hessian, seed)[1]


def _spread(operator: Operator, seed: int) -> tuple[Tensor, float]:
    """A standard normal vector z, and ||A z||, whose mean square is that of ||A||_F."""
    like = torch.zeros((), dtype=operator.dtype, device=operator.device)
    z = gaussian((operator.size,), generator(seed), like)
    return z, float((operator @ z).double().norm())


def _top(part: Operator, noise: float, seed: int, tally: Tally) -> Tensor:
    """Where a part of the Hessian has its largest eigenvalue; anywhere where all is rounding."""
    if part.size == 1:
        return torch.ones(1, dtype=part.dtype, device=part.device)
    z, size = _spread(part, seed)
    tally.passes += 1
    if size <= noise:
        return z
    found = eigenpairs(part, tol=LOOSE, seed=seed)
    tally.passes += found[0].matvecs
    return found.vectors[:, 0]


@dataclass(frozen=True)
class Reach:
    """What can be reached within one length from every point of an orbit.

    Parameters that nothing moves, and units with a rescaling of their own: one whose weights no
    other moves, by exp(t) on one side and exp(-t) on the other, and no buffer, with norms a and b.
    To multiply what such a unit does by (1 + x)^2, x > -1, takes a length of (2 a b)^(1/2) |x| at
    most: where the norms are w >= 1 and 1 / w times (a b)^(1/2) one side becomes 1 + x / w times as
    large, and the other differs from itself by no more than |x w|, since (1 + x / w) (1 + x w) lies
    beyond (1 + x)^2. It also takes |(1 + x)^2 - 1| (a b)^(1/2) at most, by the smaller side alone.
    """

    objective: Objective
    fixed: Tensor  # places
    units: Array  # generators
    unit: Tensor  # of every parameter: its number in `units`, or their count
    side: Tensor  # of every parameter: 1, -1, or 0 where it belongs to none
    sizes: Tensor  # norms (units, 2) of both sides
    rows: tuple[csr_matrix, csr_matrix]  # of B, for one element of each side

    @property
    def free(self) -> int:
        return len(self.fixed)

    @property
    def size(self) -> int:
        return self.free + len(self.units)

    @property
    def scale(self) -> Tensor:
        """(2 a b)^(1/2) of every unit."""
        return (2 * self.sizes.prod(1)).sqrt()

    def step(self, x: Tensor) -> Tensor:
        """The perturbation here: x in its length, one number for each fixed parameter and unit."""
        theta = self.objective.vector
        share = torch.cat([x[self.free :] / self.scale.to(x), x.new_zeros(1)])
        found = theta * share[self.unit]
        found[self.fixed] = x[: self.free]
        return found

    def pull(self, slope: Tensor) -> Tensor:
        """The transpose of `step`."""
        sums = slope.new_zeros(len(self.units) + 1)
        sums.index_add_(0, self.unit, self.objective.vector * slope)
        return torch.cat([slope[self.fixed], sums[:-1] / self.scale.to(slope)])

    def inside(self, x: Tensor, radius: float) -> Tensor:
        """Into the ball, and no unit to zero: there a loss may jump that leads there smoothly."""
        least = -NEARLY * self.scale.to(x)
        x = torch.cat([x[: self.free], torch.maximum(x[self.free :], least)])
        return BALLS["l2"].inside(x, radius)

    def proof(self, x: Tensor, rise: float) -> Proof:
        """That this rise is met everywhere."""
        length = float(x[: self.free].double().norm())
        choices = [Choice(("what nothing moves",), ((),), (length,), (Fraction(1),))]
        shares = (x[self.free :] / self.scale.to(x)).double().tolist()
        for k, share in enumerate(shares):
            if not share:
                continue
            factor = min(math.sqrt(2) * abs(share), abs(share * (2 + share)))
            lengths = [factor * size for size in self.sizes[k].tolist()]
            found = chosen(
                [f"one side of rescaling {self.units[k]}", "the other"],
                [row(side, k) for side in self.rows],
                lengths,
            )
            assert found is not None
            choices.append(found)
        return Proof(tuple(choices), rise, (self.step(x),))

    def told(self, proof: Proof) -> bool:
        """Whether a proof's choices are those that its step takes, and no shorter."""
        [step], like = proof.steps, self.objective.vector
        x = torch.cat([step[self.fixed], (self._shares(step) * self.scale).to(like)])
        again, near = self.proof(x, proof.rise), ROUNDED * torch.finfo(like.dtype).eps
        apart = float((self.step(x) - step).double().norm())
        return (
            [c.rows for c in again.choices] == [c.rows for c in proof.choices]
            and apart <= near * again.length
            and all(
                a <= b * (1 + near)
                for new, old in zip(again.choices, proof.choices, strict=True)
                for a, b in zip(new.lengths, old.lengths, strict=True)
            )
        )

    def elsewhere(self, step: Tensor, t: Tensor, theta: Tensor) -> Tensor:
        """What does at log-scales t, where the parameters are theta, what a step does here."""
        x, zero = self._shares(step), torch.zeros(1, dtype=torch.float64)
        up, down = (self.sizes * torch.stack([t, -t], 1)[self.units].exp()).unbind(1)
        large = torch.maximum(up, down) / (up * down).sqrt()
        alone = (x * (2 + x)).abs() < math.sqrt(2) * x.abs()
        first = torch.where(alone, 0.0, x / large)  # less one, without which small x would be lost
        rest = (x * (2 + x) - first) / (1 + first)
        changes = [torch.where(big, first, rest) for big in (up >= down, up < down)]
        ups, downs = (torch.cat([c, zero]).to(theta)[self.unit] for c in changes)
        found = theta * torch.where(self.side > 0, ups, downs)
        found[self.fixed] = step[self.fixed]
        return found

    def _shares(self, step: Tensor) -> Tensor:
        """The x of every unit, from a step."""
        sums = torch.zeros(len(self.units) + 1, dtype=torch.float64)
        theta = self.objective.vector.double()
        sums.index_add_(0, self.unit.cpu(), (theta * step.double()).cpu())
        return sums[:-1] / self.sizes.square().sum(1)


def reach_of(objective: Objective, group: Group, classes: Classes) -> Reach:
    """Which rescalings have weights of their own, with an exponent of 1 on both sides."""
    grid, theta = grid_of(group, objective), objective.vector
    table = grid.exponents
    masses, (count, dim) = grid.gather(theta.double() ** 2), table.get_shape()
    alone = np.asarray(abs(table).sign().sum(axis=1)).reshape(-1) == 1
    plain = np.asarray(abs(table).sum(axis=1)).reshape(-1) == 1
    shared = abs(table).T @ (~(alone & plain)).astype(float) > 0
    if group.buffers:  # which would have to go along with the factors of a unit
        shared |= group.matrix(group.buffers).getnnz(axis=0) > 0
    up, down = csr_matrix(table.maximum(0)), csr_matrix((-table).maximum(0))
    squares = np.stack([up.T @ masses, down.T @ masses], 1)
    units = np.flatnonzero(~shared & (squares > 0).all(1))
    number = np.full(dim + 1, len(units))
    number[units] = np.arange(len(units))
    owner = np.full(count, dim)
    mine = np.flatnonzero(alone)
    owner[mine] = table[mine].indices
    unit = grid.spread(number[owner].astype(float), theta.double()).long()
    eye = csr_matrix((np.ones(len(units)), (np.arange(len(units)), units)), (len(units), grid.dim))
    sides = np.zeros(count)
    sides[mine] = np.sign(table[mine].data)
    side = grid.spread(sides, theta.double())
    sizes = torch.from_numpy(np.sqrt(squares[units]))
    fixed = classes.fixed.nonzero().flatten()
    return Reach(objective, fixed, units, unit, side, sizes, (eye, -eye))


def reached(
    reach: Reach, hessian: Operator, noise: float, radius: float, seed: int, tally: Tally
) -> Proof:
    """The worst of what can be reached everywhere that a search finds."""
    objective, base = reach.objective, reach.objective.value()
    radius = within(radius, objective)
    best, way = 0.0, objective.vector.new_zeros(reach.size)

    def slope(x: Tensor) -> tuple[float, Tensor]:
        tally.passes += 1
        loss, there = objective.at(objective.vector + reach.step(x)).value_and_gradient()
        return loss, reach.pull(there)

    ball = replace(BALLS["l2"], inside=reach.inside)
    for start in _starts(reach, hessian, noise, seed, tally):
        u = reach.inside(start * (radius / float(start.norm())), radius)
        loss, u, _ = climb(slope, base, ball, u, radius)
        if loss - base > best:
            best, way = loss - base, u
    return reach.proof(way, best)


def _starts(reach: Reach, hessian: Operator, noise: float, seed: int, tally: Tally) -> list[Tensor]:
    """Along the gradient, both ways along the most curvature, and towards no units at all."""
    like = reach.objective.vector
    axis = _top(_compressed(reach, hessian), noise, seed, tally).to(like)
    none = torch.cat([like.new_zeros(reach.free), -reach.scale.to(like)])
    starts = [reach.pull(reach.objective.gradient()), axis, -axis, none]
    return [start for start in starts if 0 < float(start.norm()) < math.inf]


def _compressed(reach: Reach, hessian: Operator) -> Operator:
    """M' H M, M the linear map from x to perturbations."""

    def one(v: Tensor) -> Tensor:
        return reach.pull(hessian.matvec(reach.step(v)))

    def matvec(v: Tensor) -> Tensor:
        return one(v) if v.ndim == 1 else torch.stack([one(c) for c in v.unbind(1)], 1)

    name = f"{hessian.name} of what is reached"
    return replace(hessian, size=reach.size, matvec=matvec, spans={}, name=name)
