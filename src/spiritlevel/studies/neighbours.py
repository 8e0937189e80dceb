"""Pairs of networks that differ in one axis and in nothing else but the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spiritlevel.studies.given import numbered


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Pairs along one axis: both networks, the setting of the other axes, and the environment.

    An environment is two configurations; `incomplete` settings lack some value of the axis.
    """

    first: np.ndarray
    second: np.ndarray
    setting: np.ndarray
    environment: np.ndarray
    incomplete: int

    def products(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """sign(dx) sign(dy) of every pair."""
        dx, dy = (_signs(row[self.first], row[self.second]) for row in (x, y))
        return dx * dy


def _signs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """By comparisons, as the difference of two infinities is none."""
    return (first > second).astype(float) - (first < second)


def neighbours(varying: Mapping[str, np.ndarray]) -> dict[str, Neighbours]:
    """The pairs along every axis that has some."""
    found = {axis: _along(axis, varying) for axis in varying}
    return {axis: pairs for axis, pairs in found.items() if len(pairs.first)}


def _along(axis: str, varying: Mapping[str, np.ndarray]) -> Neighbours:
    values = varying[axis]
    others = [codes for name, codes in varying.items() if name != axis]
    setting = numbered(zip(*others, strict=True)) if others else np.zeros(len(values), int)
    order = np.lexsort((values, setting))
    setting, values = setting[order], values[order]
    steps = range(1, int(np.bincount(setting).max()))
    ends = [np.flatnonzero(setting[:-step] == setting[step:]) for step in steps]
    first = np.concatenate([np.zeros(0, int), *ends])
    second = first + np.repeat(np.arange(1, len(ends) + 1), [len(end) for end in ends])
    apart = values[first] != values[second]
    first, second = first[apart], second[apart]
    configuration = numbered(zip(setting, values, strict=True))
    pair = configuration[first] * (configuration.max() + 1) + configuration[second]
    has = np.bincount(np.unique(np.stack([setting, values]), axis=1)[0])
    return Neighbours(
        order[first],
        order[second],
        np.unique(setting[first], return_inverse=True)[1],
        np.unique(pair, return_inverse=True)[1],
        int((has < len(np.unique(values))).sum()),
    )
