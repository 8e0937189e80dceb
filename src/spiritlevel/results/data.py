"""Frozen dataclasses as plain data, and back: their types say what JSON holds."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from spiritlevel.base.errors import SpiritlevelError

# JSON has no numbers for these; protocol buffers write them so too
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Of a field that is not written: a model or a tensor, absent from a result that was read
LIVE = {"live": True}


def plain(value: Any) -> Any:
    """Numbers, texts, lists and dicts; a dataclass with the properties that it names in `told`."""
    if dataclasses.is_dataclass(value):
        names = [*written(type(value)), *getattr(value, "told", ())]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@functools.cache
def written(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass that are written, each with its type."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if not f.metadata.get("live")}


def read(kind: Any, data: Any, place: str = "") -> Any:
    """The value of this type that `plain` wrote; an error names the place that does not fit."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        return _one_of(inside, data, place)
    if origin is Literal:
        return _expect(data in inside, data, kind, place)
    if origin is tuple:
        return _tuple(inside, data, place)
    if origin is list:
        return list(_tuple((inside[0], ...), data, place))
    if typing.is_typeddict(kind):
        return _record(kind, data, place)
    if origin is dict:
        _expect(isinstance(data, dict), data, kind, place)
        return {key: read(inside[1], item, f"{place}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data, place)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        _expect(data in [member.value for member in kind], data, kind, place)
        return kind(data)
    return _simple(kind, data, place)


def _simple(kind: type, data: Any, place: str) -> Any:
    if kind is float:
        if isinstance(data, str) and data in SPECIAL:
            return SPECIAL[data]
        right = isinstance(data, (int, float)) and not isinstance(data, bool)
        return _expect(right, data, kind, place)
    right = isinstance(data, kind) and (kind is bool or not isinstance(data, bool))
    return _expect(right, data, kind, place)


def _one_of(kinds: tuple[Any, ...], data: Any, place: str) -> Any:
    """The first type that fits, with the error of the first one if none does."""
    wrong = None
    for kind in kinds:
        try:
            return read(kind, data, place)
        except SpiritlevelError as error:
            wrong = wrong or error
    assert wrong is not None
    raise wrong


def _tuple(inside: tuple[Any, ...], data: Any, place: str) -> tuple[Any, ...]:
    endless = inside[1:] == (...,)
    right = isinstance(data, list) and (endless or len(data) == len(inside))
    _expect(right, data, tuple, place)
    kinds = [inside[0]] * len(data) if endless else inside
    return tuple(
        read(kind, item, f"{place}[{i}]")
        for i, (kind, item) in enumerate(zip(kinds, data, strict=True))
    )


def _record(kind: Any, data: Any, place: str) -> dict[str, Any]:
    """A dict with known keys; others are kept."""
    _expect(isinstance(data, dict), data, kind, place)
    _refuse_missing(sorted(kind.__required_keys__), data, place)
    hints = typing.get_type_hints(kind)
    return {key: read(hints.get(key, Any), item, f"{place}.{key}") for key, item in data.items()}


def _refuse_missing(needed: list[str], data: dict[str, Any], place: str) -> None:
    for name in needed:
        if name not in data:
            raise SpiritlevelError(f"{place.lstrip('.') or 'the result'} has no {name!r}")


def _dataclass(kind: Any, data: Any, place: str) -> Any:
    _expect(isinstance(data, dict), data, kind, place)
    _refuse_missing([f.name for f in dataclasses.fields(kind) if _needed(f)], data, place)
    known = {name: hint for name, hint in written(kind).items() if name in data}
    return kind(**{n: read(hint, data[n], f"{place}.{n}") for n, hint in known.items()})


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _expect(right: bool, data: Any, kind: Any, place: str) -> Any:
    if not right:
        shown = repr(data) if len(repr(data)) < 60 else f"{repr(data)[:60]}..."
        wanted = getattr(kind, "__name__", str(kind))
        raise SpiritlevelError(f"{place.lstrip('.') or 'the result'} is {shown}, not a {wanted}")
    return data
