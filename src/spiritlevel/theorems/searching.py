"""A claim about binary weights: what an algorithm finds lies where solutions are dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spiritlevel.theorems import courses
from spiritlevel.theorems.base import Claim, Finding, Witness
from spiritlevel.theorems.setting import Setting
from spiritlevel.theorems.statistics import paired_interval
from spiritlevel.training.discrete import (
    Instance,
    Searched,
    energies,
    perceptron,
    rbp,
    replicated_anneal,
    sbpi,
    solutions,
)
from spiritlevel.training.discrete.density import distances

SIZE, PATTERNS = 21, 10
INSTANCES = 60
DISTANCE = 3  # weights: the one that is judged
SHOWN = 8  # the largest one that is drawn
RUNS = 3  # of each algorithm on each instance
SWEEPS = 100  # of replicated annealing
TYPICAL = 500  # solutions of one instance that are drawn, without replacement

ALGORITHMS: dict[str, Callable[[Instance, int], Searched]] = {
    "SBPI": lambda instance, seed: sbpi(instance, seed=seed),
    "reinforced BP": lambda instance, seed: rbp(instance, seed=seed),
    "replicated annealing": lambda instance, seed: replicated_anneal(
        instance, seed=seed, sweeps=SWEEPS
    ),
}


@dataclass(frozen=True, eq=False)
class Case:
    """An instance, all its solutions, some drawn from them, and those that were found, as rows."""

    instance: Instance
    everything: np.ndarray
    typical: np.ndarray
    found: dict[str, np.ndarray]


def dense_solutions(setting: Setting) -> Witness:
    """Instances with solutions, from seeds 0, 1, ...; those without any are passed over."""
    cases: list[Case] = []
    seed = 0
    while len(cases) < INSTANCES:
        instance = perceptron(SIZE, PATTERNS / SIZE, seed=seed)
        seed += 1
        everything = solutions(instance)
        if len(everything):
            found = {name: _found(instance, run) for name, run in ALGORITHMS.items()}
            cases.append(Case(instance, everything, _typical(everything, seed), found))
    return {"cases": cases}


def _typical(everything: np.ndarray, seed: int) -> np.ndarray:
    """Uniform draws, or all solutions where there are few."""
    order = np.random.default_rng([seed, 1]).permutation(len(everything))
    return everything[order[:TYPICAL]]


def _found(instance: Instance, run: Callable[[Instance, int], Searched]) -> np.ndarray:
    """The solutions of several runs; a run that found none leaves no row."""
    ends = [run(instance, seed) for seed in range(RUNS)]
    rows = [end.weights for end in ends if end.found]
    return np.stack(rows) if rows else np.zeros((0, instance.size), dtype=np.int8)


def entropies(everything: np.ndarray, rows: np.ndarray, distance: int) -> np.ndarray:
    """The local entropy of each row: log(solutions within the distance) / weights."""
    counts = (distances(everything, rows) <= distance).sum(0)
    return np.log(counts) / everything.shape[1]


def differences(cases: list[Case], name: str, distance: int) -> list[float]:
    """Mean local entropy of what was found minus that of typical ones, for each instance."""
    return [
        float(
            entropies(case.everything, case.found[name], distance).mean()
            - entropies(case.everything, case.typical, distance).mean()
        )
        for case in cases
        if len(case.found[name])
    ]


def check_dense(cases: list[Case]) -> Finding:
    """The mean difference over the instances with its t interval, and every solution is one."""
    wrong = sum(
        int((energies(case.instance, rows) > 0).sum())
        for case in cases
        for rows in (case.everything, case.typical, *case.found.values())
        if len(rows)
    )
    if wrong:
        return Finding(f"{wrong} rows are no solutions", {"no solutions": wrong}, False)
    typical = [entropies(c.everything, c.typical, DISTANCE).mean() for c in cases]
    numbers: dict[str, float] = {
        "instances": len(cases),
        "solutions of an instance, median": float(np.median([len(c.everything) for c in cases])),
        f"local entropy of typical ones at distance {DISTANCE}": float(np.mean(typical)),
    }
    lows, words = [], []
    for name in cases[0].found:
        gaps = differences(cases, name, DISTANCE)
        mean, low, high = paired_interval(gaps)
        numbers |= {f"{name}, more by": mean, f"{name}, from": low, f"{name}, to": high}
        numbers[f"{name}, instances solved"] = len(gaps)
        lows.append(low)
        words.append(f"+{mean:.3f}" if mean > 0 else f"{mean:.3f}")
    holds = len(cases) >= 50 and min(lows) > 0
    return Finding(f"{', '.join(words)}; least end {min(lows):+.4f}", numbers, holds)


def draw_dense(cases: list[Case]) -> str:
    reach = list(range(1, SHOWN + 1))
    curves = {
        name: [paired_interval(differences(cases, name, k)) for k in reach]
        for name in cases[0].found
    }
    return courses.gaps(reach, curves, DISTANCE)


SEARCHING: dict[str, Claim] = {
    "dense_solutions": Claim(
        "Solutions of a binary perceptron that an algorithm finds have more solutions around them "
        "than typical ones: a larger local entropy.",
        "Baldassi et al. 2015, 2016",
        f"{INSTANCES} instances, {SIZE} weights, {PATTERNS} patterns",
        dense_solutions,
        check_dense,
        draw_dense,
        "example",
        "By how much the local entropy of what each algorithm found exceeds that of typical "
        "solutions, with 95 % intervals over the instances; the claim is judged at the marked "
        "distance.",
        long=True,
    ),
}
