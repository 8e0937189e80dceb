"""What a driver asks a worker, and what comes back: plain data that can be sent anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.estimate import Estimate

REFUSED, FAILED = "refused", "failed"  # what is refused will be again; what failed may be retried


@dataclass(frozen=True)
class Run:
    """One network of the plan; `key` is the hash of all that it is made of."""

    config: Mapping[str, Any]
    seed: int
    key: str


@dataclass(frozen=True)
class Ask:
    """What is missing of one run: its row, and measures by label.

    A run that has its row says what came of its training, and weights that measures start from.
    """

    run: Run
    missing: bool
    labels: tuple[str, ...] = ()
    numbers: Mapping[str, float] | None = None
    weights: bytes | None = None


Task = tuple[Ask, ...]  # of the runs that are trained together


@dataclass(frozen=True)
class Ready:
    """A worker has imported its study."""


@dataclass(frozen=True)
class Finished:
    """A run that has been trained, or that failed with an error."""

    run: Run
    error: str = ""
    numbers: Mapping[str, float] | None = None
    history: str | None = None  # JSON
    weights: bytes | None = None  # safetensors
    seconds: float = 0.0
    host: str = ""


@dataclass(frozen=True)
class Measured:
    """One measure of one run as it was asked for, with its parts if it has several."""

    key: str
    label: str
    rows: Mapping[str, Estimate]
    refusal: str = ""  # then the rows are NaN
    failed: bool = False  # by an error that is not ours


@dataclass(frozen=True)
class Ended:
    """Nothing more comes of a task."""


@dataclass(frozen=True)
class Died:
    """A task came to no end: its worker is gone, or lacked memory; `ready` if it had begun."""

    reason: str
    ready: bool = True


@dataclass(frozen=True)
class Broken:
    """A worker cannot work at all."""

    reason: str


Message = Finished | Measured | Ended | Died | Broken
