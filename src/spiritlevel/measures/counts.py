"""How large a class of networks is, whatever its weights are."""

from __future__ import annotations

import math
from itertools import accumulate

from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import DIAGONAL, JIANG, UNIT, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.margins import timed
from spiritlevel.measures.stacks import chain_of


def parameter_count(instruments: Instruments) -> Estimate:
    """The number of chosen parameters."""
    return Estimate(float(instruments.objective.size))


def vc_dimension(instruments: Instruments) -> Estimate:
    """L + (sum_i W_i) log2(4 e R log2(2 e R)), R = sum_i i k_i, which bounds the VC dimension.

    Bartlett et al. (2019), for rectifiers: W_i parameters in the layers 1 to i of L, k_i units in
    layer i (all positions of a convolution, whose weights count once). All weights of the model
    count, chosen or not. With several outputs it bounds the sign of each of them.
    """

    def bound() -> float:
        layers = chain_of(instruments.objective, "the VC dimension")
        return vc_bound([one.parameters for one in layers], [one.units for one in layers])

    return timed(bound)


def vc_bound(parameters: list[int], units: list[int]) -> float:
    """The same from the parameters and the units of every layer."""
    depth, total = len(units), sum(accumulate(parameters))
    width = math.e * sum(i * k for i, k in enumerate(units, 1))
    return depth + total * math.log2(4 * width * math.log2(2 * width))


ENTRIES: dict[str, Measure] = {
    "parameter_count": Measure(
        parameter_count,
        title="number of parameters",
        family="count",
        invariances=(*DIAGONAL, "output"),
        reference=JIANG,
        cost="nothing",
        work=Work(),
        reading="larger means more capacity",
    ),
    "vc_dimension": Measure(
        vc_dimension,
        title="VC dimension, at most",
        family="count",
        invariances=(*UNIT, "output"),
        reference="Bartlett et al. (2019)",
        cost="one trace of the model",
        work=Work(),
        reading="larger means more capacity",
    ),
}
