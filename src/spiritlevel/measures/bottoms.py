"""What is left of a measure at the bottom of an orbit: an interval, or why it is not known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.matrices import Kind
from spiritlevel.measures.base import Bottom
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.orbit import OrbitMinimum, minimum
from spiritlevel.orbit.minimum import Norm
from spiritlevel.orbit.program import Matrix
from spiritlevel.results.comparison import Interval

# Relative, beside the errors: what the rounding of parameters and products may do to a value
ALIKE = {torch.float64: 1e-6, torch.float32: 1e-3}
SURE = 3  # errors: what differs by more is different
TOL = 2e-3  # of the least norms of the Hessian
SLACK = 3  # tolerances by which a search that came to rest may lie above the minimum
ROUGH = {"tol": 1e-2, "rtol": 0.05, "budget": 40, "least_probes": 8}
DOMINANT = 0.5  # of the largest eigenvalue: a smallest one that is surely not the norm


@dataclass
class Bottoms:
    """The orbit minima of one network, each made once.

    `offset` leads from the least trace to a least norm of the Hessian that is near: that of an
    earlier point of a training. Both move along when the point is rescaled, so it does not.
    """

    instruments: Instruments
    found: dict[tuple[Norm, Kind], OrbitMinimum] = field(default_factory=dict)
    offset: Tensor | None = None

    @property
    def alone(self) -> bool:
        """Whether no rescaling leads anywhere: what is least over one point is what is there."""
        return not self.instruments.group.dim

    def interval(self, bottom: Bottom, here: Estimate) -> Interval:
        """Where the least value of a measure lies, given its value here.

        Raises an error where that is not known: for what is divided out, and for traces of Hessians
        that are no sums of exponentials.
        """
        alike = ALIKE[self.instruments.objective.dtype]
        if self.alone:
            noise = SURE * here.error + alike * abs(here.value)
            return Interval(here.value, here.value - noise, here.value + noise)
        least = self.minimum(bottom.norm, bottom.matrix)
        if least.divided_out:
            raise SpiritlevelError(
                f"{len(least.divided_out)} one-sided rescalings send curvature to zero, so that "
                "the least value is not attained"
            )
        ends = bracket(least, alike)
        if bottom.signed and not self._dominates(least):
            ends = replace(ends, low=0.0)  # no norm is below its largest eigenvalue
        ends = ends.scaled(bottom.factor(self.instruments.objective))
        if bottom.order is None and ends.low > here.value + SURE * here.error:
            raise SpiritlevelError(
                f"the least value {ends.low:.6g} lies above the value {here.value:.6g} here: an "
                "error of spiritlevel's; please report it"
            )
        return ends

    def minimum(self, norm: Norm, matrix: Kind) -> OrbitMinimum:
        key = norm, matrix
        if key not in self.found:
            self.found[key] = self._minimum(norm, matrix)
        return self.found[key]

    def _minimum(self, norm: Norm, matrix: Kind) -> OrbitMinimum:
        tools = self.instruments
        if norm == "trace" and (matrix == "ggn" or tools.curvatures is not None):
            return tools.least_trace  # whose diagonal is that of the Hessian, as was seen
        if norm == "spectral" and matrix == "ggn":
            return tools.least_norm
        near = self._near() if norm == "spectral" else None
        return minimum(
            tools.objective,
            tools.group,
            norm=norm,
            operator=Matrix(matrix, lambda: tools.hessian, False, matrix)
            if matrix == "hessian"
            else matrix,
            tol=TOL,
            seed=tools.seed,
            diagonal=tools.diagonal,
            certify=tools.certify,
            start=near,
            here=self._here(matrix),
        )

    def _here(self, matrix: Kind) -> Estimate | None:
        """The norm of the Hessian at the given point, where it was measured."""
        if matrix != "hessian" or not self.instruments.used("extremes"):
            return None
        return max(self.instruments.extremes.values, key=lambda end: abs(end.value))

    def _near(self) -> Tensor | None:
        """Where the Gauss-Newton norm is least: near a minimum, that of the Hessian is not far."""
        try:
            if self.offset is not None:
                return self.instruments.least_trace.log_scales + self.offset
            return self.instruments.least_norm.log_scales
        except SpiritlevelError:  # a loss without such a matrix
            return None

    def twin(self, point: Objective, both_ends: bool) -> Instruments:
        """At another point of the orbit, where values are wanted and no digits."""
        here = self.instruments
        settings = {"seed": here.seed, "group": here.group, "compile": False, "certify": False}
        found = Instruments(point, **ROUGH, both_ends=both_ends, **settings)
        if not here.group.norms:  # their eps would have to move along: the law would not hold
            now = {**here.objective.buffers, **here.objective.params}
            there = {**point.buffers, **point.params}
            found.follow(here, here.group.locate(now, there))
        return found

    def _dominates(self, least: OrbitMinimum) -> bool:
        """Whether the largest eigenvalue is the norm where that is least, and none is near it."""
        there = self.twin(least.objective, both_ends=True)
        ends = [e.value for e in there.extremes.values]
        return -min(ends) <= DOMINANT * max(ends)


def bracket(least: OrbitMinimum, alike: float) -> Interval:
    """The ends between which an orbit minimum lies.

    Norms of the Hessian have no rigorous lower bound. log ||D H D|| is convex, so its minimum lies
    below a point at rest by at most |subgradient| |distance|: with a distance of one per generator,
    in the root mean square, several times what brute force finds on hundreds of networks.
    """
    noise = SURE * (least.stderr or 0.0) + alike * least.value
    if least.lower_bound is not None:
        if not least.lower_bound <= least.value:  # a NaN has no bound
            raise SpiritlevelError("the bound of the least value is not finite or lies above it")
        return Interval(least.value, least.lower_bound - noise, least.value + noise)
    if not math.isfinite(least.value):
        raise SpiritlevelError("the least value is not finite")
    high = least.value * (1 + TOL) + noise
    if least.status is not Status.CONVERGED:
        return Interval(least.value, 0.0, high)
    slack = SLACK * TOL + math.sqrt(len(least.log_scales)) * least.balance
    return Interval(least.value, max(least.value * (1 - slack) - noise, 0.0), high)
