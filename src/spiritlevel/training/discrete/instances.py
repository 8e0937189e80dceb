"""Random patterns to be classified by binary weights, and how many are violated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import seeded

Signs = np.ndarray  # int8, each +1 or -1


@dataclass(frozen=True, eq=False)
class Instance:
    """Patterns xi, (P, inputs), that a majority of `hidden` sign units is to answer with +1.

    The labels are in the patterns: a pattern with the label -1 is given as -xi. Weights are
    flat, unit after unit.
    """

    patterns: Signs
    hidden: int = 1

    def __post_init__(self) -> None:
        doors.number("hidden", self.hidden, 1, whole=True)
        kept = signs("patterns", self.patterns, 2).copy()
        kept.flags.writeable = False
        object.__setattr__(self, "patterns", kept)

    @property
    def inputs(self) -> int:
        return self.patterns.shape[1]

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.hidden * self.inputs

    @property
    def load(self) -> float:
        """Patterns for each weight, alpha."""
        return len(self.patterns) / self.size

    def __repr__(self) -> str:
        kind = "perceptron" if self.hidden == 1 else f"committee of {self.hidden}"
        return f"Instance({kind}, {self.size} weights, {len(self.patterns)} patterns)"


@dataclass(frozen=True, eq=False)
class Searched:
    """Where a search ended: its weights, the patterns that they violate, and its steps.

    The energy is counted anew from the weights; `steps` are proposed flips of `anneal` and
    `replicated_anneal`, patterns that `sbpi` was shown, and iterations of `rbp`.
    """

    weights: Signs
    energy: int
    steps: int

    @property
    def found(self) -> bool:
        """Whether it is a solution."""
        return self.energy == 0


def searched(instance: Instance, weights: np.ndarray, steps: int) -> Searched:
    """What a search says of itself, judged by its weights alone."""
    kept = weights.astype(np.int8)
    kept.flags.writeable = False
    return Searched(kept, int(energies(instance, kept)), int(steps))


def perceptron(size: int, load: float, *, seed: int) -> Instance:
    """P = round(load * size) random patterns for one unit, W.xi > 0.

    Baldassi et al. 2015: solutions exist up to a load of about 0.83 in large perceptrons.
    """
    return committee(size, 1, load, seed=seed)


def committee(inputs: int, hidden: int, load: float, *, seed: int) -> Instance:
    """Random patterns for a majority of sign units that see all inputs; load is by weights.

    sum_k sign(W_k.xi) > 0; a field of 0 is no vote, and no majority is a violation.
    """
    doors.number("inputs", inputs, 1, whole=True)
    doors.number("hidden", hidden, 1, whole=True)
    doors.number("load", load, above=0)
    patterns = max(1, round(load * inputs * hidden))
    drawn = random_signs((patterns, inputs), generator(seed))
    return Instance(drawn, hidden)


def energies(instance: Instance, weights: np.ndarray) -> np.ndarray:
    """How many patterns each row of weights violates."""
    rows = checked_weights(instance, weights)
    return (votes(fields(instance, rows)) <= 0).sum(-1)


def fields(instance: Instance, rows: np.ndarray) -> np.ndarray:
    """W_k.xi of every unit and pattern, (..., hidden, P)."""
    units = rows.reshape(*rows.shape[:-1], instance.hidden, instance.inputs)
    return (units.astype(np.float32) @ instance.patterns.T.astype(np.float32)).astype(np.int32)


def votes(found: np.ndarray) -> np.ndarray:
    """The sum of the signs of the units; of a single one its field, which has the same sign."""
    return found[..., 0, :] if found.shape[-2] == 1 else np.sign(found).sum(-2)


def generator(seed: int) -> np.random.Generator:
    """Random numbers of one seed, and of nothing else."""
    seeded(seed)
    return np.random.default_rng(int(seed) % 2**64)


def random_signs(shape: tuple[int, ...], draws: np.random.Generator) -> Signs:
    return (2 * draws.integers(0, 2, shape) - 1).astype(np.int8)


def checked_instance(instance: Any) -> None:
    doors.a("instance", instance, Instance, "an Instance, as perceptron() or committee() make it")


def checked_weights(instance: Instance, weights: Any, name: str = "weights") -> Signs:
    """The weights as int8; refuse what is none of this instance."""
    checked_instance(instance)
    found = signs(name, weights)
    if found.ndim == 0 or found.shape[-1] != instance.size:
        raise SpiritlevelError(
            f"{name} has the shape {found.shape}; give rows of {instance.size} weights"
        )
    return found


def signs(name: str, value: Any, dimensions: int | None = None) -> Signs:
    """An array of +1 and -1 as int8; refuse anything else."""
    try:
        found = np.asarray(value)
    except ValueError:
        found = np.asarray(None)
    right = found.dtype.kind in "iuf" and found.size > 0 and bool((np.abs(found) == 1).all())
    if not right or (dimensions is not None and found.ndim != dimensions):
        shape = "" if dimensions is None else f" with {dimensions} dimensions"
        raise SpiritlevelError(
            f"{name}={doors.shown(value)}: give an array{shape} of numbers that are +1 or -1"
        )
    return found.astype(np.int8)
