"""How long all statistics of a study of 10,000 networks and 50 measures take.

    OMP_NUM_THREADS=2 python benchmarks/rankings.py [configurations] [seeds] [measures]

2,000 of the 3^7 configurations of Jiang et al. (2020) with five seeds each, 1,000 resamples, 9,999
permutations, the noise of the outcome and one control. As a peer, SciPy's tau of the same measures
without any interval, once for each of the resamples. What comes out is checked against SciPy.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from itertools import product

import numpy as np
from scipy.stats import kendalltau

from spiritlevel.results.study import Network
from spiritlevel.studies import analyse

AXES, VALUES, RESAMPLES = 7, 3, 1000


def networks(configurations: int, seeds: int, measures: int) -> list[Network]:
    """The gap depends on the axes and on chance, and each measure is blurred more than the last."""
    draws = np.random.default_rng(0)
    grid = np.array(list(product(range(VALUES), repeat=AXES)))
    chosen = grid[np.sort(draws.choice(len(grid), configurations, replace=False))]
    effects = chosen @ draws.normal(size=AXES)
    found = []
    for number, (point, effect) in enumerate(zip(chosen, effects, strict=True)):
        config = {f"axis {k}": int(value) for k, value in enumerate(point)}
        for seed in range(seeds):
            gap = effect + draws.normal()
            numbers = {"gap": gap, "gap_stderr": 0.1, "train_loss": draws.normal()}
            values = {f"m{k}": gap + (k + 1) * draws.normal() for k in range(measures)}
            found.append(Network(f"{number}-{seed}", config, seed, numbers, values, {}))
    return found


def main() -> None:
    configurations, seeds, measures = [*map(int, sys.argv[1:]), *(2000, 5, 50)[len(sys.argv) - 1 :]]
    made = networks(configurations, seeds, measures)
    gap = [one.numbers["gap"] for one in made]
    print(f"numpy {np.__version__}, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}, ", end="")
    print(f"load before {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    begin, used = time.perf_counter(), time.process_time()
    found = analyse(made, controls=["train_loss"], resamples=RESAMPLES)
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    begin, apart = time.perf_counter(), 0.0
    for row in found:
        tau = kendalltau([one.values[row.name] for one in made], gap, method="asymptotic")
        apart = max(apart, abs(row.tau.value - float(np.asarray(tau)[0])))
    alone = time.perf_counter() - begin
    print("| networks | measures | seconds | CPU seconds | peak MiB | SciPy's taus alone, s |")
    print("|---|---|---|---|---|---|")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    cells = [f"{len(made):,}", str(measures), f"{seconds:.1f}", f"{used:.1f}", f"{peak:,.0f}"]
    print("| " + " | ".join([*cells, f"{alone:.2f} (x {RESAMPLES:,} resamples)"]) + " |")
    print(f"largest difference from SciPy's tau: {apart:.1e}")


if __name__ == "__main__":
    main()
