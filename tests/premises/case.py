"""What is drawn: one network with its loss and its data, in plain words and numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

INPUTS, CLASSES, SIDE = 3, 3, 4
IGNORED = -100
IMAGES = ("max pooling", "mean pooling")  # architectures


@dataclass(frozen=True)
class Case:
    """One network with its loss and its data; plain words and numbers, so that it can be repeated.

    `cuts` are the places in the data, as shares, at which batches end.
    """

    architecture: str
    end: str
    loss: str
    structure: str
    order: str
    double: bool
    confidence: int
    examples: int
    cuts: tuple[float, ...]
    microbatch: int | None
    steps: int
    seed: int
    look: str


def precision(case: Case) -> torch.dtype:
    return torch.float64 if case.double else torch.float32


def input_shape(case: Case) -> tuple[int, ...]:
    return (1, SIDE, SIDE) if case.architecture in IMAGES else (INPUTS,)
