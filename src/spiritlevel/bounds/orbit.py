"""The least divergence from a prior over the rescalings that change no prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from spiritlevel.base.doors import a, number
from spiritlevel.base.errors import ChangedError, SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.bounds.envelope import Sum, below, descended, merged
from spiritlevel.bounds.gaussian import Gaussian, divergence
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.cells import Array, cells
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.gaps import refuse_changed

CLOSED = 1e-6  # relative gap: no point of the orbit is better by more
SHUT = 1e-10  # relative gap with which no other start is tried
ALTERNATIONS = 50
DRAWS = 3  # networks whose predictions are compared before a point is handed out
RANGE = 1e300  # of squares over the prior's, in float64


@dataclass(frozen=True)
class LeastDivergence:
    """The posterior at the point of its orbit where the divergence is least that was found.

    `plain` is the divergence where it was; none on the whole orbit is below `lower_bound`.
    """

    t: Tensor
    posterior: Gaussian
    kl: float
    plain: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """What a better point of the orbit could still save, in nats."""
        return self.kl - self.lower_bound

    @property
    def least(self) -> bool:
        """Whether no point of the orbit is better by more than a millionth."""
        return self.gap <= CLOSED * max(self.kl, 1.0)

    @property
    def certificate(self) -> str:
        """What is known of it, in words."""
        head = f"{self.kl:.6g} nats, from {self.plain:.6g}"
        if self.least:
            return f"{head}: the least of the orbit, which has none below {self.lower_bound:.6g}"
        return (
            f"{head}: the least that was found; none of the orbit is below {self.lower_bound:.6g}"
        )

    def __str__(self) -> str:
        return self.certificate


@dataclass(frozen=True)
class OnGrid:
    """The least divergence for the best prior of a grid that was found, and that prior's place.

    `total` is the divergence and the cost of the prior; the bound of `least` is for this prior.
    """

    least: LeastDivergence
    prior: Gaussian
    index: int
    total: float


def least_divergence(
    posterior: Gaussian, prior: Gaussian, group: Group, shapes: Mapping[str, torch.Size]
) -> LeastDivergence:
    """min over t of KL(exp(B t) Q, P), Q = N(w, diag s^2), P = N(w0, diag p^2).

    With x = B t it is sum ((s^2 + w^2) e^{2x} - 2 w w0 e^x) / (2 p^2) - x + constant: convex where
    w w0 <= 0. Newton's method on the convex envelope, then on the sum itself from there, from the
    best of each unit alone and from t = 0. The bound is Lagrange's dual (`envelope.below`). Where
    KL <= K every |x| is at most K + 1 + |log(s / p)|, as (e^{2z} - 1) / 2 - z >= |z| - 1 for
    z = x + log(s / p): so a minimum is reached. After Rouchouse et al. (2025).
    """
    _asked(posterior, prior, group, shapes)
    plain = divergence(posterior, prior)
    stay = LeastDivergence(group.identity(), posterior, plain, plain, plain)
    total = _sum(posterior, prior, group, shapes)
    if not total.exponents.nnz:
        return stay
    reach = plain + 1 + float((posterior.spread.double() / prior.spread).log().abs().max())
    found, bound = _searched(total, reach)
    t = torch.from_numpy(found)
    moved = posterior.scaled(group.flat_factors(t, shapes))
    kl = divergence(moved, prior)
    if not kl < plain:  # at the minimum already, but for the rounding of the factors
        return LeastDivergence(stay.t, posterior, plain, plain, min(bound, plain))
    return LeastDivergence(t, moved, kl, plain, min(bound, kl))


def least_on_grid(
    posterior: Gaussian,
    centre: Tensor,
    scales: Sequence[float],
    group: Group,
    shapes: Mapping[str, torch.Size],
    *,
    cost: Callable[[int], float] = lambda index: 0.0,
    start: int | None = None,
) -> OnGrid:
    """min over t and j of KL(exp(B t) Q, N(centre, scales[j]^2 I)) + cost(j), in turn.

    `scales` are standard deviations fixed before the data, `cost` what the union over them adds in
    nats. Every turn lowers the sum, or ends it; `start` is the place to begin at.
    """
    index = best_place(posterior, centre, scales, cost) if start is None else start
    found: OnGrid | None = None
    here, t = posterior, group.identity()
    for _ in range(ALTERNATIONS):
        prior = Gaussian(centre, torch.full_like(centre, float(scales[index])))
        least = least_divergence(here, prior, group, shapes)
        total = least.kl + cost(index)
        if found is not None and not total < found.total:
            break
        t, here = t + least.t, least.posterior
        told = LeastDivergence(t, here, least.kl, divergence(posterior, prior), least.lower_bound)
        found = OnGrid(told, prior, index, total)
        index = best_place(here, centre, scales, cost)
        if index == found.index:
            break
    assert found is not None
    return found


def best_place(
    posterior: Gaussian,
    centre: Tensor,
    scales: Sequence[float],
    cost: Callable[[int], float] = lambda index: 0.0,
) -> int:
    """argmin over j of KL(Q, N(centre, p_j^2 I)) + cost(j): of S / (2 p^2) + d log p + cost."""
    if not len(scales):
        raise SpiritlevelError("scales holds none: give standard deviations of the prior")
    for scale in scales:
        number("scales", scale, above=0.0)
    p = np.asarray(scales, dtype=np.float64)
    costs = np.array([cost(j) for j in range(len(p))])
    moved = posterior.mean.double() - centre.double()
    square = float((posterior.spread.double().expand_as(moved).square() + moved.square()).sum())
    return int((square / p**2 / 2 + len(moved) * np.log(p) + costs).argmin())


@set_apart()
def carried(objective: Objective, posterior: Gaussian, group: Group, t: Tensor) -> Objective:
    """The objective at exp(B t) of its point, with the buffers that move along.

    Networks drawn from the posterior, and carried, are compared with themselves on a few examples:
    what changes a prediction is refused, by the eps of a norm too.
    """
    only_objectives(objective)
    draws = generator(0)
    for _ in range(DRAWS):
        noise = gaussian(len(posterior.mean), draws, posterior.mean)
        one = objective.at(posterior.mean + posterior.spread * noise)
        other = group.apply(one, t)
        try:
            refuse_changed(one, other, admits_eps=False)
        except ChangedError as error:
            raise ChangedError(
                f"group admits rescalings that the eps of {len(group.norms)} norms breaks, and the "
                "drawn networks see it: give symmetries(objective) without eps"
            ) from error
    return group.apply(objective, t)


def _asked(
    posterior: Gaussian, prior: Gaussian, group: Group, shapes: Mapping[str, torch.Size]
) -> None:
    """Refuse what does not fit together."""
    a("posterior", posterior, Gaussian, "a Gaussian over the parameters")
    a("prior", prior, Gaussian, "a Gaussian over the parameters")
    a("group", group, Group, "a Group, such as symmetries(objective)")
    a("shapes", shapes, Mapping, "the shapes of the parameters by name, objective.shapes")
    if not all(isinstance(shape, torch.Size) for shape in shapes.values()):
        raise SpiritlevelError("shapes holds what is no shape; give objective.shapes")
    size = sum(shape.numel() for shape in shapes.values())
    for name, one in (("posterior", posterior), ("prior", prior)):
        if len(one.mean) != size:
            raise SpiritlevelError(
                f"{name} is over {len(one.mean)} parameters; give one over the {size} of shapes"
            )
    lost = [n for n in group.placements if n not in shapes and n not in group.buffers]
    if lost:
        raise SpiritlevelError(
            f"group moves {lost[0]!r}, which shapes does not have: make the group from the "
            "objective itself, symmetries(objective)"
        )


def _sum(
    posterior: Gaussian, prior: Gaussian, group: Group, shapes: Mapping[str, torch.Size]
) -> Sum:
    """The divergence as a function of t, one term for each distinct row of B.

    It is linear in (s^2 + w^2) / p^2, w w0 / p^2 and the count, so cells add them up.
    """
    w, s = posterior.mean.double(), posterior.spread.double().expand_as(posterior.mean)
    w0, p = prior.mean.to(w), prior.spread.to(w)
    grid = cells(group, shapes)
    parts = [((s / p) ** 2 + (w / p) ** 2), (w / p) * (w0 / p), torch.ones_like(w)]
    if not all(float(part.abs().max()) < RANGE for part in parts):
        raise SpiritlevelError(
            "posterior is too far from the prior for float64: the squares of its parameters over "
            "the prior's spread overflow"
        )
    squares, cross, count = (grid.gather(part) for part in parts)
    exponents = csr_matrix(grid.exponents)
    exponents.eliminate_zeros()
    fixed = exponents.getnnz(axis=1) == 0
    logs = (p / s).log()
    rest = [(w0 / p) ** 2 / 2, logs, torch.full_like(w, -0.5)]
    constant = sum(float(part.sum()) for part in rest)
    constant += float((squares / 2 - cross)[fixed].sum())
    size = sum(float(part.abs().sum()) for part in rest)
    size += float((squares + abs(cross))[fixed].sum())
    rows, summed = merged(
        csr_matrix(exponents[~fixed]), *(v[~fixed] for v in (squares, cross, count))
    )
    return Sum(rows, *summed, constant=constant, size=size)


def _searched(total: Sum, reach: float) -> tuple[Array, float]:
    """The best t that is found, and a lower bound; no further start than is needed."""
    stay = np.zeros(total.dim)
    convex = descended(total.envelope, stay)
    bound, alone = below(total, convex, reach)
    best = stay
    for start in (alone, convex, stay):
        best = min(best, descended(total, start), key=total.value)
        if total.value(best) - bound <= SHUT * max(total.value(best), 1.0):
            break
    return best, bound
