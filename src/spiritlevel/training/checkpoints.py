"""The file that a training goes on from: whole or not there, and never run as code."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import file
from spiritlevel.base.errors import SpiritlevelError, first_line
from spiritlevel.base.version import __version__
from spiritlevel.results.data import plain, read
from spiritlevel.training.standing import Parts, Standing

Key = dict[str, Any]
FORMAT = "spiritlevel training 1"
PARTS = set("key begun options model buffers optimizer schedule standing watch".split())


def named(path: Any) -> Path | None:
    """The path of a checkpoint, refused where no file can be written."""
    if path is None:
        return None
    try:
        found = file(path)
        part = _part(found)
        part.touch()
        part.unlink()
    except SpiritlevelError as error:
        raise SpiritlevelError(str(error).replace("path", "checkpoint", 1)) from None
    except (OSError, ValueError) as error:
        raise SpiritlevelError(
            f"checkpoint={str(path)!r} cannot be written ({error}); name another file"
        ) from None
    return found


def _part(path: Path) -> Path:
    """Where the next one is written before it takes the place of the last."""
    return path.with_name(path.name + ".part")


def key_of(parts: Parts, **asked: Any) -> Key:
    """What tells this run from others: the network's sizes, the optimizer, the data, the seed."""
    state = parts.module.state_dict()
    sizes = {name: (tuple(t.shape), str(t.dtype)) for name, t in state.items() if is_tensor(t)}
    kinds = [type(part).__qualname__ for part in parts.module.modules()]
    return {
        "the network": hashlib.sha256(repr((sizes, kinds)).encode()).hexdigest()[:12],
        "the optimizer": called(parts.optimizer),
        "the schedule": None if parts.schedule is None else type(parts.schedule).__name__,
        **asked,
    }


def options_of(parts: Parts) -> Key:
    """The options of the optimizer and of the schedule by name, as plain data."""
    found: Key = _own_options(parts.optimizer)
    for number, group in enumerate(parts.optimizer.param_groups, 1):
        found |= {f"{k} of group {number}": _plain(v) for k, v in group.items() if k != "params"}
        found[f"tensors of group {number}"] = len(group["params"])
    if parts.schedule is not None:
        state = parts.schedule.state_dict()
        found |= {f"{k} of the schedule": _plain(v) for k, v in state.items()}
    return found


def _own_options(optimizer: Any) -> Key:
    """Those of our optimizers that are not in their groups."""
    if not type(optimizer).__module__.startswith("spiritlevel."):
        return {}
    names = inspect.signature(type(optimizer)).parameters
    held = {name: getattr(optimizer, name, None) for name in names}
    simple = (bool, int, float, str, tuple)
    return {name: _plain(value) for name, value in held.items() if isinstance(value, simple)}


def called(optimizer: Any) -> str:
    """SAM(SGD): the optimizer, and the one inside it."""
    name, inside = type(optimizer).__name__, getattr(optimizer, "base", None)
    return f"{name}({called(inside)})" if isinstance(inside, torch.optim.Optimizer) else name


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


class Keeper:
    """Writes the state of a run to its file, and brings it back."""

    def __init__(self, path: Path | None, parts: Parts, key: Key) -> None:
        self.path, self.parts, self.key = path, parts, key
        self.begun = options_of(parts)
        self._checked = False

    def restored(self) -> Standing:
        """Where the run of the file stands, with all parts as they were; a fresh one if none is."""
        if self.path is None or not self.path.exists():
            return Standing()
        held = _contents(self.path)
        _refuse_other(self.path, held["key"], self.key)
        if self.begun != held["options"]:  # not as the run was left, in this process
            _refuse_other(self.path, held["begun"], self.begun)
        self.begun = held["begun"]
        _fill(self.parts, held)
        return read(Standing, held["standing"])

    def write(self, standing: Standing) -> None:
        """The state as it is: written beside the file, brought to the disk, put in its place."""
        if self.path is None:
            return
        data = io.BytesIO()
        torch.save(self._state(standing), data)
        self._check(data)
        part = _part(self.path)
        with part.open("wb") as out:
            out.write(data.getbuffer())
            out.flush()
            os.fsync(out.fileno())
        part.replace(self.path)
        _sync_folder(self.path.parent)

    def _state(self, standing: Standing) -> dict[str, Any]:
        parts, module, watch = self.parts, self.parts.module, self.parts.watch
        return {
            "format": FORMAT,
            "versions": {"spiritlevel": __version__, "torch": str(torch.__version__)},
            "key": self.key,
            "begun": self.begun,
            "options": options_of(parts),
            "model": module.state_dict(),
            "buffers": dict(module.named_buffers()),  # those that a state_dict leaves out too
            "optimizer": parts.optimizer.state_dict(),
            "schedule": None if parts.schedule is None else parts.schedule.state_dict(),
            "standing": plain(standing),
            "watch": None if watch is None else watch.state_dict(),
        }

    def _check(self, data: io.BytesIO) -> None:
        """Once: that what is written can be read without running code."""
        if self._checked:
            return
        data.seek(0)
        try:
            torch.load(data, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise SpiritlevelError(
                "checkpoint cannot hold this run: the state of the model, the optimizer or the "
                f"schedule has objects other than tensors and plain data; keep such in none of "
                f"them, or leave checkpoint out ({first_line(error)})"
            ) from None
        self._checked = True


def _fill(parts: Parts, held: Mapping[str, Any]) -> None:
    module = parts.module
    module.load_state_dict(held["model"])
    own = dict(module.named_buffers())
    with torch.no_grad():
        for name, buffer in held["buffers"].items():
            if name in own and is_tensor(own[name]):
                own[name].copy_(buffer)
    parts.optimizer.load_state_dict(held["optimizer"])
    if parts.schedule is not None:
        parts.schedule.load_state_dict(held["schedule"])
    if parts.watch is not None and held["watch"] is not None:
        parts.watch.load_state_dict(held["watch"])


def _contents(path: Path) -> dict[str, Any]:
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise SpiritlevelError(
            f"checkpoint={str(path)!r} cannot be read: {error.strerror or first_line(error)}"
        ) from None
    except Exception:  # of another kind for every kind of file
        held = None
    if not isinstance(held, dict) or held.get("format") != FORMAT or not set(held) >= PARTS:
        raise SpiritlevelError(
            f"checkpoint={str(path)!r} is no checkpoint of fit; name one, or a file that does "
            "not exist"
        )
    return held


def _refuse_other(path: Path, there: Key, here: Key) -> None:
    for name in (*here, *there):
        if there.get(name) != here.get(name):
            raise SpiritlevelError(
                f"checkpoint={str(path)!r} is of another run: {name} is {there.get(name)!r} there "
                f"and {here.get(name)!r} here; name another file, or remove it"
            )


def _plain(value: Any) -> Any:
    """Numbers, words, and lists and dicts of them; of anything else its kind."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if is_tensor(value) and value.numel() == 1:
        return float(value)
    return type(value).__name__


def _sync_folder(folder: Path) -> None:
    """The rename itself on the disk; systems that cannot open folders do it themselves."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
