"""What the statistics are given: rows of numbers of networks, and their configurations."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from spiritlevel.base.doors import shown
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import seeded

Numbers = Sequence[float] | np.ndarray


def column(name: str, value: Any) -> np.ndarray:
    """The numbers in a row; refuse what is none."""
    wrong = SpiritlevelError(f"{name}={shown(value)}: give a list of numbers, one for each network")
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise wrong
    try:
        found = np.asarray(list(value) if not hasattr(value, "__array__") else value)
        if found.ndim != 1 or not len(found) or found.dtype.kind == "c":
            raise wrong
        return found.astype(float)
    except (TypeError, ValueError, RuntimeError):  # the last of a tensor that has a gradient
        raise wrong from None


def matched(**given: Any) -> list[np.ndarray]:
    """Several rows, all of them as long as the first."""
    found = {name: column(name, value) for name, value in given.items()}
    (first, size), *others = ((name, len(row)) for name, row in found.items())
    for name, length in others:
        if length != size:
            raise SpiritlevelError(
                f"{first} has {size} numbers and {name} has {length}: give one for each network"
            )
    return list(found.values())


def labels(name: str, value: Any, size: int) -> np.ndarray:
    """Which configuration each network is of, numbered as they come."""
    wrong = SpiritlevelError(
        f"{name}={shown(value)}: give a list with the configuration of each of {size} networks"
    )
    right = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))
    try:
        if not right or len(value) != size:
            raise wrong
        return numbered(value)
    except TypeError:
        raise wrong from None


def numbered(values: Iterable[Any]) -> np.ndarray:
    """Equal values get equal numbers, 0 for the first."""
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def axes(configs: Any, size: int) -> dict[str, np.ndarray]:
    """The axes that vary, with the number of each network's value on it."""
    wanted = "give a list with the axes and values of each network"
    if not isinstance(configs, Sequence) or isinstance(configs, str):
        raise SpiritlevelError(f"configs={shown(configs)}: {wanted}")
    if not all(isinstance(one, Mapping) for one in configs):
        raise SpiritlevelError(f"configs={shown(configs)} holds more than mappings: {wanted}")
    if len(configs) != size:
        raise SpiritlevelError(f"configs has {len(configs)} entries for {size} networks: {wanted}")
    names = list(configs[0])
    for one in configs:
        if set(one) != set(names):
            raise SpiritlevelError(f"configs has axes {names} and {list(one)}: {wanted}")
    codes = {name: numbered(key(one[name]) for one in configs) for name in names}
    return {name: found for name, found in codes.items() if found.max() > 0}


def key(value: Any) -> Hashable:
    """What is the same for equal values. Lists are values too; True is not 1, and NaN is NaN."""
    if isinstance(value, float) and np.isnan(value):
        return (float, "nan")
    try:
        hash(value)
    except TypeError:
        return (type(value), repr(value))
    return (type(value) is bool, value)


def enough(known: np.ndarray, what: str, least: int = 2) -> None:
    """Refuse too few networks."""
    if known.sum() < least:
        raise SpiritlevelError(
            f"{known.sum()} networks have {what}: this needs at least {least}, give more"
        )


def complete(*rows: np.ndarray, what: str = "both numbers", least: int = 2) -> np.ndarray:
    """Which networks have all the numbers, NaN being none; refuse too few, warn of fewer."""
    known = np.logical_and.reduce([~np.isnan(row) for row in rows])
    enough(known, what, least)
    if not known.all():
        warnings.warn(
            f"{(~known).sum()} of {len(known)} networks are left out: a number of theirs is NaN",
            stacklevel=3,
        )
    return known


def several(clusters: np.ndarray, least: int) -> None:
    """Refuse too few configurations: nothing is known of how others would be."""
    if (found := len(np.unique(clusters))) < least:
        raise SpiritlevelError(
            f"the networks are of {found} configurations: this needs at least {least}, give more"
        )


def deviations(name: str, row: np.ndarray) -> None:
    """Refuse what are no standard errors."""
    if not (np.isfinite(row) & (row >= 0)).all():
        raise SpiritlevelError(f"{name} holds no standard errors: give numbers of at least 0")


def varied(**given: np.ndarray) -> None:
    """Refuse what is the same everywhere: it has no order."""
    for name, row in given.items():
        if (row == row[0]).all():
            raise SpiritlevelError(f"{name} is {row[0]:g} everywhere: give one that varies")


def generator(seed: int) -> np.random.Generator:
    """Draws of its own; numpy has no negative seeds."""
    seeded(seed)
    return np.random.default_rng(int(seed) % 2**64)
