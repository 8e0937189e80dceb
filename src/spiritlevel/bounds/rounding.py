"""A network written down: its weights rounded to multiples of 2^-k, in a code fixed in advance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.base.scope import set_apart
from spiritlevel.bounds.asking import chance
from spiritlevel.bounds.description import occam
from spiritlevel.bounds.fitted import decisions, left_out, refuse_fitted
from spiritlevel.objective import Objective, classes
from spiritlevel.objective.classes import Labels
from spiritlevel.results.bound import Bound, Term

FINEST = 20  # 2^-20: finer steps only cost
COARSEST = 0


@dataclass(frozen=True)
class Written:
    """A network of rounded weights, the digits behind the binary point, and its length in bits."""

    objective: Objective
    digits: int
    bits: int


@set_apart()
@torch.no_grad()
def written(objective: Objective, *, init: Tensor | None = None, delta: float = 0.05) -> Bound:
    """Occam's bound of the rounded network, at the number of digits that makes it least.

    w = w0 + n 2^-k; k and every n are written in Elias's gamma code, 2 floor(log2 i) + 1 bits for
    i = 1, 2, 3, 4, ... = 0, 1, -1, 2, ... All k are covered at once, for each is a codeword.
    """
    chance("delta", delta)
    refuse_fitted(objective)
    known = decisions(objective)
    tried = [_bound(rounded(objective, k, init), known, delta) for k in range(COARSEST, FINEST + 1)]
    found = min(tried, key=float)
    start = "zero" if init is None else "the weights before training"
    said = f"differences from {start} are coded, as multiples of a power of 1/2"
    return replace(found, assumptions=(*found.assumptions, said, *left_out(objective)))


def rounded(objective: Objective, digits: int, init: Tensor | None = None) -> Written:
    """The nearest network whose weights are multiples of 2^-digits from those of `init`."""
    start = torch.zeros_like(objective.vector) if init is None else init
    steps = ((objective.vector - start).double() * 2.0**digits).round()
    there = objective.at(start + (steps / 2.0**digits).to(start))
    bits = int(_gamma(2 * steps.abs() + (steps <= 0)).sum()) + int(
        _gamma(torch.tensor([digits + 1.0])).sum()
    )
    return Written(there, digits, bits)


def _gamma(numbers: Tensor) -> Tensor:
    """Bits of Elias's code for 1, 2, 3, ...; frexp is exact where logarithms round."""
    return 2 * (torch.frexp(numbers.double()).exponent - 1) + 1


def _bound(one: Written, known: Labels, delta: float) -> Bound:
    error = classes.error(one.objective, known)
    found = occam(error=error, nats=one.bits * math.log(2), m=known.units, delta=delta)
    more = (Term("bits", one.bits), Term("digits", one.digits))
    return replace(found, terms=(*found.terms, *more))
