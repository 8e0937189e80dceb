"""Verdicts of `compare` against brute force: dense Hessians, and their orbits searched directly."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest
from torch import nn

import pairs
import spiritlevel as sl
from spiritlevel.audits import comparison
from spiritlevel.audits.comparison import EQUAL, Pair

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"
INDICES = range(100 if LONG else 14)


@functools.cache
def compared(index: int) -> tuple[dict[str, sl.Objective], tuple[Pair, ...]]:
    nets = pairs.pair(index)
    with pytest.MonkeyPatch.context() as patch:  # the half of the work that no verdict looks at
        patch.setattr(comparison, "_turned", lambda *_: None)
        return nets, sl.compare(nets, list(pairs.NORMS)).pairs


@functools.cache
def truth(index: int, network: str, name: str) -> pairs.Least:
    objective = compared(index)[0][network]
    matrix = pairs.dense_hessian(objective)
    return pairs.least(matrix, pairs.exponents(objective.module), name)


def here(index: int, network: str, name: str) -> float:
    values = np.linalg.eigvalsh(pairs.dense_hessian(compared(index)[0][network]))
    if name == "hessian_trace":
        return float(values.sum())
    return float(np.linalg.norm(values, pairs.NORMS[name]))


@pytest.mark.parametrize("index", INDICES)
def test_what_is_decided_is_so(index: int) -> None:
    assert compared(index)[1]
    for pair in compared(index)[1]:
        both = pair.sharper, pair.other
        for network, value in zip(both, pair.values, strict=True):
            assert abs(value.value - here(index, network, pair.name)) <= 4 * value.error + 1e-9
        if pair.least is not None:
            for network, interval in zip(both, pair.least, strict=True):
                least = truth(index, network, pair.name)
                assert interval.low <= least.high
                assert interval.high >= least.low
        if pair.answer == "survives":
            high, low = (truth(index, network, pair.name) for network in both)
            assert high.high > low.low
        if pair.answer == "coordinates":
            high, low = (truth(index, network, pair.name) for network in both)
            assert high.low <= (1 + EQUAL) * low.high
        if pair.answer == "equal":
            high, low = (here(index, network, pair.name) for network in both)
            assert high <= (1 + EQUAL) * low


def test_most_is_decided() -> None:
    """Traces of smooth units are no sums of exponentials: nothing is known of what is left."""
    for name in pairs.NORMS:
        answers = []
        for index in INDICES:
            nets, rows = compared(index)
            smooth = any(isinstance(m, nn.Tanh) for o in nets.values() for m in o.module.modules())
            if not (smooth and name == "hessian_trace"):
                answers += [pair.answer for pair in rows if pair.name == name]
        assert {"survives", "coordinates"} <= set(answers)
        assert answers.count("undecided") <= len(answers) / 4, name
