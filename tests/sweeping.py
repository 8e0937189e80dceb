"""Arguments that cannot be used, generated from signatures: what is wrong for a parameter."""

from __future__ import annotations

import builtins
import collections.abc
import importlib
import inspect
import math
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Literal, Union

import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.measures.base import Measure

NOBODY = "no such thing"
NAN, INF, HUGE = math.nan, math.inf, 10**30
EMPTY: tuple[Any, ...] = ("", [], {})
KINDS: list[Any] = [
    *(None, 3, 1.5, NOBODY, "", [], [3], [NOBODY], {}, {NOBODY: 3}, object(), math),
    *(nn.Linear(2, 2), torch.ones(2, 2, 2), torch.float16),
]
NUMBERS: list[Any] = [NAN, INF, -INF, -1, 0]

# What the annotation does not say: numbers that may be negative, zero or infinite, texts that are
# no names, containers that may be empty.
SIGNED = {"seed", "threshold", "low", "high", "a", "growth", "index", "enough", "scale"}
ZERO = SIGNED | {"tol", "rtol", "sketch", "b", "spread", "cost", "leading"}
ZERO |= {"refine", "orbit", "top", "margin"}
INFINITE = {"enough"}
WORDS = {"title", "family", "reference", "cost", "name", "how", "path", "journal"}
MAY_BE_EMPTY = {"invariances", "indices", "buffers", "values", "params", "spans"}


def parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Name -> (type, default) of what a caller gives, but for further names (`**`)."""
    if isinstance(function, Measure):  # with the parameters of its own
        own = {n: p for n, p in parameters(function.function).items() if n in function.parameters}
        return parameters(function.__call__) | own
    plain = inspect.unwrap(function)
    found = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        found[p.name] = (_evaluated(p.annotation, plain), p.default)
    return found


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    home = vars(sys.modules[function.__module__])
    return eval(annotation, {**vars(builtins), **_everywhere(), **home})


def _everywhere() -> dict[str, Any]:
    """Names that modules import for type checkers only."""
    if not _NAMES:
        for module in pkgutil.walk_packages(sl.__path__, "spiritlevel."):
            if "__main__" not in module.name and ".cli" not in module.name:
                for name, value in vars(importlib.import_module(module.name)).items():
                    if inspect.isclass(value):
                        _NAMES.setdefault(name, value)
    return _NAMES


_NAMES: dict[str, Any] = {}


def generous(kind: Any) -> bool:
    """Whether the annotation allows anything, as everything is true or false."""
    return kind is Any or kind is bool


def accepts(kind: Any, value: Any) -> bool:
    """Whether a value is of a type, as far as an annotation says it."""
    if isinstance(kind, typing.TypeAliasType if sys.version_info >= (3, 12) else ()):
        kind = kind.__value__
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return any(accepts(part, value) for part in inside)
    if origin is Literal:
        return any(type(value) is type(c) and value == c for c in inside)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in (list, tuple, collections.abc.Sequence, collections.abc.Iterable):
        return isinstance(value, (list, tuple)) and all(accepts(inside[0], v) for v in value)
    if origin in (dict, collections.abc.Mapping):
        right = isinstance(value, Mapping) and all(isinstance(k, str) for k in value)
        return right and all(accepts(inside[1], v) for v in value.values())
    if isinstance(origin, type):  # os.PathLike[str]
        return isinstance(value, origin)
    if kind is Any:
        return True
    if kind is None:
        return value is None
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if getattr(kind, "_is_protocol", False):
        return all(callable(getattr(value, m, None)) for m in ("forward", "inverse"))
    return isinstance(value, kind)


# What annotations allow and people do not mean.
GENEROUS: dict[str, list[Any]] = {
    "data": [None, 3, NAN, NOBODY, "", [], [3], [NOBODY], {}, object(), math, nn.Linear(2, 2)],
    "example": [3, NAN, NOBODY, [], {NOBODY: 3}, object(), math, torch.empty(0, 2), torch.eye(7)],
}


def wrong(name: str, kind: Any, valid: Any) -> Iterator[Any]:
    """Values that the parameter does not take, by its type and by its meaning."""
    if generous(kind):
        yield from GENEROUS.get(name, [])
        return
    for value in KINDS:
        if not accepts(kind, value) or _means_nothing(name, value):
            yield value
    for value in NUMBERS:
        if not accepts(kind, value) or _out_of_range(name, value):
            yield value
    yield from {"seed": [HUGE], "path": ["", ".", f"{NOBODY}/page.html"]}.get(name, [])
    if accepts(kind, True) is False and accepts(kind, 3):
        yield True
    yield from _like(valid)


def _means_nothing(name: str, value: Any) -> bool:
    """Of the right type, but a name of nothing, or nothing at all."""
    if isinstance(value, Tensor):
        return True
    if any(type(value) is type(e) and value == e for e in EMPTY):
        return name not in MAY_BE_EMPTY | WORDS
    return value in (NOBODY, [NOBODY]) and name not in WORDS


def _out_of_range(name: str, value: float) -> bool:
    if not math.isfinite(value):
        return name not in INFINITE or math.isnan(value)
    return name not in (SIGNED if value < 0 else ZERO)


def _like(valid: Any) -> Iterator[Any]:
    """What is nearly right: tensors of another shape or without numbers, alone or by name."""
    if isinstance(valid, Tensor):
        yield valid[None, None]
        yield valid.new_zeros(0)
        if valid.is_floating_point():
            yield torch.full_like(valid, NAN)
    elif isinstance(valid, Mapping) and valid:
        name, value = next(iter(valid.items()))
        yield {**valid, name: 3}
        yield {3: value}  # no name
        if isinstance(value, Tensor):
            yield {**valid, name: value[None, None]}


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}, {value.dtype}"
    text = repr(value)
    return text if len(text) < 40 else f"{type(value).__name__} {text[:30]}..."
