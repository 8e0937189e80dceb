"""How sure a classifier is of its decisions on the training data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.scope import set_apart
from spiritlevel.measures.base import DIAGONAL, JIANG, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import classes
from spiritlevel.objective.classes import Labels

SHARE = 0.1
PASSES = 2  # over the data: one for the labels, one for the margins


def margin(instruments: Instruments, share: float = SHARE) -> Estimate:
    """The margin f_y - max over c != y of f_c that a share of the examples do not exceed.

    Jiang et al. (2020): the 10th percentile. It is a margin of the data, the least that at least
    this share of all examples (tokens) are at or below; negative where so many are decided wrongly.
    """
    return timed(lambda: margin_of(instruments, share), passes=PASSES)


def inverse_margin(instruments: Instruments, share: float = SHARE) -> Estimate:
    """1 / gamma^2, gamma the margin that a share of the examples do not exceed.

    Jiang et al. (2020), equation 22, without the root and the number of examples.
    """
    return timed(lambda: positive_margin(instruments, share) ** -2, passes=PASSES)


def output_entropy(instruments: Instruments) -> Estimate:
    """The mean over the examples of -sum_c p_c log p_c, p = softmax of the outputs, in nats.

    Jiang et al. (2020) list its negative.
    """

    def mean() -> float:
        known, total = _labels(instruments), 0.0
        for f in classes.logits(instruments.objective, known):
            total += float(torch.special.entr(f.double().softmax(1)).sum())
        return total / known.units

    return timed(mean, passes=PASSES)


def training_error(instruments: Instruments) -> Estimate:
    """The share of the examples whose label has not the largest output; ties are errors."""
    return timed(lambda: float((~(_margins(instruments) > 0)).double().mean()), passes=PASSES)


def margin_of(instruments: Instruments, share: float) -> float:
    """The margin that a share of the examples do not exceed."""
    number("share", share, above=0)
    if share > 1:
        raise SpiritlevelError(f"share={share:g}: give a share of the examples, at most 1")
    found = _margins(instruments)
    rank = max(math.ceil(share * len(found) * (1 - 1e-12)), 1)  # 0.1 * 70 is 7
    return float(found.kthvalue(rank).values)


def positive_margin(instruments: Instruments, share: float) -> float:
    """The same, where it is divided by."""
    found = margin_of(instruments, share)
    if not found > 0:
        raise SpiritlevelError(
            f"the margin that {share:g} of the examples do not exceed is {found:.3g}: so many are "
            "decided wrongly, and nothing can be divided by it; choose a larger share, or train on"
        )
    return found


def timed(value: Callable[[], float], passes: float = 0) -> Estimate:
    """A closed computation and what it took."""
    begin = time.perf_counter()
    return Estimate(value(), matvecs=passes, seconds=time.perf_counter() - begin)


@set_apart()
def _labels(instruments: Instruments) -> Labels:
    return instruments.once("labels", lambda: classes.labels(instruments.objective))


def _margins(instruments: Instruments) -> Tensor:
    return instruments.once(
        "margins", lambda: classes.margins(instruments.objective, _labels(instruments)).double()
    )


ENTRIES: dict[str, Measure] = {
    "margin": Measure(
        margin,
        title="margin",
        family="margin",
        invariances=DIAGONAL,
        reference=JIANG,
        cost="two forward passes",
        shares="margins",
        work=Work(passes=PASSES),
        reading="larger means surer decisions",
    ),
    "inverse_margin": Measure(
        inverse_margin,
        title="inverse squared margin",
        family="margin",
        invariances=DIAGONAL,
        reference=JIANG,
        cost="two forward passes",
        shares="margins",
        work=Work(passes=PASSES),
        reading="larger means less sure decisions",
    ),
    "output_entropy": Measure(
        output_entropy,
        title="entropy of the outputs",
        family="margin",
        invariances=DIAGONAL,
        reference=JIANG,
        cost="two forward passes",
        work=Work(passes=PASSES),
        reading="larger means less sure decisions",
    ),
    "training_error": Measure(
        training_error,
        title="training error",
        family="margin",
        invariances=(*DIAGONAL, "output"),
        cost="two forward passes",
        shares="margins",
        work=Work(passes=PASSES),
        reading="larger means more wrong decisions",
    ),
}
