"""Whether functions that are in memory are those of their file, which may have been edited."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

from spiritlevel.studies.pieces import FUNCTIONS, Piece, codes

SCALARS = (bool, int, float, complex, str, bytes)


def agrees(function: FunctionType, text: str, found: Sequence[Piece]) -> bool:
    """Whether the function and all that it depends on is what the text says, as far as one sees.

    Code is compared with all code of the file, plain constants and defaults with their values.
    What was replaced by something that is not of this file is not compared.
    """
    if not _comparable(function):
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = compile(text, "<file>", "exec", dont_inherit=True)
    written = {shape(code) for code in codes(whole)}
    there, file = function.__globals__, function.__code__.co_filename
    objects = [there.get(name) for piece in found for name in piece.changes]
    plain = [one for thing in (function, *objects) for one in _functions(thing)]
    own = {one.__code__ for one in plain if one.__code__.co_filename == file}
    return all(shape(code) in written for code in own) and _same_values(found, there)


def _comparable(function: FunctionType) -> bool:
    """Compiled from the file as it was; pytest, say, rewrites the assertions of a test first."""
    loader = function.__globals__.get("__loader__")
    kept = "__text__" in function.__globals__
    return not kept and (loader is None or type(loader) is SourceFileLoader)


def shape(code: CodeType) -> tuple[Any, ...]:
    """All that it does; not where it stands, nor its docstring, which no instruction loads."""
    rest = code.co_flags & (
        inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    )  # types.coroutine sets some
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, rest)
    steps = tuple((step.opname, _value(step.argval)) for step in dis.get_instructions(code))
    handlers = getattr(code, "co_exceptiontable", b"")
    return code.co_name, code.co_varnames, arguments, steps, handlers


def _value(value: Any) -> Any:
    """Of an instruction: 1, 1.0 and True are three."""
    if isinstance(value, CodeType):
        return shape(value)
    if isinstance(value, frozenset):
        return tuple(sorted(map(repr, value)))
    return tuple(map(_value, value)) if isinstance(value, tuple) else repr(value)


# What is in memory -------------------------------------------------------------------------------


def _functions(thing: Any) -> Iterator[FunctionType]:
    """Those inside of decorators, and the methods of classes."""
    if isinstance(thing, type):
        inner: list[Any] = [one for one in vars(thing).values() if not isinstance(one, type)]
    elif isinstance(thing, property):
        inner = [thing.fget, thing.fset, thing.fdel]
    elif isinstance(thing, functools.cached_property):
        inner = [thing.func]
    else:
        inner = [inspect.getattr_static(thing, "__wrapped__", None)]  # wraps, lru_cache
        if isinstance(thing, (staticmethod, classmethod)):
            inner = [thing.__func__]
        elif isinstance(thing, FunctionType):
            yield thing
    for one in inner:
        if one is not None and one is not thing:
            yield from _functions(one)


# Constants ---------------------------------------------------------------------------------------


def _same_values(found: Sequence[Piece], there: Mapping[str, Any]) -> bool:
    """Of names, and of arguments that are left out, which nothing else in the file changes."""
    counts = Counter(name for piece in found for name in piece.changes)
    for node in (piece.node for piece in found):
        if isinstance(node, FUNCTIONS):
            live = there.get(node.name)
            if counts[node.name] == 1 and not _same_defaults(node, live):
                return False
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            alone = [name for name in names if counts[name] == 1 and name in there]
            if not all(_same(node.value, there[name]) for name in alone):
                return False
    return True


def _same_defaults(node: ast.FunctionDef | ast.AsyncFunctionDef, live: Any) -> bool:
    if node.decorator_list or not isinstance(live, FunctionType):
        return True
    if live.__code__.co_name != node.name:
        return True  # set from elsewhere
    args, given = node.args, live.__defaults__ or ()
    named = live.__kwdefaults__ or {}
    wanted = {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d}
    return (
        len(given) == len(args.defaults)
        and named.keys() == wanted.keys()
        and all(map(_same, args.defaults, given))
        and all(_same(wanted[name], value) for name, value in named.items())
    )


def _same(node: ast.expr, value: Any) -> bool:
    """Whether it is the constant that is written there, if that is one."""
    try:
        said = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return True
    plain = isinstance(said, SCALARS) or (
        isinstance(said, tuple) and all(isinstance(one, SCALARS) for one in said)
    )
    return not plain or (type(said) is type(value) and _value(said) == _value(value))
