"""The worst loss in a ball that no rescaling avoids: a lower bound for all of an orbit."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.estimate import format_value
from spiritlevel.base.operator import scaled
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import set_apart
from spiritlevel.base.spoken import at_least, at_most
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.curvature.ladder import raised
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.classes import Classes, classes_of, grid_of, promising
from spiritlevel.orbit.probing import LOOSE, ROUNDED, Tally, Ways, noise_of, reach_of, reached
from spiritlevel.orbit.program import ROW_PROBES, Problem, matrix_of, problem_of
from spiritlevel.orbit.proofs import Choice, Proof, chosen, least_mean
from spiritlevel.orbit.representative import representative
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry import Certificate, Group
from spiritlevel.symmetry.find import group_of
from spiritlevel.witnesses.enclosure import largest_loss
from spiritlevel.witnesses.worst import RADIUS, worst_in_ball

ROUNDS = 4  # in which lengths are looked at that the last ones say are needed
HALVINGS = 24  # of the logarithm of a level
WIDE = 1e3  # levels beyond the rises that were seen


@dataclass(frozen=True)
class WorstCase:
    """What is known of min over an orbit of max over ||d||_2 <= radius of L(t + d) - L.

    `lower` is proved for every point of the orbit by `proof`, of losses that were computed (in
    float64 where the model lets itself be raised), less 100 roundings of these: outputs that differ
    from their targets in the last of 12 digits may have more. `searched` is the rise that
    a search met around `objective`, the best point that was tried: that of the minimum is less or
    the search missed something there. `upper` is a bound of the rise around some point by interval
    arithmetic, so of the minimum too; None where an operation has none. `certificate` says that
    `objective` is the same network. `witness` makes the perturbation that the proof speaks of, at
    any point: log-scales from `home`, the representative.
    """

    radius: float
    base: float
    lower: float
    searched: float
    upper: float | None
    proof: Proof | None
    home: Objective
    group: Group
    objective: Objective
    certificate: Certificate
    notes: tuple[str, ...]
    passes: float
    seconds: float

    @property
    def sharpness(self) -> float:
        """lower / (1 + L), as the eps-sharpness of Dinh et al. (2017)."""
        return self.lower / (1 + self.base)

    def witness(self, t: Tensor) -> Tensor:
        """A perturbation of exp(B t) home within the radius that raises the loss by `lower`."""
        twin, factors = self.group.apply(self.home, t), self.group.flat_factors(t, self.home.shapes)
        if self.proof is None:
            return torch.zeros_like(twin.vector)
        if self.proof.alternatives:
            steps = [factors.to(step) * step for step in self.proof.steps]
            return min(steps, key=lambda step: float(step.double().norm()))
        reach = reach_of(self.home, self.group, classes_of(self.group, self.home))
        return reach.elsewhere(self.proof.steps[0], t, twin.vector)

    @set_apart()
    def holds(self) -> bool:
        """Whether the proof is true: rows, lengths and the rise are found anew from its steps."""
        if self.proof is None:
            return self.lower <= 0
        rise, rounding = _rise(self.proof, self.home)
        sound = _told(self.proof, self.home, self.group) and self.proof.holds(self.radius)
        return sound and self.lower <= self.proof.rise <= rise - rounding / 2

    def __str__(self) -> str:
        above = "" if self.upper is None else f", at most {at_most(self.upper, 6)}"
        text = (
            f"within {self.radius:g} of every point of the orbit the loss rises by at least "
            f"{at_least(self.lower, 6)}{above}; a search at the best point met "
            f"{format_value(self.searched)}"
        )
        return "; ".join((text, *self.notes))


@set_apart()
def worst_case(
    objective: Objective, group: Group | None = None, *, radius: float = RADIUS, seed: int = 0
) -> WorstCase:
    """min over t of max over ||d||_2 <= radius of L(exp(B t) theta + d) - L, from below.

    A perturbation of parameters with one row b of B is exp(b . t) times as long at t, and raises
    the loss alike. If some weighted geometric mean of such lengths does not depend on t and is at
    most the radius, one of them always lies in the ball: a linear program finds it. So do all
    perturbations of what nothing moves, and factors for units with a rescaling of their own. All is
    probed at the representative of the orbit, so that the point that is given does not matter.
    """
    only_objectives(objective)
    number("radius", radius, above=0)
    seeded(seed)
    begin, group = time.perf_counter(), group_of(objective, group)
    point, tally = representative(objective, group).objective, Tally(ROW_PROBES)
    problem = problem_of(point, group, None, matrix_of(point, "hessian"))
    proof = _best(point, group, problem, radius, seed, tally)
    lower = 0.0 if proof is None else proof.rise
    searched, upper, best = _from_above(point, group, problem, radius, seed, tally)
    return WorstCase(
        radius=radius,
        base=point.value(),
        lower=lower,
        searched=max(searched, lower),
        upper=upper,
        proof=proof,
        home=point,
        group=group,
        objective=best,
        certificate=group.verify(objective, best).require(),
        notes=_notes(group, proof),
        passes=tally.passes,
        seconds=time.perf_counter() - begin,
    )


def _best(
    point: Objective, group: Group, problem: Problem, radius: float, seed: int, tally: Tally
) -> Proof | None:
    """The proof of the most; each is checked before it counts."""
    classes = classes_of(group, point)
    reach = reach_of(point, group, classes)
    hessian = problem.matrix.make()
    noise = noise_of(hessian, seed, tally)
    found = [_between(point, classes, problem, noise, radius, seed, tally)]
    if reach.size:
        found.append(reached(reach, hessian, noise, radius, seed, tally))
    sound = [_confirmed(p, point) for p in found if p is not None and p.holds(radius)]
    return max(filter(None, sound), key=lambda p: p.rise, default=None)


def _told(proof: Proof, point: Objective, group: Group) -> bool:
    """Whether rows and lengths are those of the steps."""
    classes = classes_of(group, point)
    if not proof.alternatives:
        return reach_of(point, group, classes).told(proof)
    [choice] = proof.choices
    ways = zip(proof.steps, choice.rows, choice.lengths, strict=True)
    return all(classes.told(*way) for way in ways)


def _confirmed(proof: Proof, point: Objective) -> Proof | None:
    """With the least rise of its steps in float64, less what rounding may have made of that."""
    rise, rounding = _rise(proof, point)
    return replace(proof, rise=rise - rounding) if rise > rounding else None


def _rise(proof: Proof, point: Objective) -> tuple[float, float]:
    """The least of its steps, and what rounding may have made of that."""
    wide = raised(point)
    base = wide.value()
    least = min(wide.at(wide.vector + step.to(wide.vector)).value() for step in proof.steps)
    return least - base, _rounding(wide, base, least)


def _rounding(objective: Objective, *losses: float) -> float:
    return ROUNDED * torch.finfo(objective.dtype).eps * sum(map(abs, losses))


def _notes(group: Group, proof: Proof | None) -> tuple[str, ...]:
    """What is to be said of it."""
    found = []
    if proof is None:
        found.append("no perturbation was found that is short everywhere")
    if group.norms:
        found.append(f"up to the eps of {len(group.norms)} norms, which does not move along")
    return tuple(found)


def _between(
    point: Objective,
    classes: Classes,
    problem: Problem,
    noise: float,
    radius: float,
    seed: int,
    tally: Tally,
) -> Proof | None:
    """The best choice between perturbations within single classes; none if there is none."""
    curves = grid_of(problem.group, point).gather(problem.diagonal.clamp(min=0))
    masses = np.bincount(classes.number, curves, len(classes.number))
    places, ways = promising(classes, masses[: classes.exponents.get_shape()[0]]), {}
    with bar(len(places), "classes of parameters") as progress:
        for k in places:
            found = Ways(point, classes.places(k), tally, noise)
            found.begin(problem.matrix.make(), radius, seed)
            if found.probed:
                ways[k] = found
            progress.update()
    for _ in range(ROUNDS if ways else 0):
        planned = _planned(classes, ways, radius)
        if planned is None:
            break
        for k, length in planned.items():
            for start in ways[k].near(length):
                ways[k].climb(start, length)
    return _proved(classes, ways, radius)


def _choice(classes: Classes, lengths: dict[int, float]) -> tuple[list[int], Choice] | None:
    """The least geometric mean of these lengths that does not depend on t."""
    known = [k for k, length in lengths.items() if np.isfinite(length)]
    if not known:
        return None
    logs = np.log([lengths[k] for k in known])
    some = [known[i] for i in least_mean(classes.exponents[known], logs)]
    if not some:
        return None
    names, rows = [classes.name(k) for k in some], [classes.row(k) for k in some]
    found = chosen(names, rows, [lengths[k] for k in some])
    return None if found is None else (some, found)


def _planned(classes: Classes, ways: dict[int, Ways], radius: float) -> dict[int, float] | None:
    """How long each should be for the highest level that may be within reach."""
    rises = [p.rise for way in ways.values() for p in way.probed]
    low, high = np.log(min(rises) / WIDE), np.log(max(rises) * WIDE)
    best = None
    for _ in range(HALVINGS):
        level = (low + high) / 2
        lengths = {k: way.expected(float(np.exp(level))) for k, way in ways.items()}
        found = _choice(classes, lengths)
        if found is not None and found[1].length <= radius:
            low, best = level, found
        else:
            high = level
    if best is None:
        return None
    stretch = radius / best[1].length
    return {k: a * stretch for k, a in zip(best[0], best[1].lengths, strict=True)}


def _proved(classes: Classes, ways: dict[int, Ways], radius: float) -> Proof | None:
    """The highest level that was reached by what was probed."""
    levels, best = sorted({p.rise for way in ways.values() for p in way.probed}), None
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) // 2
        level = levels[middle]
        enough = {k: way.shortest(level) for k, way in ways.items()}
        found = _choice(classes, {k: p.length for k, p in enough.items() if p is not None})
        if found is not None and found[1].length <= radius:
            steps = tuple(ways[k].step(level) for k in found[0])
            low, best = middle + 1, Proof((found[1],), level, steps)
        else:
            high = middle
    return best


def _from_above(
    point: Objective, group: Group, problem: Problem, radius: float, seed: int, tally: Tally
) -> tuple[float, float | None, Objective]:
    """The least of the worst that searches meet, the least bound, and where the former is."""
    t = torch.from_numpy(problem.start.t)
    found: list[tuple[float, Objective]] = []
    bounds: list[float] = []
    for element in [group.identity(), t] if bool(t.any()) else [t]:
        there = group.apply(point, element)
        factors = group.flat_factors(element, point.shapes)
        top = eigenpairs(scaled(problem.matrix.make(), 1 / factors), tol=LOOSE, seed=seed)
        worst = worst_in_ball(there, radius, starts=top.vectors, seed=seed)
        tally.passes += top[0].matvecs + worst.passes
        found.append((worst.rise, there))
        bound = largest_loss(wide := raised(there), radius)
        if bound is not None and bound < math.inf:
            base = wide.value()
            rise = bound - base + _rounding(wide, bound, base)
            bounds += [rise] if rise >= worst.rise else []  # else rounding is all that is seen
    searched, best = min(found, key=lambda item: item[0])
    return searched, min(bounds, default=None), best
