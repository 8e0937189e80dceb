"""Everything that a model returns: its tensors by name, and all of them as one tensor."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError

Heads = str | int | Sequence[str | int]


def named_tensors(returned: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested tuples, mappings, dataclasses and plain objects, by their paths."""
    if isinstance(returned, Tensor):
        yield path, returned
        return
    for name, part in _parts(returned):
        yield from named_tensors(part, f"{path}.{name}" if path else str(name))


def predictions(returned: Any) -> dict[str, Tensor]:
    """The tensors that hold real numbers; choices (argmax) and masks are none."""
    found = {n: t for n, t in named_tensors(returned) if t.is_floating_point()}
    if not found:
        raise SpiritlevelError(
            f"the model returns a {type(returned).__name__} in which no tensor of predictions is "
            "found; give a function loss(model, batch) -> (sum, count)"
        )
    return found


def chosen(returned: Any, heads: Heads | None) -> Any:
    """What the model returned, or the heads that were asked for: one tensor, or several."""
    if heads is None:
        return returned
    if isinstance(heads, (str, int)):
        return _one(returned, heads)
    return tuple(_one(returned, head) for head in heads)


def _one(returned: Any, head: str | int) -> Any:
    found = returned
    for step in str(head).split("."):
        parts = {str(name): part for name, part in _parts(found)}
        if step not in parts:
            known = ", ".join(name for name, _ in named_tensors(returned)) or "one tensor alone"
            raise SpiritlevelError(f"heads={head!r} is not among the outputs; there are: {known}")
        found = parts[step]
    return found


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """The members of a container, by name or place."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value._asdict().items())  # type: ignore[attr-defined]
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if value is None or isinstance(value, (str, bytes, int, float, complex, type, nn.Module)):
        return []
    return list(vars(value).items()) if hasattr(value, "__dict__") else []


def _rebuilt(value: Any, leaf: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a container with other tensors in the places of its own, in order."""
    if isinstance(value, Tensor):
        return leaf(value)
    parts = [(name, _rebuilt(part, leaf)) for name, part in _parts(value)]
    if not parts:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, Mapping):
        return dataclasses.replace(value, **dict(parts))  # type: ignore[type-var]
    if isinstance(value, Mapping):
        return type(value)(**dict(parts)) if dataclasses.is_dataclass(value) else dict(parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(part for _, part in parts))
    if isinstance(value, (tuple, list)):
        return type(value)(part for _, part in parts)
    other = copy.copy(value)
    vars(other).update(parts)
    return other


def side_by_side(tensors: Mapping[str, Tensor]) -> Tensor:
    """Several outputs as one tensor, one row per example where all of them have such rows."""
    found = list(tensors.values())
    if len(found) == 1:
        return found[0]
    if all(t.ndim > 0 and t.shape[0] == found[0].shape[0] for t in found):
        return torch.cat([t.reshape(len(t), -1) for t in found], dim=1)
    return torch.cat([t.reshape(-1) for t in found])


@dataclasses.dataclass(frozen=True)
class Packing:
    """All outputs of an example side by side: (examples, numbers), and back.

    A single tensor stays as it is. `template` is what the model returned for some examples.
    """

    template: Any
    shapes: tuple[torch.Size, ...]  # of the tensors, without their examples

    @classmethod
    def of(cls, returned: Any, examples: int) -> Packing | None:
        """None where the outputs are no table of real numbers with one row per example."""
        tensors = [t for _, t in named_tensors(returned)]
        real = all(t.is_floating_point() for t in tensors)
        if not tensors or not real or not _only_structure(returned):
            return None
        rows = all(t.ndim > 0 and t.shape[0] == examples for t in tensors)
        if len(tensors) > 1 and not rows:
            return None
        template = _rebuilt(returned, torch.Tensor.detach)
        return cls(template, tuple(t.shape[1:] for t in tensors))

    def pack(self, returned: Any) -> Tensor:
        tensors = [t for _, t in named_tensors(returned)]
        if len(self.shapes) == 1:
            return tensors[0]
        if tuple(t.shape[1:] for t in tensors) != self.shapes:
            raise SpiritlevelError(
                "the model's outputs have other shapes in other batches: choose one with heads="
            )
        return torch.cat([t.reshape(len(t), -1) for t in tensors], dim=1)

    def unpack(self, outputs: Tensor) -> Any:
        """What the model returned, from the packed outputs."""
        if len(self.shapes) == 1:
            return _rebuilt(self.template, lambda _: outputs)
        pieces = outputs.split([shape.numel() for shape in self.shapes], dim=1)
        tensors = iter(
            piece.reshape(len(outputs), *shape)
            for piece, shape in zip(pieces, self.shapes, strict=True)
        )
        return _rebuilt(self.template, lambda _: next(tensors))


def _only_structure(value: Any) -> bool:
    """Whether a container holds tensors and names alone: a number may change with the batch."""
    if isinstance(value, Tensor) or value is None or isinstance(value, (str, bool)):
        return True
    parts = _parts(value)
    return bool(parts) and all(_only_structure(part) for _, part in parts)
