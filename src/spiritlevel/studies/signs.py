"""How often a measure has the wrong sign when one hyper-parameter changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import erf

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.study import Signs
from spiritlevel.studies.given import Numbers, axes, complete, deviations, matched
from spiritlevel.studies.neighbours import Neighbours, neighbours

# Of the 100 pairs of 10 seeds, Dziugaite et al. ask for 12; of the 9 pairs of 3 seeds, nearly half.
LEAST = 4.0


def sign_error(
    configs: Sequence[Mapping[str, Any]],
    measure: Numbers,
    gap: Numbers,
    *,
    noise: Numbers | None = None,
    least: float = LEAST,
) -> Signs:
    """1/2 E[1 - sign(dC) sign(dG)] in every environment (Dziugaite et al., 2020).

    An environment is two configurations that differ in one axis, with all their seeds. `noise` is
    the standard error of each network's gap, sqrt(e (1 - e) / m) for an error e on m test examples:
    a pair weighs P(the sign of dG is right) - P(it is wrong) = erf(|dG| / sqrt(2 (s_1^2 + s_2^2))).
    Environments with an effective number of pairs (sum w)^2 / sum w^2 below `least` are left out.
    """
    measure, gap = matched(measure=measure, gap=gap)
    [spread] = [np.zeros(len(gap))] if noise is None else matched(gap=gap, noise=noise)[1:]
    number("least", least, above=0)
    varying = axes(configs, len(gap))
    known = complete(measure, gap)
    deviations("noise", spread[known])
    pairs = neighbours({name: codes[known] for name, codes in varying.items()})
    weights = None if noise is None else weighted(pairs, gap[known], spread[known])
    found = errors(pairs, measure[known], gap[known], weights, least)
    if found is None:
        raise SpiritlevelError(
            f"no two configurations that differ in one axis have {least:g} effective pairs: give "
            "more seeds, or a smaller least"
        )
    return found


def weighted(
    pairs: Mapping[str, Neighbours], gap: np.ndarray, noise: np.ndarray
) -> dict[str, np.ndarray]:
    """What every pair along every axis weighs: 0 if its order is a toss, 1 if it is sure."""
    found = {}
    for axis, along in pairs.items():
        with np.errstate(invalid="ignore"):  # two infinities are tied
            apart = np.abs(gap[along.first] - gap[along.second])
        spread = np.sqrt(2 * (noise[along.first] ** 2 + noise[along.second] ** 2))
        ratio = np.divide(apart, spread, out=np.full(len(apart), np.inf), where=spread > 0)
        found[axis] = np.where(apart > 0, erf(ratio), 0.0)
    return found


def errors(
    pairs: Mapping[str, Neighbours],
    measure: np.ndarray,
    gap: np.ndarray,
    weights: Mapping[str, np.ndarray] | None,
    least: float,
) -> Signs | None:
    """Over the environments that have complete pairs; None if there is none."""
    found = [np.zeros(0)]
    for axis, along in pairs.items():
        wrong = (1 - along.products(measure, gap)) / 2
        weight = np.ones(len(wrong)) if weights is None else weights[axis]
        total, squares, sums = (
            np.bincount(along.environment, each) for each in (weight, weight**2, weight * wrong)
        )
        kept = (total > 0) & (total**2 >= least * squares * (1 - 1e-9))
        found.append(sums[kept] / total[kept])
    every = np.concatenate(found)
    if not len(every):
        return None
    return Signs(
        float(every.mean()), float(np.quantile(every, 0.9)), float(every.max()), len(every)
    )
