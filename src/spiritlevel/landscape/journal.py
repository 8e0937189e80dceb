"""A file that keeps what is evaluated while it is evaluated: a killed run goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import file
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import leaves
from spiritlevel.base.version import __version__
from spiritlevel.objective import Objective
from spiritlevel.symmetry import Group

Record = dict[str, Any]
START = b'{"spiritlevel": '


class Journal:
    """Records in the order in which they were made, one line of JSON each.

    The first line says of which network, data and question they are; those of another one are
    refused. What a kill tore off in the middle of a line is cut away. Records are numbered, so that
    what two runs wrote into one file is refused. Values are written with all their digits, so that
    what is read is what was made.
    """

    def __init__(self, path: str | os.PathLike[str], key: str) -> None:
        self.path = _named(path)
        head = {"spiritlevel": __version__, "torch": str(torch.__version__), "key": key}
        self._ahead = _read(self.path, head)
        self._count = len(self._ahead)
        with self.path.open("r+b" if self.path.exists() else "wb") as out:
            kept = _whole_lines(self.path)
            out.truncate(len(kept))
        if not kept:
            self._append(head)

    def next(self) -> Record | None:
        """The next record that was made before; None where new ones begin."""
        return self._ahead.pop(0) if self._ahead else None

    def add(self, record: Record) -> None:
        """One more record, written at once."""
        if self._ahead:  # what follows belongs to another course of events
            raise SpiritlevelError(
                f"journal={str(self.path)!r} holds other records than this call makes: remove it"
            )
        self._append({"number": self._count, **record})
        self._count += 1

    def _append(self, record: Record) -> None:
        with self.path.open("ab") as out:
            out.write(json.dumps(record).encode() + b"\n")


def refuse_file(path: Any) -> None:
    """Refuse a journal that cannot be written, before any work is done."""
    if path is not None:
        _named(path)


def _named(path: Any) -> Path:
    try:
        return file(path)
    except SpiritlevelError as error:
        raise SpiritlevelError(str(error).replace("path", "journal", 1)) from None


def opened(
    path: Any,
    objective: Objective,
    moves: Sequence[Tensor],
    question: Record,
    *,
    buffers: Iterable[Tensor] = (),
    group: Group | None = None,
) -> Journal | None:
    """The journal of a question about a network and where it moves; None if no file is named."""
    if path is None:
        return None
    tensors = [*moves, *buffers]
    if group is not None:
        tensors.append(group.flat_factors(group.random(0), objective.shapes))
    # a loss has no name: it is told apart by its values, here and a step to both sides
    there = [objective.vector + sign * move for move in moves for sign in (1, -1)]
    values = [repr(one.value()) for one in (objective, *map(objective.at, there))]
    return Journal(path, _key(objective, tensors, {**question, "values": values}))


def _key(objective: Objective, tensors: Iterable[Tensor], question: Record) -> str:
    """A digest of all that the values depend on."""
    own = [*objective.params.values(), *objective.buffers.values(), *leaves(objective.batches)]
    asked = json.dumps(question, sort_keys=True, default=lambda number: number.item())
    digest = hashlib.sha256(asked.encode())
    digest.update(f"{objective.mode} {objective.seed} {objective.device}".encode())
    for tensor in (*own, *tensors):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _whole_lines(path: Path) -> bytes:
    held = path.read_bytes()
    return held[: held.rfind(b"\n") + 1]


def _read(path: Path, head: Record) -> list[Record]:
    """The records of a file; it is refused if it is none of this question."""
    lines = _whole_lines(path).splitlines() if path.exists() else []
    if not lines and path.exists() and not START.startswith(path.read_bytes()[: len(START)]):
        raise _foreign(path)  # no first line that a kill tore off
    try:
        found = [json.loads(line) for line in lines]
    except ValueError:
        raise _foreign(path) from None
    if found and not (isinstance(found[0], dict) and "key" in found[0]):
        raise _foreign(path)
    if found and found[0] != head:
        raise SpiritlevelError(
            f"journal={str(path)!r} is of another network, other data, another question or another "
            "version; name another file, or remove it"
        )
    if any(record.get("number") != i for i, record in enumerate(found[1:])):
        raise SpiritlevelError(f"journal={str(path)!r} was written by two runs at once: remove it")
    return found[1:]


def _foreign(path: Path) -> SpiritlevelError:
    return SpiritlevelError(f"journal={str(path)!r} is no journal; name a file that does not exist")
