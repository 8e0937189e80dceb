"""The JSON schema of every kind of result, from the types of its fields.

python -m spiritlevel.results.schema > docs/schema.json
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from typing import Any, Literal, Union

import spiritlevel.results as kinds
from spiritlevel.results.data import SPECIAL, written
from spiritlevel.results.result import Result

NAMES = {str: "string", bool: "boolean", int: "integer", type(None): "null"}


def schema() -> dict[str, Any]:
    """One schema for what `to_json` writes; `load` reads what fits it."""
    found = [getattr(kinds, name) for name in kinds.__all__]
    results = [
        k for k in found if isinstance(k, type) and issubclass(k, Result) and k is not Result
    ]
    parts: dict[str, Any] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Results of spiritlevel",
        "oneOf": [_result(kind, parts) for kind in results],
        "$defs": parts,
    }


def _result(kind: type[Result], parts: dict[str, Any]) -> dict[str, Any]:
    found = _fields(kind, parts)
    constants = {"kind": {"const": kind.kind}, "schema": {"const": kind.schema}}
    found["properties"] = {**constants, **found["properties"]}
    return {**found, "required": ["kind", "schema", *found["required"]]}


def _fields(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """An object; more than its fields are told of it, such as its texts."""
    hints = written(kind)
    needed = [
        f.name
        for f in dataclasses.fields(kind)
        if f.name in hints and f.default is f.default_factory is dataclasses.MISSING
    ]
    told = sorted(getattr(kind, "told", ()))
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
        "properties": {name: _type(hint, parts) for name, hint in hints.items()}
        | {name: {} for name in told if name not in hints},
        "required": needed,
    }


def _type(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(one, parts) for one in inside]}
    if origin is Literal:
        return {"enum": list(inside)}
    if origin is tuple and inside[1:] == (...,):
        return {"type": "array", "items": _type(inside[0], parts)}
    if origin is tuple:
        each = [_type(one, parts) for one in inside]
        return {"type": "array", "prefixItems": each, "minItems": len(each), "items": False}
    if origin is list:
        return {"type": "array", "items": _type(inside[0], parts)}
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        known = {name: _type(hint, parts) for name, hint in hints.items()}
        return {"type": "object", "properties": known, "required": sorted(kind.__required_keys__)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(inside[1], parts)}
    if dataclasses.is_dataclass(kind):
        return _reference(kind, parts)
    if issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    return {"type": ["number", "string"], "pattern": _special()} if kind is float else _name(kind)


def _name(kind: Any) -> dict[str, Any]:
    return {"type": NAMES[kind]}


def _special() -> str:
    """Texts that stand for numbers that JSON has not."""
    return f"^({'|'.join(SPECIAL)})$"


def _reference(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    if name not in parts:
        parts[name] = {}  # a type may hold itself
        parts[name] = _fields(kind, parts)
    return {"$ref": f"#/$defs/{name}"}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
