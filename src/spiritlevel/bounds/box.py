"""The flat box of Hochreiter and Schmidhuber as a posterior, and the bound that it has."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.base.doors import number, one_of
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import generator
from spiritlevel.bounds import asking, priors
from spiritlevel.bounds.certify import certified, split
from spiritlevel.bounds.drawing import Drawing, drawing, drawn_errors, mean_error
from spiritlevel.bounds.fitted import decisions, left_out
from spiritlevel.bounds.gaussian import Gaussian, divergence
from spiritlevel.bounds.orbit import LeastDivergence, best_place, carried, least_on_grid
from spiritlevel.bounds.pacbayes import maurer
from spiritlevel.measures.description import output_squares
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.results.bound import Bound, Drawn, Row
from spiritlevel.symmetry import Group, symmetries
from spiritlevel.training.feeding import mixed

UNIFORM = math.log(2 * math.pi * math.e / 12) / 2  # KL of a uniform and a Gaussian of one spread
TRIED = tuple(10.0**k for k in range(-2, 9))  # squares that outputs may change by, summed
PILOTS = 20  # networks that are drawn to choose among those
ROUNDS = 100
NAME, TITLE = "flat_box", "PAC-Bayes of a flat box"
REFERENCE = "Hochreiter and Schmidhuber 1997; Maurer 2004, Theorem 5"


@dataclass(frozen=True)
class FlatBox:
    """A box around the weights, the errors of networks in it, and their bound.

    `rows` are the bounds here and, where it was asked for, where the divergence is least over the
    orbit. `eps` is the square that the outputs may change by in the box, to first order.
    """

    rows: tuple[Row, ...]
    half_widths: Tensor
    eps: float
    kl: float
    drawn: Drawn
    prior: Gaussian
    least: LeastDivergence | None = None

    @property
    def bound(self) -> Bound:
        """The bound at the given point."""
        return self.rows[0].bound

    def __str__(self) -> str:
        return str(self.bound)


@set_apart()
def flat_box(
    objective: Objective,
    *,
    init: Any = None,
    prior: Literal["init", "zero"] = "init",
    eps: float | None = None,
    orbit: bool = False,
    draws: int = 500,
    delta: float = 0.05,
    seed: int = 0,
) -> FlatBox:
    """Maurer's bound for Q uniform on |v_i - w_i| <= h_i, P = N(w0, p^2 I), p from a grid.

    KL = sum log(p / s_i) + (s_i^2 + (w_i - w0_i)^2) / (2 p^2) - 1/2 + log(2 pi e / 12) / 2 with
    s = h / sqrt(3): that of the Gaussian of these moments, and .1765 nats for each weight. h are
    `half_widths` for `eps`, or for the best of some if None; none is above sqrt(3) p, where its
    nats are least. The bound holds for all boxes at once, so they may be chosen.
    """
    _asked(objective, prior, eps, draws, delta, seed, orbit)
    objective = priors.undisturbed(objective, init)
    centre, premises = priors.centre(objective, init, prior), left_out(objective, init)
    squares = output_squares(objective).to(centre)
    boxes = {e: _box(squares, objective.vector, centre, e) for e in ([eps] if eps else TRIED)}
    chosen = min(boxes, key=lambda e: _guess(objective, *boxes[e], centre, delta, seed))
    inside, place = boxes[chosen]
    errors, came = drawn_errors(uniform(objective, inside, seed), draws)
    if came:
        raise KeyboardInterrupt
    drawn = mean_error(errors, split(delta)[1])
    known = _at(centre, place)
    kl = box_divergence(inside, known)
    rows = [_row("here", drawn, kl, objective.examples, delta, place, premises)]
    least = None
    if orbit:
        group = symmetries(objective)
        least, row = _least(objective, inside, centre, group, drawn, delta, premises)
        rows.append(row)
    return FlatBox(tuple(rows), math.sqrt(3) * inside.spread, chosen, kl, drawn, known, least)


def half_widths(squares: Tensor, eps: float) -> Tensor:
    """sqrt(eps / S) / J_i, S = sum_k (sum_i J_ki / J_i)^2, J_i^2 = sum_k J_ki^2; Hochreiter (1997).

    `squares` are the J_ki^2, (outputs, parameters). To first order the outputs change by squares
    that sum to eps at most. What no output sees has no end.
    """
    seen = squares.sum(0)
    share = torch.where(seen > 0, squares / seen.clamp(min=1e-300), 0.0)
    total = share.sqrt().sum(1).square().sum()
    return torch.where(seen > 0, (eps / (total * seen)).sqrt(), torch.inf)


def box_divergence(inside: Gaussian, prior: Gaussian) -> float:
    """KL of a uniform box and a Gaussian prior in nats; `inside` has the moments of the box."""
    return divergence(inside, prior) + len(inside.mean) * UNIFORM


class _InBox(Drawing):
    """Networks from a box instead of a Gaussian with its moments."""

    def group(self, number: int, count: int) -> list[float]:
        draws = generator(mixed(self.seed, "box", number))
        mean, spread = self.posterior.mean, self.posterior.spread
        inside = torch.rand((self.together, len(mean)), generator=draws, dtype=torch.float64)
        noise = (math.sqrt(3) * (2 * inside[:count] - 1)).to(mean)
        points = (mean + spread * noise).to(self.objective.vector)
        return self.errors(points) if self.together > 1 else [self.error(p) for p in points]


def uniform(objective: Objective, inside: Gaussian, seed: int) -> Drawing:
    """Networks drawn from the box of these moments."""
    like = drawing(objective, inside, seed)
    return _InBox(objective, inside, like.known, seed, like.together)


def _box(squares: Tensor, w: Tensor, centre: Tensor, eps: float) -> tuple[Gaussian, int]:
    """The moments of the box for eps, cut where a smaller one is nearer to its best prior."""
    spread = half_widths(squares.double(), eps) / math.sqrt(3)
    moved = (w.double() - centre.double()).square()
    p = math.sqrt(priors.LARGEST)
    for _ in range(ROUNDS):  # falls to the largest p^2 = mean of min(s, p)^2 + (w - w0)^2
        p, before = float((spread.clamp(max=p).square() + moved).mean().sqrt()), p
        if p > 0.999 * before:
            break
    least = torch.finfo(w.dtype).tiny / 1e-8  # of a spread: its square over another is a number
    inside = Gaussian(w, spread.clamp(max=max(p, least), min=least).to(w))
    return inside, best_place(inside, centre, priors.scales(), priors.cost)


def _at(centre: Tensor, place: int) -> Gaussian:
    return Gaussian(centre, torch.full_like(centre, priors.scales()[place]))


def _guess(
    objective: Objective, inside: Gaussian, place: int, centre: Tensor, delta: float, seed: int
) -> float:
    """A bound from a few networks that are drawn for nothing else."""
    errors, came = drawn_errors(uniform(objective, inside, mixed(seed, "pilots")), PILOTS)
    if came:
        raise KeyboardInterrupt
    error = sum(errors) / PILOTS
    kl = box_divergence(inside, _at(centre, place))
    return maurer(error=error, kl=kl, m=objective.examples, delta=delta, index=place + 1).value


def _least(
    objective: Objective,
    inside: Gaussian,
    centre: Tensor,
    group: Group,
    drawn: Drawn,
    delta: float,
    premises: tuple[str, ...],
) -> tuple[LeastDivergence, Row]:
    """The box where its divergence is least over the orbit: it is a box again."""
    shapes, scales = objective.shapes, priors.scales()
    found = least_on_grid(inside, centre, scales, group, shapes, cost=priors.cost)
    carried(objective, inside, group, found.least.t)
    more = objective.size * UNIFORM
    least = replace(
        found.least,
        kl=found.least.kl + more,
        plain=found.least.plain + more,
        lower_bound=found.least.lower_bound + more,
    )
    row = _row("orbit", drawn, least.kl, objective.examples, delta, found.index, premises)
    return least, row


def _row(
    point: str,
    drawn: Drawn,
    kl: float,
    m: int,
    delta: float,
    place: int,
    premises: tuple[str, ...],
) -> Row:
    said = ("networks are drawn uniformly from a box around the weights", *premises)
    row = certified(point, drawn, kl=kl, m=m, delta=delta, index=place + 1, assumptions=said)[0]
    return Row(point, replace(row.bound, name=NAME, title=TITLE, reference=REFERENCE))


def _asked(
    objective: Any, prior: Any, eps: Any, draws: Any, delta: Any, seed: Any, orbit: Any
) -> None:
    only_objectives(objective)
    one_of("prior", prior, ("init", "zero"))
    one_of("orbit", orbit, (True, False))
    if eps is not None:
        number("eps", eps, above=0.0)
    number("draws", draws, 2, whole=True)
    asking.chance("delta", delta)
    seeded(seed)
    asking.examples(decisions(objective).units, "the number of examples")
