"""A claim about published bounds: they follow from the numbers printed beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spiritlevel.bounds.binary import kl_inverse
from spiritlevel.theorems import courses
from spiritlevel.theorems.base import Claim, Finding, Witness
from spiritlevel.theorems.setting import Setting

EXAMPLES, DELTA = 55_000, 0.025
DIGIT = 0.0005  # errors are printed with three
NEAR = 0.005  # how far a bound with three digits is from what follows


@dataclass(frozen=True)
class Printed:
    """A column of the table: the error of drawn networks, their divergence, the bound."""

    name: str
    error: float
    kl: float
    bound: float


TRUE = (
    Printed("600", 0.028, 5144, 0.161),
    Printed("1200", 0.027, 5977, 0.179),
    Printed("300, 300", 0.027, 5791, 0.170),
    Printed("600, 600", 0.028, 6534, 0.186),
    Printed("1200, 1200", 0.029, 8558, 0.223),
    Printed("600, 600, 600", 0.027, 7861, 0.201),
)
RANDOM = Printed("600, random labels", 0.112, 201_131, 1.352)


def printed_bounds(setting: Setting) -> Witness:
    """The table, and the number of examples it is of."""
    return {"true": TRUE, "random": RANDOM, "examples": EXAMPLES}


def budget(kl: float, examples: int) -> float:
    """(KL + log(pi^2 m / (6 delta))) / (m - 1).

    The term of the prior's place on its grid is left out: the table does not say it, and it moves
    no bound by more than 0.0005.
    """
    return (kl + math.log(math.pi**2 * examples / (6 * DELTA))) / (examples - 1)


def away(row: Printed, examples: int) -> float:
    """How far a bound is from those that follow from errors that are printed like this."""
    most = budget(row.kl, examples)
    low, high = (kl_inverse(row.error + digit, most) for digit in (-DIGIT, DIGIT))
    return max(low - row.bound, row.bound - high, 0.0)


def check_printed(true: tuple[Printed, ...], random: Printed, examples: int) -> Finding:
    """True labels: kl inverted, within 0.005. Random ones: the square root, to the last digit."""
    numbers: dict[str, float] = {}
    for row in true:
        numbers[f"{row.name}: printed"] = row.bound
        numbers[f"{row.name}: recomputed"] = kl_inverse(row.error, budget(row.kl, examples))
    far = max(away(row, examples) for row in true)
    root = math.sqrt(budget(random.kl, examples) / 2)
    inverted = kl_inverse(random.error, budget(random.kl, examples))
    numbers |= {"farthest": far, "random labels, printed": random.bound}
    numbers |= {"random labels, square root": root, "random labels, kl inverted": inverted}
    holds = far <= NEAR and abs(root - random.bound) <= DIGIT and 0.5 < inverted < 1
    words = f"{len(true)} within {far:.4f}; random labels {root:.3f}, inverted {inverted:.3f}"
    return Finding(words, numbers, holds)


def draw_printed(true: tuple[Printed, ...], random: Printed, examples: int) -> str:
    error = sum(row.error for row in true) / len(true)
    nats = [10 ** (3 + 0.02 * i) for i in range(126)]
    return courses.published(
        [(row.kl, row.bound) for row in true],
        (random.kl, random.bound),
        [(kl, kl_inverse(error, budget(kl, examples))) for kl in nats],
        [(kl, math.sqrt(budget(kl, examples) / 2)) for kl in nats],
    )


PUBLISHED: dict[str, Claim] = {
    "nonvacuous_table": Claim(
        "The bounds of networks trained on true labels that Dziugaite and Roy print follow from "
        "the errors and the divergences beside them by kl inverted; that of random labels, above "
        "1, is the square root √(B / 2), and inverted it is below 1.",
        "Dziugaite and Roy 2017",
        f"{len(TRUE) + 1} networks of their table, m = {EXAMPLES}",
        printed_bounds,
        check_printed,
        draw_printed,
        "example",
        "Printed bounds against printed divergences, kl inverted at the mean error of the true "
        "labels, and the square root, which passes 1.",
    ),
}
