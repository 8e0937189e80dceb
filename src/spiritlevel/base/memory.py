"""How much memory is free, and who can give some back when it runs out."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import torch

UNKNOWN_BYTES = 4 * 2**30  # where the system does not say what is free
ROOT = Path("/")
# of a control group, in its two versions: what it may use, and what it uses
LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


T = TypeVar("T")


class Holder(Protocol):
    """Holds what it could make again."""

    @property
    def holds(self) -> bool: ...

    def let_go(self) -> None: ...


HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()


def holders(apart_from: Holder | None = None) -> list[Holder]:
    """Those who hold something."""
    return [one for one in HOLDERS if one.holds and one is not apart_from]


def ran_out(error: Exception) -> bool:
    """Whether memory ran out; TorchScript says so in an error of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA out of memory" in str(error)


def relieved(action: Callable[[], T], holder: Holder | None = None) -> T:
    """The action; if memory runs out, again after others have let go, and at last the holder."""
    while True:
        try:
            return action()
        except RuntimeError as error:
            holding = holders()
            if not (ran_out(error) and holding):
                raise
        # out of the handler, whose error keeps the tensors of the failed attempt alive
        for one in [one for one in holding if one is not holder] or holding:
            one.let_go()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """The memory that is free on a device, with what torch's own cache could give back."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return host_bytes(ROOT)


def host_bytes(root: Path) -> int:
    """The least of what the machine has left and what its control groups allow."""
    found = [_machine(root / "proc/meminfo")]
    found += [_group(folder) for folder in _folders(root)]
    return min((count for count in found if count is not None), default=UNKNOWN_BYTES)


def _machine(meminfo: Path) -> int | None:
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _folders(root: Path) -> list[Path]:
    """Of the control group of this process and of those around it (v2), or of the memory (v1)."""
    base = root / "sys/fs/cgroup"
    folders = [base, base / "memory"]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        top = base / "memory" if "memory" in kinds.split(",") else base
        own = top / path.strip("/")
        folders += [own, *(f for f in own.parents if f.is_relative_to(base))]
    return list(dict.fromkeys(folders))


def _group(folder: Path) -> int | None:
    """What a control group has left, or None where it has no limit."""
    for most, now in LIMITS:
        limit, used = _text(folder / most).strip(), _text(folder / now).strip()
        if limit.isdigit() and used.isdigit():
            return max(int(limit) - int(used) + _cached(_text(folder / "memory.stat")), 0)
    return None


def _cached(statistics: str) -> int:
    numbers = dict(line.split(maxsplit=1) for line in statistics.splitlines() if " " in line)
    return int(numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))


def _text(path: Path) -> str:
    """What a file of the system says; nothing where there is none or it may not be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
