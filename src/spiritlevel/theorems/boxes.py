"""A claim about flat minimum search: its box is measured in the coordinates of the weights."""

from __future__ import annotations

import math

from torch import Tensor

from spiritlevel.measures import measure
from spiritlevel.measures.description import output_squares
from spiritlevel.objective import Objective
from spiritlevel.theorems import courses
from spiritlevel.theorems.base import Claim, Finding, Witness
from spiritlevel.theorems.setting import Setting, apart

FACTORS = (0.1, 0.5, 2.0, 10.0)
SAME = 1e-9


def scaled_boxes(setting: Setting) -> Witness:
    """Twins by factors on one layer, with the exponents of their weights."""
    objective, group = setting.few, setting.layers
    twins = {}
    for factor in FACTORS:
        t = group.identity()
        t[0] = math.log(factor)
        twins[factor] = group.apply(objective, t)
    one = group.identity()
    one[0] = 1.0
    return {
        "objective": objective,
        "twins": twins,
        "exponents": setting.factors(group, one).log().cpu(),
    }


def _box(objective: Objective) -> float:
    return measure(objective, ["flat_minimum_search"])["flat_minimum_search"].value


def changes(
    objective: Objective, twins: dict[float, Objective], exponents: Tensor
) -> tuple[dict[float, float], float]:
    """B at each twin minus B here, and (n2 - n1) of the law."""
    seen = (output_squares(objective).sum(0) > 0).cpu()
    here = _box(objective)
    more = -float(exponents[seen].sum())
    return {factor: _box(twin) - here for factor, twin in twins.items()}, more


def check_boxes(objective: Objective, twins: dict[float, Objective], exponents: Tensor) -> Finding:
    """B(D theta) - B(theta) = -sum_i log D_i over the weights that outputs see."""
    found, more = changes(objective, twins, exponents)
    numbers: dict[str, float] = {"n₂ - n₁": more}
    error = max(abs(change - more * math.log(a)) / (1 + abs(change)) for a, change in found.items())
    numbers |= {f"B grows, factor {a:g}": change for a, change in found.items()}
    gap = max(apart(objective, twin) for twin in twins.values())
    numbers |= {"relative error": error, "gap of predictions": gap}
    shown = f"{more:+.0f} log a, error {error:.0e}"
    return Finding(shown, numbers, error < SAME and gap < SAME)


def draw_boxes(objective: Objective, twins: dict[float, Objective], exponents: Tensor) -> str:
    found, more = changes(objective, twins, exponents)
    return courses.box_growth(found, more)


BOXES: dict[str, Claim] = {
    "flat_box_law": Claim(
        "Hochreiter and Schmidhuber's B, minus the log volume of a flat box, grows by "
        "(n₂ - n₁) log a when n₁ weights are multiplied by a and n₂ divided by it.",
        "Hochreiter and Schmidhuber 1997",
        f"{len(FACTORS)} twins, factors on one layer",
        scaled_boxes,
        check_boxes,
        draw_boxes,
        caption="B at equivalent networks minus B as trained, and the line of the law: the box of "
        "one function can have any volume.",
    ),
}
