"""Tensors, seeds and devices that cannot be used, refused in one line that names the fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.doors import a, number, shown
from spiritlevel.base.errors import SpiritlevelError, first_line, writable
from spiritlevel.base.estimate import Estimate, Status

SEEDS = range(-(2**63), 2**64)  # what torch's generators take


def seeded(seed: Any, *, or_generator: bool = False) -> None:
    """Refuse what torch draws no random numbers from."""
    if or_generator and isinstance(seed, torch.Generator):
        return
    if not isinstance(seed, Integral) or isinstance(seed, bool) or int(seed) not in SEEDS:
        also = ", or a torch.Generator" if or_generator else ""
        raise SpiritlevelError(f"seed={shown(seed)}: give a whole number of 64 bits{also}")


def accuracy(tol: Any, rtol: Any, budget: Any, seed: Any) -> None:
    """Refuse errors that are none, budgets that buy nothing, and what is no seed."""
    seeded(seed)
    number("tol", tol, 0)
    number("rtol", rtol, 0)
    number("budget", budget, 1, whole=True)


def returned(name: str, value: Any) -> None:
    """Refuse what a function gave that was to give a number; it may be infinite or none."""
    scalar = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    if (not scalar and not hasattr(type(value), "__float__")) or isinstance(value, str):
        raise SpiritlevelError(
            f"{name} returned a {type(value).__name__}; give a function that returns a number"
        )


def estimate(name: str, found: Any) -> Estimate:
    """What a function gave as its number, in Python's own; refuse what is no estimate of one."""
    if not isinstance(found, Estimate):
        returned(name, found)
        return Estimate(float(found))
    kinds: dict[str, tuple[type, str]] = {
        "status": (Status, "a Status"),
        "remedy": (str, "a text, or leave it out"),
    }
    for field, (kind, wanted) in kinds.items():
        if not isinstance(value := getattr(found, field), kind):
            raise SpiritlevelError(
                f"{name} returned an Estimate with {field}={shown(value)}: give {wanted}"
            )
    fields = ("value", "stderr", "residual", "bound", "matvecs", "seconds")
    numbers: Any = {field: _plain(name, field, getattr(found, field)) for field in fields}
    return replace(found, **numbers, remedy=writable(found.remedy))


def _plain(name: str, field: str, value: Any) -> float | int | None:
    """None only where there may be no number."""
    if value is None and field in ("stderr", "residual", "bound"):
        return None
    try:
        if type(value) is int and abs(value) < 2**63:
            return value
        if value is None or isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise SpiritlevelError(
            f"{name} returned an Estimate with {field}={shown(value)}: give a number"
        ) from None


def bijection(name: str, value: Any) -> None:
    """Refuse what has no way there and back."""
    ways = [getattr(value, way, None) for way in ("forward", "inverse")]
    if isinstance(value, type) or not all(callable(way) for way in ways):
        raise SpiritlevelError(
            f"{name} holds a {type(value).__name__}; give a map with forward() and inverse(), such "
            "as those of spiritlevel.coordinates"
        )


def tensor(
    name: str, value: Any, *shape: int | None, finite: bool = True, empty: bool = False
) -> None:
    """Refuse what is no tensor of real numbers, of another shape (None: any) or not finite."""
    sizes = ", ".join("any" if n is None else str(n) for n in shape)
    wanted = f"give a tensor of real numbers of shape ({sizes}{',' if len(shape) == 1 else ''})"
    if not isinstance(value, Tensor):
        raise SpiritlevelError(f"{name} is a {type(value).__name__}; {wanted}")
    fits = len(shape) == value.ndim and all(
        n in (None, found) for n, found in zip(shape, value.shape, strict=True)
    )
    hollow = not (value.numel() or empty or 0 in shape)
    if not fits or hollow or value.is_complex():
        raise SpiritlevelError(f"{name} has the shape {tuple(value.shape)}; {wanted}")
    if finite and not bool(value.isfinite().all()):
        raise SpiritlevelError(f"{name} is not finite; {wanted}")


def tensors(name: str, value: Any, shapes: Mapping[str, torch.Size] | None = None) -> None:
    """Refuse what is no mapping of names to tensors; those that `shapes` knows have its shapes."""
    a(name, value, Mapping, "named tensors, such as objective.params")
    for key, found in value.items():
        if not isinstance(key, str) or not isinstance(found, Tensor):
            pair = f"{shown(key)}: {shown(found)}"
            raise SpiritlevelError(f"{name} holds {pair}; give tensors by their names")
        if shapes is not None and found.shape != shapes.get(key, found.shape):
            wanted = tuple(shapes[key])
            raise SpiritlevelError(
                f"{name} holds {key!r} of shape {tuple(found.shape)}; it needs {wanted}"
            )


def device(value: Any) -> torch.device:
    """The device of this name; refuse what torch does not have."""
    try:
        found = torch.device(value)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise SpiritlevelError(
            f'device={shown(value)}: give one that torch has here, such as "cpu" '
            f"({first_line(error)})"
        ) from None
    return found
