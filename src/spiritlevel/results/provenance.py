"""Where a result comes from, in the same words for all of them."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from spiritlevel.base.version import __version__
from spiritlevel.results.loop import Done


class Provenance(TypedDict):
    """What every result says of itself."""

    seconds: float
    notes: list[str]
    refused: dict[str, str]  # what could not be had, and why
    interrupted: str
    versions: dict[str, str]


class OfNetwork(Provenance):
    """Of one network with its data."""

    parameters: int
    examples: int
    mode: str
    dtype: str
    device: str
    seed: int
    products: float


def provenance(
    begin: float, notes: Sequence[str] = (), done: Done[Any] | None = None, **more: Any
) -> Any:
    """A Provenance of work that began then, with what a kind of result says of itself besides."""
    return {
        **more,
        "seconds": time.perf_counter() - begin,
        "notes": list(dict.fromkeys(notes)),
        "refused": {} if done is None else done.refused,
        "interrupted": "" if done is None else done.interrupted,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    import torch  # a result that is read needs no torch

    own = {"spiritlevel": __version__, "torch": str(torch.__version__)}
    return {**own, "python": platform.python_version()}


def interruption(told: Provenance) -> list[str]:
    return [f"interrupted: {told['interrupted']}"] if told["interrupted"] else []


def remarks(told: Provenance) -> list[str]:
    """What was refused and the notes, in words."""
    return [*reasons("no", told["refused"]), *told["notes"]]


def reasons(word: str, refused: Mapping[str, str]) -> list[str]:
    """Each reason once, behind all names that have it."""
    names: dict[str, list[str]] = {}
    for name, why in refused.items():
        names.setdefault(why, []).append(name)
    return [f"{word} {', '.join(some)}: {why}" for why, some in names.items()]


def versions_line(told: Provenance) -> str:
    return ", ".join(f"{name} {version}" for name, version in told["versions"].items())
