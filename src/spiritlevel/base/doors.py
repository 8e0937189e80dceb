"""Arguments that cannot be used, refused in one line that names the fix."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError

SEEDS = range(-(2**63), 2**64)  # what torch's generators take


def one_of(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse what is none of the choices."""
    known = list(choices)
    if not any(type(value) is type(c) and value == c for c in known):
        shown = ", ".join(repr(c) for c in known) or "none"
        raise SpiritlevelError(f"{name}={_shown(value)} is not known; choose one of {shown}")


def number(
    name: str,
    value: Any,
    least: float = -math.inf,
    *,
    above: float = -math.inf,
    whole: bool = False,
) -> None:
    """Refuse what is no number, not finite, or too small; numpy's are numbers too."""
    kind = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if isinstance(value, Tensor) and not whole:
        kind = value.ndim == 0 and not value.is_complex()
    if not kind or not math.isfinite(value) or value < least or value <= above:
        wanted = "a whole number" if whole else "a positive number" if above == 0 else "a number"
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise SpiritlevelError(f"{name}={_shown(value)}: give {wanted}{bound}")


def place(name: str, value: Any, size: int) -> None:
    """Refuse what is no place in a row of `size`; negative ones count from the end."""
    number(name, value, -size, whole=True)
    if value >= size:
        raise SpiritlevelError(f"{name}={value!r}: give a whole number below {size}")


def places(name: str, value: Any, size: int) -> list[int]:
    """The places in a list; refuse what is none."""
    if not isinstance(value, Iterable) or isinstance(value, (str, Mapping)):
        raise SpiritlevelError(f"{name}={_shown(value)}: give a list of whole numbers below {size}")
    found = list(value)
    for one in found:
        place(name, one, size)
    return found


def seeded(seed: Any, *, or_generator: bool = False) -> None:
    """Refuse what torch draws no random numbers from."""
    if or_generator and isinstance(seed, torch.Generator):
        return
    if not isinstance(seed, Integral) or isinstance(seed, bool) or int(seed) not in SEEDS:
        also = ", or a torch.Generator" if or_generator else ""
        raise SpiritlevelError(f"seed={_shown(seed)}: give a whole number of 64 bits{also}")


def accuracy(tol: Any, rtol: Any, budget: Any, seed: Any) -> None:
    """Refuse errors that are none, budgets that buy nothing, and what is no seed."""
    seeded(seed)
    number("tol", tol, 0)
    number("rtol", rtol, 0)
    number("budget", budget, 1, whole=True)


def a(name: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuse what is of another kind than the wanted one."""
    if not isinstance(value, kind):
        raise SpiritlevelError(f"{name} is a {type(value).__name__}; give {wanted}")


def function(name: str, value: Any, of: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise SpiritlevelError(f"{name} is a {type(value).__name__}; give a function of {of}")


def returned(name: str, value: Any) -> None:
    """Refuse what a function gave that was to give a number; it may be infinite or none."""
    scalar = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    if (not scalar and not hasattr(type(value), "__float__")) or isinstance(value, str):
        raise SpiritlevelError(
            f"{name} returned a {type(value).__name__}; give a function that returns a number"
        )


def bijection(name: str, value: Any) -> None:
    """Refuse what has no way there and back."""
    ways = [getattr(value, way, None) for way in ("forward", "inverse")]
    if isinstance(value, type) or not all(callable(way) for way in ways):
        raise SpiritlevelError(
            f"{name} holds a {type(value).__name__}; give a map with forward() and inverse(), such "
            "as those of spiritlevel.coordinates"
        )


def tensor(name: str, value: Any, *shape: int | None, finite: bool = True) -> None:
    """Refuse what is no tensor of real numbers, of another shape (None: any) or not finite."""
    sizes = ", ".join("any" if n is None else str(n) for n in shape)
    wanted = f"give a tensor of real numbers of shape ({sizes}{',' if len(shape) == 1 else ''})"
    if not isinstance(value, Tensor):
        raise SpiritlevelError(f"{name} is a {type(value).__name__}; {wanted}")
    fits = len(shape) == value.ndim and all(
        n in (None, found) for n, found in zip(shape, value.shape, strict=True)
    )
    empty = not value.numel() and 0 not in shape
    if not fits or empty or value.is_complex():
        raise SpiritlevelError(f"{name} has the shape {tuple(value.shape)}; {wanted}")
    if finite and not bool(value.isfinite().all()):
        raise SpiritlevelError(f"{name} is not finite; {wanted}")


def tensors(name: str, value: Any, shapes: Mapping[str, torch.Size] | None = None) -> None:
    """Refuse what is no mapping of names to tensors; those that `shapes` knows have its shapes."""
    a(name, value, Mapping, "named tensors, such as objective.params")
    for key, found in value.items():
        if not isinstance(key, str) or not isinstance(found, Tensor):
            pair = f"{_shown(key)}: {_shown(found)}"
            raise SpiritlevelError(f"{name} holds {pair}; give tensors by their names")
        if shapes is not None and found.shape != shapes.get(key, found.shape):
            wanted = tuple(shapes[key])
            raise SpiritlevelError(
                f"{name} holds {key!r} of shape {tuple(found.shape)}; it needs {wanted}"
            )


def names(name: str, value: Any) -> list[str]:
    """The names or patterns in a list, of one or of several; refuse what is none."""
    several = isinstance(value, Iterable) and not isinstance(value, Tensor)
    found: list[Any] = [value] if isinstance(value, str) else list(value) if several else []
    if not found or not all(isinstance(one, str) and one for one in found):
        raise SpiritlevelError(f"{name}={_shown(value)}: give a name, or a list of names")
    return found


def device(value: Any) -> torch.device:
    """The device of this name; refuse what torch does not have."""
    try:
        found = torch.device(value)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SpiritlevelError(
            f'device={_shown(value)}: give one that torch has here, such as "cpu" ({reason})'
        ) from None
    return found


def file(path: Any) -> Path:
    """The path; refuse one that no file can be written to."""
    a("path", path, (str, os.PathLike), "the name of a file")
    found = Path(path)
    if not str(path) or found.is_dir() or not found.parent.is_dir():
        raise SpiritlevelError(f"path={str(path)!r}: give a file in a folder that there is")
    return found


def _shown(value: Any) -> str:
    """In one short line: tensors and modules print many."""
    text = repr(value)
    short = len(text) <= 80 and "\n" not in text
    return text if short else f"a {type(value).__name__}"
