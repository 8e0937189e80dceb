"""The file that a bound goes on from: tensors and plain data, whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import leaves
from spiritlevel.bounds.standing import Standing
from spiritlevel.objective import Objective
from spiritlevel.results.bound import Step
from spiritlevel.training.checkpoints import named

FORMAT = "spiritlevel bound 1"
TENSORS = ("value", "first", "second", "total", "count")
NUMBERS = ("step", "place", "price")


class Checkpoint:
    """Where every stage of a bound stands, in memory and in a file; without a file in memory."""

    def __init__(self, path: Any, key: Mapping[str, Any]) -> None:
        self.path: Path | None = named(path)
        self.key = {name: _text(value) for name, value in key.items()}
        self.tensors: dict[str, Tensor] = {}
        self.told: dict[str, Any] = {}
        if self.path is not None and self.path.exists():
            self._load(self.path)

    def read(self, stage: str, standing: Standing) -> None:
        """Bring a stage to where it was; as it is where nothing is known of it."""
        told = self.told.get(stage)
        if told is None:
            return
        for name in TENSORS:
            getattr(standing, name).copy_(self.tensors[f"{stage}.{name}"])
        for name in NUMBERS:
            setattr(standing, name, told[name])
        standing.steps[:] = [Step(*row) for row in told["steps"]]

    def write(self, stage: str, standing: Standing) -> None:
        """The stage as it stands."""
        if self.path is None:
            return
        held = {f"{stage}.{name}": getattr(standing, name) for name in TENSORS}
        self.tensors |= {name: t.detach().cpu().clone() for name, t in held.items()}
        rows = [[s.epoch, s.surrogate, s.kl, s.bound] for s in standing.steps]
        numbers = {name: getattr(standing, name) for name in NUMBERS}
        self.told[stage] = {**numbers, "steps": rows}
        self._save(self.path)

    def errors(self, stage: str) -> list[float]:
        """Those of the networks that were drawn before."""
        return list(self.told.get(stage, ()))

    def write_errors(self, stage: str, errors: list[float]) -> None:
        if self.path is not None:
            self.told[stage] = errors
            self._save(self.path)

    def _save(self, path: Path) -> None:
        words = {"format": FORMAT, "key": json.dumps(self.key), "told": json.dumps(self.told)}
        part = path.with_name(path.name + ".part")
        with part.open("wb") as out:
            out.write(save(self.tensors, words))
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)

    def _load(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:
                words = file.metadata() or {}
                held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            words, held = {}, {}
        if words.get("format") != FORMAT:
            raise SpiritlevelError(
                f"checkpoint={str(path)!r} is no checkpoint of pac_bayes; name one, or a file "
                "that does not exist"
            )
        there = json.loads(words["key"])
        for name in (*self.key, *there):
            if there.get(name) != self.key.get(name):
                raise SpiritlevelError(
                    f"checkpoint={str(path)!r} is of another run: {name} is {there.get(name)!r} "
                    f"there and {self.key.get(name)!r} here; name another file, or remove it"
                )
        self.tensors, self.told = held, json.loads(words["told"])


def data_digest(objective: Objective) -> str:
    """What tells these data and this point from others."""
    found = hashlib.sha256()
    held = [*objective.params.values(), *objective.buffers.values()]
    for batch in objective.batches:
        held += leaves(batch)
    for t in held:
        found.update(repr((tuple(t.shape), str(t.dtype))).encode())
        found.update(t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def digest(vector: Tensor) -> str:
    return hashlib.sha256(vector.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
