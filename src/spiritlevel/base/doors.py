"""Arguments that cannot be used, refused in one line that names the fix."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from spiritlevel.base.errors import SpiritlevelError

MEANT = 3  # names that are suggested


def one_of(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse what is none of the choices."""
    known = list(choices)
    if not any(type(value) is type(c) and value == c for c in known):
        there = ", ".join(repr(c) for c in known) or "none"
        raise SpiritlevelError(f"{name}={shown(value)} is not known; choose one of {there}")


def meant(name: str, choices: Iterable[str], titles: Mapping[str, str] | None = None) -> str:
    """The names that one that is not known may be a slip of; nothing where none is near.

    `titles` are those that tables print instead of some names: who gives one means its name.
    """
    near = [n for n, title in (titles or {}).items() if title.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, list(choices), MEANT)
    return f": did you mean {' or '.join(near)}" if near else ""


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
    if not whole and getattr(value, "is_complex", None):  # a tensor, where torch is not imported
        tensor: Any = value
        kind = tensor.ndim == 0 and not tensor.is_complex()
    if not kind or not math.isfinite(value) or value < least or value <= above:
        wanted = "a whole number" if whole else "a positive number" if above == 0 else "a number"
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise SpiritlevelError(f"{name}={shown(value)}: give {wanted}{bound}")


def place(name: str, value: Any, size: int) -> None:
    """Refuse what is no place in a row of `size`; negative ones count from the end."""
    number(name, value, -size, whole=True)
    if value >= size:
        raise SpiritlevelError(f"{name}={value!r}: give a whole number below {size}")


def places(name: str, value: Any, size: int) -> list[int]:
    """The places in a list; refuse what is none."""
    if not isinstance(value, Iterable) or isinstance(value, (str, Mapping)):
        raise SpiritlevelError(f"{name}={shown(value)}: give a list of whole numbers below {size}")
    found = list(value)
    for one in found:
        place(name, one, size)
    return found


def a(name: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuse what is of another kind than the wanted one."""
    if not isinstance(value, kind):
        raise SpiritlevelError(f"{name} is a {type(value).__name__}; give {wanted}")


def function(name: str, value: Any, of: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise SpiritlevelError(f"{name} is a {type(value).__name__}; give a function of {of}")


def names(name: str, value: Any) -> list[str]:
    """The names or patterns in a list, of one or of several; refuse what is none."""
    several = isinstance(value, Iterable) and not hasattr(value, "ndim")
    found: list[Any] = [value] if isinstance(value, str) else list(value) if several else []
    if not found or not all(isinstance(one, str) and one for one in found):
        raise SpiritlevelError(f"{name}={shown(value)}: give a name, or a list of names")
    return found


def names_if_any(name: str, value: Any) -> list[str]:
    """The names in a list, which may be empty."""
    return [] if isinstance(value, (list, tuple)) and not value else names(name, value)


def file(path: Any) -> Path:
    """The path; refuse one that no file can be written to."""
    a("path", path, (str, os.PathLike), "the name of a file")
    found = Path(path)
    try:
        right = str(path) and not found.is_dir() and found.parent.is_dir()
    except OSError as error:  # a name that is too long
        raise SpiritlevelError(f"path={str(path)!r}: {error.strerror}; give another name") from None
    if not right or "\0" in str(path):
        raise SpiritlevelError(f"path={str(path)!r}: give a file in a folder that there is")
    return found


def shown(value: Any) -> str:
    """In one short line: tensors and modules print many."""
    try:
        text = repr(value)
    except Exception:  # of an object that is half made
        text = "\n"
    short = len(text) <= 80 and "\n" not in text
    return text if short else f"a {type(value).__name__}"
