"""The networks of a study as rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spiritlevel.base.doors import names_if_any, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.study import Network
from spiritlevel.studies.given import axes, deviations, enough, generator, numbered, several, varied
from spiritlevel.studies.neighbours import Neighbours, neighbours
from spiritlevel.studies.ranks import drawn
from spiritlevel.studies.tally import Layout


@dataclass(frozen=True, eq=False)
class Sample:
    """Networks that have the outcome, and the resamples that all measures share."""

    outcome: np.ndarray
    noise: np.ndarray | None  # standard errors of the outcome
    controls: dict[str, np.ndarray]
    varying: dict[str, np.ndarray]  # axis -> number of each network's value
    clusters: np.ndarray  # number of each network's configuration
    draws: np.ndarray
    seed: int

    def layout(self, known: np.ndarray) -> Layout:
        return Layout(self.clusters[known], self.draws.shape[1])

    def configurations(self, known: np.ndarray) -> int:
        return len(np.unique(self.clusters[known]))

    def along(self, known: np.ndarray) -> dict[str, Neighbours]:
        return neighbours(self.values(known))

    def values(self, known: np.ndarray) -> dict[str, np.ndarray]:
        return {axis: codes[known] for axis, codes in self.varying.items()}


def sampled(
    networks: Sequence[Network],
    outcome: str,
    controls: Sequence[str],
    examples: int | None,
    resamples: int,
    seed: int,
) -> tuple[Sample, list[Network]]:
    """The networks that have the outcome, as rows and as they are."""
    one_of("outcome", outcome, dict.fromkeys(name for one in networks for name in one.numbers))
    source = generator(seed)
    has = ~np.isnan(numbers(networks, outcome))
    enough(has, f"the outcome {outcome}", 3)
    kept = [one for one, here in zip(networks, has, strict=True) if here]
    every = numbers(kept, outcome)
    varied(outcome=every)
    varying = axes([one.config for one in kept], len(kept))
    clusters = numbered(zip(*varying.values(), strict=True)) if varying else np.arange(len(kept))
    several(clusters, 3)
    draws = drawn(int(clusters.max()) + 1, resamples, source)
    given = controlled(kept, controls, outcome)
    noise = _noise(kept, outcome, examples)
    return Sample(every, noise, given, varying, clusters, draws, seed), kept


def numbers(networks: Sequence[Network], name: str) -> np.ndarray:
    """One of their numbers, NaN where it is not there."""
    return np.array([one.numbers.get(name, np.nan) for one in networks], dtype=float)


def controlled(
    networks: Sequence[Network], controls: Sequence[str], outcome: str
) -> dict[str, np.ndarray]:
    """The numbers of each control; of an axis of texts, whether it is each one but the first."""
    found: dict[str, np.ndarray] = {}
    known = dict.fromkeys(name for one in networks for name in (*one.config, *one.numbers))
    known.pop(outcome, None)  # given itself it has no order
    for control in names_if_any("controls", controls):
        one_of("controls", control, known)
        row = [one.config.get(control, one.numbers.get(control, np.nan)) for one in networks]
        if all(isinstance(value, (bool, int, float)) for value in row):
            found[control] = np.array(row, dtype=float)
        else:
            texts = list(map(str, row))
            if len(set(texts)) == 1:
                raise SpiritlevelError(f"{control} is {texts[0]} everywhere: give one that varies")
            for text in list(dict.fromkeys(texts))[1:]:
                found[f"{control}={text}"] = np.array([one == text for one in texts], dtype=float)
    for control, row in found.items():
        enough(~np.isnan(row), control, 3)
        varied(**{control: row[~np.isnan(row)]})
    return found


def _noise(networks: Sequence[Network], outcome: str, examples: int | None) -> np.ndarray | None:
    if examples is None:
        told = numbers(networks, f"{outcome}_stderr")
        if np.isnan(told).any():
            return None
        deviations(f"{outcome}_stderr", told)
        return told
    error = numbers(networks, "test_error")
    if not ((error >= 0) & (error <= 1)).all():
        raise SpiritlevelError(
            f"examples={examples}: the noise is that of each network's test_error, give networks "
            "with this number, a share from 0 to 1"
        )
    return np.sqrt(error * (1 - error) / examples)
