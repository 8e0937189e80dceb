"""How dense solutions are: all of them by enumeration, those around a point by sampling too."""

from __future__ import annotations

import math
import time
from itertools import combinations

import numpy as np

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.training.discrete.instances import (
    Instance,
    Signs,
    checked_instance,
    checked_weights,
    energies,
    fields,
    generator,
    votes,
)

MOST = 21  # weights, of which all configurations are looked at
LOW = 12  # of them in one table
AT_ONCE = 2**16  # configurations that are judged together
TOLERANCE = 0.1  # relative standard error of a count that is good


def solutions(instance: Instance) -> Signs:
    """Every solution as a row, in order of enumeration; for 21 weights at most.

    A row drawn at random is a typical solution.
    """
    checked_instance(instance)
    if instance.size > MOST:
        raise SpiritlevelError(
            f"instance has {instance.size} weights; all configurations are looked at up to {MOST}: "
            "take count_within(..., samples=) around a solution"
        )
    low = min(LOW, instance.size)
    tails, heads = configurations(low), configurations(instance.size - low)
    # fields are sums over weights: those of the two parts are made once
    inner = fields(instance, np.pad(tails, ((0, 0), (0, instance.size - low)))).astype(np.int8)
    outer = fields(instance, np.pad(heads, ((0, 0), (low, 0)))).astype(np.int8)
    found = []
    for head, shift in zip(heads, outer, strict=True):
        right = tails[(votes(inner + shift) > 0).all(-1)]
        found.append(np.concatenate([right, np.tile(head, (len(right), 1))], axis=1))
    return np.concatenate(found)


def configurations(size: int) -> Signs:
    """All 2^size rows of signs."""
    codes = np.arange(2**size)[:, None]
    return (2 * (codes >> np.arange(size) & 1) - 1).astype(np.int8)


def distances(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The number of places where rows differ from weights, (rows,) or (rows, weights)."""
    products = rows.astype(np.float32) @ weights.astype(np.float32).T
    return ((rows.shape[-1] - products) / 2).astype(np.int64)


def local_entropy(
    instance: Instance,
    solution: np.ndarray,
    distance: int,
    *,
    samples: int | None = None,
    seed: int = 0,
) -> Estimate:
    """log(number of solutions with at most `distance` other weights) / number of weights.

    By enumeration if samples is None, else from that many draws, see `count_within`.
    """
    begin = time.perf_counter()
    found = count_within(instance, solution, distance, samples=samples, seed=seed)
    if found.value < 1:
        raise SpiritlevelError(
            f"no solution was seen within a distance of {distance}: its logarithm is -inf; give a "
            "solution, a larger distance or more samples"
        )
    error = None if found.stderr is None else found.stderr / found.value / instance.size
    return Estimate(
        math.log(found.value) / instance.size,
        stderr=error,
        seconds=time.perf_counter() - begin,
        status=found.status,
        remedy=found.remedy,
    )


def count_within(
    instance: Instance,
    solution: np.ndarray,
    distance: int,
    *,
    samples: int | None = None,
    seed: int = 0,
) -> Estimate:
    """The number of solutions within a Hamming distance, sum_k C(N, k) p_k, p_k at distance k.

    Distances with fewer configurations than their share of the samples are counted in full, at
    the others p_k is the share of uniform draws, so that the sum has no bias. Its standard error
    is that of p = (hits + 1) / (draws + 2), which is not zero where none was hit.
    """
    begin = time.perf_counter()
    row = checked_weights(instance, solution, "solution")
    if row.ndim != 1:
        raise SpiritlevelError(f"solution has the shape {row.shape}; give one row of weights")
    doors.number("distance", distance, 0, whole=True)
    draws = generator(seed)
    reach = min(int(distance), instance.size)
    if samples is None:
        total = int((distances(solutions(instance), row) <= reach).sum())
        return Estimate(float(total), seconds=time.perf_counter() - begin)
    doors.number("samples", samples, 2, whole=True)
    value, variance, unseen = 0.0, 0.0, []
    each = max(2, int(samples) // (reach + 1))
    for k in range(reach + 1):
        count = math.comb(instance.size, k)
        exact = count <= each
        hits = _hits(instance, row, _subsets(instance.size, k, None if exact else each, draws))
        tried = count if exact else each
        value += count * (hits / tried)
        if not exact:
            p = (hits + 1) / (tried + 2)
            variance += count**2 * p * (1 - p) / tried
            unseen += [k] if hits == 0 else []
    return _judged(value, math.sqrt(variance), unseen, time.perf_counter() - begin)


def _judged(value: float, error: float, unseen: list[int], seconds: float) -> Estimate:
    remedy = ""
    if error > TOLERANCE * value:
        rare = f"none was hit at distance {unseen[0]}; " if unseen else ""
        remedy = f"{rare}give more samples"
    status = Status.BUDGET if remedy else Status.CONVERGED if error else Status.EXACT
    return Estimate(value, stderr=error, seconds=seconds, status=status, remedy=remedy)


def _subsets(size: int, k: int, samples: int | None, draws: np.random.Generator) -> np.ndarray:
    """Which k of `size` places are turned, (rows, size): all choices, or uniform draws."""
    if samples is None:
        places = np.array(list(combinations(range(size), k)), dtype=np.int64)
    else:
        places = draws.random((samples, size)).argsort(1)[:, :k]
    turned = np.zeros((len(places), size), dtype=bool)
    np.put_along_axis(turned, places, True, axis=1)
    return turned


def _hits(instance: Instance, row: np.ndarray, turned: np.ndarray) -> int:
    """How many of the turned rows are solutions."""
    some = range(0, len(turned), AT_ONCE)
    rows = (np.where(turned[i : i + AT_ONCE], -row, row) for i in some)
    return sum(int((energies(instance, r) == 0).sum()) for r in rows)
