"""The constructions of Dinh et al. (2017): as sharp as one likes, with the same predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.doors import a, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.operator import Operator, only_operators
from spiritlevel.base.scope import set_apart
from spiritlevel.base.spoken import at_least
from spiritlevel.base.tensor_doors import tensor
from spiritlevel.base.tensors import flatten
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.results.provenance import Provenance
from spiritlevel.results.symmetry import Sharpening
from spiritlevel.spectral import Eigenpairs, eigenpairs
from spiritlevel.symmetry import Certificate, Group
from spiritlevel.symmetry.find import group_of
from spiritlevel.symmetry.group import added

CANDIDATES = 4
DENSE = 3000  # parameters, for the theorem that needs the whole spectrum
RANK_TOLERANCE = 1e-10
NOISE = 1e-10  # of the largest eigenvalue: curvature that rounding made


@dataclass(frozen=True)
class Sharpened:
    """A twin with the same predictions and a Hessian of norm >= `reached` >= the target.

    `reached` is u'Hu at the twin for the unit vector `direction`, a lower bound of the largest
    eigenvalue; `before` is that eigenvalue at the point one came from.
    """

    objective: Objective
    certificate: Certificate
    before: Estimate
    reached: float
    direction: Tensor
    element: Tensor
    generator: str

    def result(self, network: str, target: float, told: Provenance) -> Sharpening:
        """What was done, as plain data that can be written and read."""
        found = (self.before, self.reached, self.generator, self.certificate)
        return Sharpening(network, target, *found, told)

    def __str__(self) -> str:
        if not self.element.any():
            return f"largest Hessian eigenvalue {self.before}: sharp enough as it is"
        return (
            f"largest Hessian eigenvalue {self.before} -> at least {at_least(self.reached)}, by "
            f"scaling {self.generator}\n{self.certificate}"
        )


@dataclass(frozen=True)
class ManySharpened:
    """A twin with at least `guaranteed` eigenvalues above the target, and how many there are."""

    objective: Objective
    certificate: Certificate
    eigenvalues: Tensor
    above: int
    guaranteed: int
    rank: int
    element: Tensor

    def __str__(self) -> str:
        return (
            f"{self.above} eigenvalues above the target ({self.guaranteed} guaranteed, rank "
            f"{self.rank})\n{self.certificate}"
        )


@dataclass(frozen=True)
class ZeroInBall:
    """A twin within `epsilon` of which a layer is zero, and the sharpness that this proves.

    `perturbation` has the norm epsilon; `lower_bound` is (L(theta + perturbation) - L) / (1 + L).
    """

    objective: Objective
    certificate: Certificate
    perturbation: Tensor
    lower_bound: float
    value_at_zero: float
    element: Tensor

    def __str__(self) -> str:
        return f"eps-sharpness at least {at_least(self.lower_bound)}\n{self.certificate}"


@dataclass(frozen=True)
class _Lever:
    """One side of a layer's rescaling: some elements that all have one exponent."""

    index: int
    exponent: float
    mask: Tensor


@set_apart()
def sharpen(
    objective: Objective,
    *,
    target: float,
    group: Group | None = None,
    operator: Operator | None = None,
    pairs: Eigenpairs | None = None,
) -> Sharpened:
    """An observationally equivalent objective whose Hessian has an eigenvalue >= target.

    Scaling a block by e^s scales the Hessian there by e^-2s, so u'Hu of any u in the block grows
    to the target in closed form (Dinh et al., 2017). Factors are powers of two: they
    round nothing, not even in float32. `operator` is the Hessian and `pairs` are its largest
    eigenpairs, where they are known already.
    """
    _refuse(objective, target, operator)
    if pairs is not None:
        a("pairs", pairs, Eigenpairs, "what sl.eigenpairs returned of this Hessian")
    layers = _layers(objective, group)
    operator = hessian(objective) if operator is None else operator
    pairs = eigenpairs(operator) if pairs is None else pairs
    top = pairs.vectors[:, 0]
    best = _best(layers, objective, operator, top, NOISE * abs(pairs[0].value))
    if best is None:
        raise SpiritlevelError(
            "no layer that can be scaled has positive curvature here: the point is no minimum, or "
            "its parameters do not matter"
        )
    lever, u, curvature = best
    needed = math.log2(max(target / curvature, 1.0)) / 2 * (1 + 1e-12)
    t = layers.identity()
    t[lever.index] = -_binary(needed, lever.exponent)
    twin = _within_range(layers.apply(objective, t), target)
    # u lies where every exponent is the same, so u'D^-1 H D^-1 u is known without a new product
    reached = curvature * math.exp(-2 * lever.exponent * float(t[lever.index]))
    if not t.any():  # it is that sharp already
        reached = max(reached, pairs[0].value - pairs[0].error)
    proof, name = layers.verify(objective, twin).require(), layers.generators[lever.index].name
    return Sharpened(twin, proof, pairs[0], reached, u, t, name)


def _within_range(twin: Objective, target: float) -> Objective:
    if not all(bool(p.isfinite().all()) for p in twin.params.values()):
        raise SpiritlevelError(f"target={target:g} is beyond the range of {twin.dtype}")
    return twin


@set_apart()
def sharpen_many(
    objective: Objective,
    *,
    target: float,
    group: Group | None = None,
    dense: Tensor | None = None,
) -> ManySharpened:
    """At least rank H - n of the eigenvalues above the target, n the size of what must absorb.

    With D^-2 >= beta^2 on all but n parameters, Horn's inequality gives that many eigenvalues
    >= beta^2 lambda_r (Dinh et al., 2017, supplement E). For a minimum: H has to be positive
    semi-definite. The spectrum is that of D^-1 H D^-1, without differentiating again. `dense` is
    the Hessian itself, where it is known already.
    """
    _refuse(objective, target, None)
    _refuse_dense(objective, dense)
    layers = _layers(objective, group)
    exact = objective.to(torch.float64)
    dense = hessian(exact, compile=False).dense() if dense is None else dense
    dense = ((dense + dense.T) / 2).cpu()
    spectrum = torch.linalg.eigvalsh(dense)
    positive = spectrum[spectrum > RANK_TOLERANCE * spectrum.abs().max()]
    if not len(positive):
        raise SpiritlevelError("the Hessian has no positive eigenvalue: this is no minimum")
    direction, absorbed = _spread_thin(layers, objective)
    beta = math.sqrt(target / float(positive.min())) * (1 + 1e-6)
    t = direction * math.log(max(beta, 1.0))
    twin = layers.apply(exact, t)
    d = layers.flat_factors(t, objective.shapes)
    values = torch.linalg.eigvalsh(dense / (d[:, None] * d[None, :]))
    return ManySharpened(
        twin,
        layers.verify(exact, twin).require(),
        values,
        count_above(dense, d, target),
        max(len(positive) - absorbed, 0),
        len(positive),
        t,
    )


@set_apart()
def zero_in_ball(objective: Objective, epsilon: float, *, group: Group | None = None) -> ZeroInBall:
    """A twin for which a layer of zeros lies in the ball of radius epsilon around it.

    A layer scaled to the norm epsilon can be perturbed to zero within the ball, which proves that
    the eps-sharpness is at least (L(zero) - L) / (1 + L) (Dinh et al., 2017).
    """
    only_objectives(objective)
    number("epsilon", epsilon, above=0)
    layers = _layers(objective, group)
    value, found = objective.value(), None
    for lever in _levers(layers, objective):
        if not objective.vector[lever.mask].any():
            continue
        zeroed = objective.vector.clone()
        zeroed[lever.mask] = 0
        at_zero = objective.at(zeroed).value()
        if math.isfinite(at_zero) and (found is None or at_zero > found[1]):
            found = (lever, at_zero)
    if found is None:
        raise SpiritlevelError("no layer that can be scaled: the eps-sharpness cannot be raised so")
    lever, at_zero = found
    t = layers.identity()
    norm = float(objective.vector[lever.mask].norm())
    t[lever.index] = math.log(epsilon / norm) / lever.exponent
    twin = layers.apply(objective, t)
    perturbation = torch.where(lever.mask, -twin.vector, 0.0)
    reached = twin.at(twin.vector + perturbation).value()
    return ZeroInBall(
        twin,
        layers.verify(objective, twin).require(),
        perturbation,
        max((reached - value) / (1 + value), 0.0),
        reached,
        t,
    )


def count_above(dense: Tensor, factors: Tensor, target: float) -> int:
    """How many eigenvalues of D^-1 H D^-1 exceed the target M, for D of any range.

    As many as H - M D^2 has positive ones, since congruent matrices have one signature (Sylvester).
    Rows are scaled down where M D^2 is large, so that nothing drowns in the rounding of D^-1.
    """
    weights = math.sqrt(target) * factors.double()
    shrink = 1 / weights.clamp(min=1.0)
    shifted = dense.double() * torch.outer(shrink, shrink) - (weights * shrink).square().diag()
    return int((torch.linalg.eigvalsh(shifted) > 0).sum())


def _refuse(objective: Objective, target: float, operator: Operator | None) -> None:
    only_objectives(objective)
    number("target", target, above=0)
    if operator is not None:
        only_operators(operator)
        if operator.size != objective.size:
            raise SpiritlevelError(
                f"operator is of size {operator.size}; give the Hessian of this objective, of "
                f"{objective.size} parameters"
            )


def _refuse_dense(objective: Objective, dense: Tensor | None) -> None:
    if objective.size > DENSE:
        raise SpiritlevelError(
            f"sharpen_many needs the whole spectrum: {objective.size} parameters are too many "
            f"(at most {DENSE}); choose some with params=, or use sharpen()"
        )
    if dense is not None:
        tensor("dense", dense, objective.size, objective.size)


def _layers(objective: Objective, group: Group | None) -> Group:
    """One factor per layer, or an error that says why there is none."""
    group = group_of(objective, group)
    if not group.dim:
        reasons = ", ".join(dict.fromkeys(str(b) for b in group.blocks)) or "the graph"
        raise SpiritlevelError(
            f"this model has no rescaling symmetry to sharpen it along (blocked by {reasons})"
        )
    return group.layerwise()


def _levers(layers: Group, objective: Objective) -> list[_Lever]:
    """The two sides of every layer's rescaling, as masks over the flat parameters."""
    found = []
    for index in range(layers.dim):
        t = layers.identity()
        t[index] = 1.0
        terms = layers.log_scales(t)
        exponents = flatten(
            {n: added(terms.get(n, ())).expand(s) for n, s in objective.shapes.items()}
        )
        for exponent in exponents.unique().tolist():
            if exponent:
                mask = (exponents == exponent).to(objective.device)
                found.append(_Lever(index, exponent, mask))
    return found


def _best(
    layers: Group, objective: Objective, operator: Operator, top: Tensor, least: float
) -> tuple[_Lever, Tensor, float] | None:
    """The side whose part of the top eigenvector has most curvature, if it is above `least`."""
    levers = _levers(layers, objective)
    masses = [float(top[lever.mask].norm()) for lever in levers]
    order = sorted(range(len(levers)), key=lambda i: -masses[i])
    best = None
    for i in order[:CANDIDATES]:
        if masses[i] == 0:
            continue
        u = torch.where(levers[i].mask, top, 0.0)
        u = u / u.norm()
        curvature = float(u @ (operator @ u))
        if curvature > least and (best is None or curvature > best[2]):
            best = (levers[i], u, curvature)
    return best


def _binary(doublings: float, exponent: float) -> float:
    """The log-scale that is at least so many doublings and makes every factor a power of two.

    Exponents are whole or halves, so whole multiples of 2 log 2 serve all of them.
    """
    step = 1 if exponent == int(exponent) else 2
    whole = step * math.ceil(doublings / (step * abs(exponent)))
    return math.copysign(whole * math.log(2), exponent)


def _spread_thin(layers: Group, objective: Objective) -> tuple[Tensor, int]:
    """Log-scales <= -1 on as many parameters as possible; how many are left out.

    One tensor after another is tried as the one that absorbs the rest: a linear program each.
    """
    from scipy.optimize import linprog

    rows: dict[tuple[float, ...], int] = {}
    dense = torch.from_numpy(layers.matrix(objective.shapes).toarray())
    different, counts = dense.unique(dim=0, return_counts=True)
    for row, count in zip(different.tolist(), counts.tolist(), strict=True):
        rows[tuple(row)] = rows.get(tuple(row), 0) + count
    table, sizes = torch.tensor(list(rows), dtype=torch.float64), list(rows.values())
    best: tuple[int, Tensor] | None = None
    for spared in range(len(table)):
        kept = [i for i in range(len(table)) if i != spared and bool(table[i].any())]
        k = len(kept)
        cost = [0.0] * layers.dim + [float(sizes[i]) for i in kept]
        bounds = [(None, None)] * layers.dim + [(0, None)] * k
        left = torch.cat([table[kept], -torch.eye(k, dtype=torch.float64)], dim=1)
        result = linprog(cost, A_ub=left.numpy(), b_ub=[-1.0] * k, bounds=bounds)
        if not result.success:
            continue
        t = torch.tensor(result.x[: layers.dim], dtype=torch.float64)
        missed = sum(n for n, row in zip(sizes, table, strict=True) if float(row @ t) > -1 + 1e-7)
        if best is None or missed < best[0]:
            best = (missed, t)
    if best is None:
        raise SpiritlevelError("no rescaling of the layers makes most of the parameters smaller")
    return best[1], best[0]
