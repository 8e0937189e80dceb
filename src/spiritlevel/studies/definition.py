"""What a run is made of, as a hash: a changed definition is a new run."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.studies import live
from spiritlevel.studies.pieces import Piece, pieces, reached


def digest(*parts: Any) -> str:
    """sha256 of canonical JSON, in which 1, 1.0 and true are three things."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON with sorted names and all digits."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_source(path: str | os.PathLike[str]) -> str:
    """The text of a Python file as Python reads it: its encoding, its ends of lines."""
    return importlib.util.decode_source(Path(path).read_bytes())


def definition(name: str, function: Callable[..., Any]) -> str:
    """A hash of the source of a function and of what it depends on, transitively, in its own file.

    Imports are not followed: what changes elsewhere is told by `version`.
    """
    plain = _plain(name, function)
    return digest(*[piece.text for piece in _pieces(name, plain, _source(name, plain))])


def refuse_edited(name: str, function: Callable[..., Any], known: str) -> None:
    """Refuse where the file does not say any more what is run, which would get the wrong key.

    `known` is its definition when the study was made; code is compared as well, since the file may
    have been edited between its import and then.
    """
    plain = _plain(name, function)
    text = _source(name, plain)
    found = _pieces(name, plain, text)
    if digest(*[piece.text for piece in found]) != known or not live.agrees(plain, text, found):
        raise _edited(name)


def _plain(name: str, function: Callable[..., Any]) -> FunctionType:
    function = inspect.unwrap(function)  # a registered measure is a wrapper of the user's own
    if not inspect.isfunction(function) or "<locals>" in function.__qualname__:
        raise _unknown(name, "is no function at the top level of a file")
    return function


def _source(name: str, function: FunctionType) -> str:
    """The text that was executed, where its module keeps it, or the file."""
    try:
        kept = function.__globals__.get("__text__")
        return kept if isinstance(kept, str) else read_source(inspect.getsourcefile(function) or "")
    except (OSError, TypeError, ValueError, SyntaxError):
        raise _unknown(name, "has no file whose source can be read") from None


def _pieces(name: str, function: FunctionType, text: str) -> list[Piece]:
    start = function.__qualname__.partition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python gave them when it was imported
        try:
            there = pieces(text)
        except (SyntaxError, ValueError):  # in the middle of an edit
            raise _edited(name) from None
    if not any(start in piece.changes for piece in there):
        if start != "<lambda>" and start in function.__globals__:
            raise _edited(name)
        raise _unknown(name, "is no function at the top level of a file")
    return reached(there, start)


def _edited(name: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"the file of {name} was edited after it was imported: import it again, in a new process, "
        "so that what is run is what the file says"
    )


def _unknown(name: str, why: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"{name} {why}, so that a change of it would not be noticed: write it into one, or give "
        'version="1" and another one when it changes'
    )
