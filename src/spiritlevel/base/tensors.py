"""Named tensors as one flat vector, and trees of tensors as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.base.tensor_doors import seeded

Shapes = Mapping[str, torch.Size]
PLAIN = (int, float, str, type(None), torch.dtype, torch.device)
MANY = 2**20  # random numbers that a CPU takes a hundredth of a second for


def flatten(tree: Mapping[str, Tensor]) -> Tensor:
    """One vector that holds the named tensors in order."""
    return torch.cat([tensor.reshape(-1) for tensor in tree.values()])


def unflatten(vector: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """The named views of a flat vector; the inverse of `flatten`."""
    pieces = vector.split([shape.numel() for shape in shapes.values()])
    return {
        name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def spans(shapes: Shapes) -> dict[str, slice]:
    """Where each named tensor lies in the flat vector."""
    places, start = {}, 0
    for name, shape in shapes.items():
        places[name] = slice(start, start + shape.numel())
        start += shape.numel()
    return places


def columns(vectors: Tensor) -> list[Tensor]:
    """A vector, or the columns of a block, as tensors that autograd may keep."""
    found = [vectors] if vectors.ndim == 1 else list(vectors.unbind(1))
    return [c.clone() if c.is_inference() else c.contiguous() for c in found]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `function` to whatever nested tuples, lists and mappings hold.

    Mappings of any class become dicts.
    """
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a namedtuple keeps its class
        return type(tree)(*(map_leaves(function, item) for item in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_leaves(function, item) for item in tree)
    return function(tree)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply `function` to every tensor of a tree; numpy arrays become tensors, the rest stays."""

    def mapped(leaf: Any) -> Any:
        tensor = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
        return function(tensor) if isinstance(tensor, Tensor) else tensor

    return map_leaves(mapped, tree)


def leaves(tree: Any) -> Iterator[Tensor]:
    """Every tensor of a tree, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from leaves(item)
    elif not isinstance(tree, PLAIN) and isinstance(tree, Mapping):  # which takes long to say no
        for value in tree.values():
            yield from leaves(value)


def same_tree(a: Any, b: Any) -> bool:
    """Whether two trees hold the same tensors, bit for bit (NaN equals NaN)."""
    if isinstance(a, Tensor):
        same_kind = isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype
        return same_kind and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    if isinstance(a, Mapping):
        return (
            isinstance(b, Mapping)
            and a.keys() == b.keys()
            and all(same_tree(a[key], b[key]) for key in a)
        )
    if isinstance(a, (tuple, list)):
        return (
            isinstance(b, (tuple, list))
            and len(a) == len(b)
            and all(same_tree(x, y) for x, y in zip(a, b, strict=True))
        )
    # Leaves that are no tensors (file names, graph objects) may not define equality.
    return type(a) is type(b)


def generator(seed: int | torch.Generator) -> torch.Generator:
    """A CPU generator: the same draws whatever device the numbers end up on."""
    seeded(seed, or_generator=True)
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator("cpu").manual_seed(int(seed))


def rademacher(size: int, draws: torch.Generator, like: Tensor) -> Tensor:
    """A vector of random signs on the device of `like`."""
    source, place = _source(size, draws, like)
    signs = torch.randint(0, 2, (size,), generator=source, dtype=torch.int8, device=place) * 2 - 1
    return signs.to(device=like.device).to(like.dtype)


def gaussian(size: int | Sequence[int], draws: torch.Generator, like: Tensor) -> Tensor:
    """A standard normal tensor on the device of `like`, drawn in double precision if small."""
    shape = torch.Size((size,) if isinstance(size, int) else tuple(size))
    source, place = _source(shape.numel(), draws, like)
    kind = torch.float64 if place == "cpu" else like.dtype
    return torch.randn(shape, generator=source, dtype=kind, device=place).to(like)


def laid_along(draws: Tensor, numbers: Tensor) -> Tensor:
    """Draws in the order of some numbers: where these change places, the draws go with them."""
    found = torch.empty_like(draws)
    found[numbers.argsort(stable=True).to(draws.device)] = draws
    return found


def lost(point: Tensor, step: Tensor) -> bool:
    """Whether rounding leaves nothing of a step from a point, in any of its numbers."""
    return bool(step.any()) and torch.equal(point + step, point)


def _source(
    count: int, draws: torch.Generator, like: Tensor
) -> tuple[torch.Generator, str | torch.device]:
    """Draws on the CPU, the same for all devices; on the device itself where that takes seconds."""
    if count <= MANY or like.device.type != "cuda":
        return draws, "cpu"
    seed = int(torch.randint(0, 2**62, (), generator=draws, device="cpu"))
    return torch.Generator(like.device).manual_seed(seed), like.device


def storage_address(tensor: Tensor) -> int:
    """Of its memory, which is not used again as long as somebody knows it."""
    return tensor.untyped_storage()._cdata
