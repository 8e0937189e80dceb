"""Kendall's tau along one axis at a time, while the others stand still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.studies.given import Numbers, axes, complete, matched
from spiritlevel.studies.neighbours import Neighbours, neighbours


@dataclass(frozen=True)
class Granulated:
    """Psi, the psi of every axis that has pairs, and over how many settings each is a mean.

    `incomplete` settings lack some value of the axis: what is there counts, one value does not.
    """

    psi: float
    by_axis: dict[str, float]
    settings: dict[str, int]
    incomplete: dict[str, int]


def granulated(configs: Sequence[Mapping[str, Any]], measure: Numbers, gap: Numbers) -> Granulated:
    """Psi = mean_i psi_i, with psi_i = mean over settings of the other axes of tau-a along axis i.

    tau-a along an axis is the mean of sign(dmu) sign(dg) over the pairs of networks that differ in
    this axis and in nothing else but the seed; with one seed it is that of Jiang et al. (2020).
    """
    measure, gap = matched(measure=measure, gap=gap)
    varying = axes(configs, len(gap))
    known = complete(measure, gap)
    pairs = neighbours({name: codes[known] for name, codes in varying.items()})
    if not pairs:
        raise SpiritlevelError(
            "configs: no two networks differ in one axis alone; give a grid of configurations"
        )
    return averaged(pairs, measure[known], gap[known])


def averaged(pairs: Mapping[str, Neighbours], measure: np.ndarray, gap: np.ndarray) -> Granulated:
    by_axis, settings = {}, {}
    for axis, along in pairs.items():
        sizes = np.bincount(along.setting)
        taus = np.bincount(along.setting, along.products(measure, gap)) / sizes
        by_axis[axis], settings[axis] = float(taus.mean()), len(sizes)
    incomplete = {axis: along.incomplete for axis, along in pairs.items()}
    return Granulated(float(np.mean(list(by_axis.values()))), by_axis, settings, incomplete)
