"""Checkpoints: the network in a file is the part that fits; nothing in it is ever run."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective.module import unwrap

AVERAGES = {"ema", "swa", "average", "averaged", "avg"}  # words in names of averaged weights
NAMED = 3  # entries that a message names; more are counted


@dataclass(frozen=True)
class _Part:
    """Some entries of a file: those under `where`, by the names that are left, and the others."""

    where: str
    state: dict[str, Any]
    others: dict[str, Any]

    @property
    def averaged(self) -> bool:
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", self.where)
        return any(word.lower() in AVERAGES for word in words)


def load_weights(module: nn.Module, path: Path) -> list[str]:
    """Read a checkpoint into the module; returns what a user must know about where it was.

    The file is a state_dict or has one inside (Lightning, training scripts), under any prefix:
    it is the part that has the names and the shapes of the module.
    """
    module, _ = unwrap(module)
    state_dicts = list(_state_dicts(_contents(path)))
    if not state_dicts:
        raise SpiritlevelError(f"{path} holds no tensors; save model.state_dict()")
    part = _network(module, state_dicts, path)
    _fill(module, part.state, path)
    if not part.where:
        return []
    left = f"; left out beside it: {_some(part.others)}" if part.others else ""
    return [f"the weights of {path.name} are those under {part.where!r}{left}"]


def save_weights(module: nn.Module, params: Mapping[str, Tensor], path: Path) -> None:
    """Write the module's state with other parameters as safetensors, whole or not at all."""
    state = {**module.state_dict(), **params}
    tied = _tied_names(module)
    held = {n: t.detach().cpu().contiguous().clone() for n, t in state.items() if n not in tied}
    part = path.with_name(path.name + ".part")
    save_file(held, part)
    part.replace(path)


def _contents(path: Path) -> Mapping[Any, Any]:
    """What the file holds; objects other than tensors and plain data are refused."""
    if path.is_dir():
        raise SpiritlevelError(f"{path} is a folder; name the file with the weights in it")
    try:
        if path.suffix == ".safetensors":
            held: Any = load_file(path)
        else:
            held = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise SpiritlevelError(f"no file {path}") from None
    except pickle.UnpicklingError:
        raise SpiritlevelError(
            f"{path} {_pickled(path)}; save model.state_dict() instead, best as safetensors. From "
            "a Lightning file that you trust: "
            'torch.save(torch.load(path, weights_only=False)["state_dict"], "weights.pt")'
        ) from None
    except (EOFError, SafetensorError, RuntimeError) as error:
        raise SpiritlevelError(f"{path} cannot be read as a checkpoint: {error}") from None
    if not isinstance(held, Mapping):
        raise SpiritlevelError(f"{path} holds a {type(held).__name__}; save model.state_dict()")
    return held


def _pickled(path: Path) -> str:
    """What stands in the way: classes to be built, such as those of hyper_parameters, or junk."""
    try:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except (RuntimeError, ValueError, OSError, EOFError, pickle.UnpicklingError):  # no archive
        found = []
    if found:
        return f"holds pickled code ({_some(found)}), which is not run"
    return "cannot be read as a checkpoint without running pickled code"


def _state_dicts(held: Mapping[Any, Any], where: str = "") -> Iterator[_Part]:
    """Every mapping of names to tensors in a file, however deep."""
    if any(isinstance(value, Tensor) for value in held.values()):
        yield _Part(where, {_unmarked(str(name)): value for name, value in held.items()}, {})
    for name, value in held.items():
        if isinstance(value, Mapping):
            yield from _state_dicts(value, f"{where}{name}.")


def _network(module: nn.Module, state_dicts: list[_Part], path: Path) -> _Part:
    """The one part of the file that can be meant."""
    named = [part for held in state_dicts for part in _named_alike(module, held)]
    fitting = [part for part in named if _shaped_alike(module, part.state)]
    meant = [part for part in fitting if not part.averaged and _is_greater(part)]
    if len(meant) == 1:
        return meant[0]
    places = " and ".join(repr(part.where) for part in meant or fitting)
    if meant:
        reason = f"holds several networks that fit, under {places}"
    elif fitting and fitting[0].averaged:
        reason = f"fits under {places} alone, an average of weights and not the network's own"
    elif fitting:
        reason = f"fits under {places} alone, the smaller part of a state_dict"
    else:  # loading says what is wrong with the one that comes nearest
        return max(named or state_dicts, key=lambda part: len(part.state))
    raise SpiritlevelError(f"{path} {reason}; save the state_dict that you mean by itself")


def _named_alike(module: nn.Module, held: _Part) -> Iterator[_Part]:
    """The parts of a state_dict with the names of the module behind a common prefix."""
    own = list(_own_names(module))
    # files leave tied names out, and old ones BatchNorm's counter
    tied = {_unmarked(name) for name in _tied_names(module)}
    needed = [n for n in own if n not in tied and not n.endswith("num_batches_tracked")] or own
    if not needed:
        return
    first = needed[0]
    for name in held.state:
        prefix = name.removesuffix(first)
        if not name.endswith(first) or not (prefix == "" or prefix.endswith(".")):
            continue
        state = {n.removeprefix(prefix): t for n, t in held.state.items() if n.startswith(prefix)}
        if set(needed) <= set(state) <= set(own):
            others = {n: t for n, t in held.state.items() if not n.startswith(prefix)}
            yield _Part(held.where + prefix, state, others)


def _shaped_alike(module: nn.Module, state: Mapping[str, Any]) -> bool:
    own = _own_names(module)
    pairs = [(own[name], value) for name, value in state.items() if isinstance(value, Tensor)]
    return all(is_lazy(mine) or mine.shape == value.shape for mine, value in pairs)


def _is_greater(part: _Part) -> bool:
    """Not a layer of a larger network, which may look like a small one."""

    def size(state: Mapping[str, Any]) -> int:
        return sum(value.numel() for value in state.values() if isinstance(value, Tensor))

    beside = {n: t for n, t in part.others.items() if not _Part(n, {}, {}).averaged}
    return size(part.state) >= size(beside)


def _fill(module: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    marked = {_unmarked(name): name for name in module.state_dict()}
    try:
        result = module.load_state_dict(
            {marked.get(name, name): value for name, value in state.items()}, strict=False
        )
    except RuntimeError as error:  # shapes that differ
        raise SpiritlevelError(f"{path} does not fit the model: {error}") from None
    tied = _tied_names(module)
    missing = [name for name in result.missing_keys if name not in tied]
    if missing or result.unexpected_keys:
        raise SpiritlevelError(
            f"{path} does not fit the model: missing {missing[:NAMED]}, "
            f"unexpected {result.unexpected_keys[:NAMED]}; check --model"
        )


def _own_names(module: nn.Module) -> dict[str, Any]:
    return {_unmarked(name): value for name, value in module.state_dict().items()}


def _unmarked(name: str) -> str:
    """A name without what torch.compile puts into it."""
    return name.replace("_orig_mod.", "")


def _tied_names(module: nn.Module) -> set[str]:
    """Names under which a parameter appears a second time; files leave them out."""
    first = {name for name, _ in module.named_parameters()}
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return every - first


def _some(names: Any) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more
