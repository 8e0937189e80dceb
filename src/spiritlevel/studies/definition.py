"""What a run is made of, as a hash: a changed definition is a new run."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spiritlevel.base.errors import SpiritlevelError


def digest(*parts: Any) -> str:
    """sha256 of canonical JSON, in which 1, 1.0 and true are three things."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON with sorted names and all digits."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def definition(name: str, function: Callable[..., Any]) -> str:
    """A hash of the source of a function and of what it names, transitively, in its own file.

    Functions, classes and assignments at the top level of that file are followed, imports are not:
    what changes elsewhere is told by `version`.
    """
    function = inspect.unwrap(function)  # a registered measure is a wrapper of the user's own
    if not inspect.isfunction(function) or "<locals>" in function.__qualname__:
        raise _unknown(name, "is no function at the top level of a file")
    try:
        file = Path(inspect.getsourcefile(function) or "")
        text = file.read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError):
        raise _unknown(name, "has no file whose source can be read") from None
    return digest(*sources(text, function.__qualname__.partition(".")[0], name))


def sources(text: str, start: str, name: str = "train") -> list[str]:
    """The pieces of a file that a name in it depends on, in the order of their names."""
    lines, known = text.splitlines(), dict(_named(ast.parse(text)))
    if start not in known:  # a lambda has no name
        raise _unknown(name, "is no function at the top level of a file")
    found: set[str] = set()
    ahead = [start]
    while ahead:
        found.add(one := ahead.pop())
        used = {n.id for node in known[one] for n in ast.walk(node) if isinstance(n, ast.Name)}
        ahead += (used & known.keys()) - found
    return [_text(lines, node) for one in sorted(found) for node in known[one]]


def _named(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """What the top level of a file defines, also inside its conditions: all that make one name."""
    found: dict[str, list[ast.stmt]] = {}
    for node in _statements(tree.body):
        for name in _names(node):
            found.setdefault(name, []).append(node)
    yield from found.items()


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            inner = [*node.body, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
            inner += [n for handler in getattr(node, "handlers", ()) for n in handler.body]
            yield from _statements(inner)
        else:
            yield node


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    else:
        return set()
    walked = [n for target in targets for n in ast.walk(target)]
    return {n.id for n in walked if isinstance(n, ast.Name)}


def _text(lines: list[str], node: ast.stmt) -> str:
    """Its lines, decorators too."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return "\n".join(line.rstrip() for line in lines[first - 1 : node.end_lineno])


def _unknown(name: str, why: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"{name} {why}, so that a change of it would not be noticed: write it into one, or give "
        'version="1" and another one when it changes'
    )
