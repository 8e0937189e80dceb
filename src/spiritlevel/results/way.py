"""A way along the orbit, as data: the curvature changes at every stop, the predictions at none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Stop:
    """One point of the orbit: its spectrum, a slice of its loss, its predictions."""

    position: float
    label: str
    eigenvalues: tuple[float, ...]
    slice: tuple[float, ...]
    predictions: tuple[tuple[float, ...], ...]
    change: float  # the largest of a prediction, relative to the largest prediction


@dataclass(frozen=True)
class Way:
    """From the balanced network to the given one to the sharpened one, in equal log-steps."""

    stops: tuple[Stop, ...]
    distances: tuple[float, ...]
    outputs: tuple[str, ...]
    examples: int
    kind: Literal["probabilities", "outputs"]
