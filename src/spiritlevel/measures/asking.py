"""What is asked for: measures by name, by pattern, by family, with parameters of their own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.measures.base import Measure
from spiritlevel.measures.registry import MEASURES, checked


@dataclass(frozen=True)
class Asked:
    """One measure, with what was chosen about it."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def entry(self) -> Measure:
        return MEASURES[self.name]

    @property
    def label(self) -> str:
        """keskar(eps=0.0005): its name, as it was asked for."""
        return self._with(self.name, "")

    @property
    def title(self) -> str:
        return self._with(self.entry.title, " ")

    def _with(self, text: str, space: str) -> str:
        chosen = ", ".join(f"{key}={value!r}" for key, value in self.parameters.items())
        return f"{text}{space}({chosen})" if chosen else text


def asked(texts: Sequence[str]) -> list[Asked]:
    """The measures in a list of names, patterns ("orbit_*") and calls ("keskar(eps=5e-4)")."""
    if isinstance(texts, str) or (isinstance(texts, Sequence) and not texts):
        checked(texts)  # says what is wrong with it
    found: dict[str, Asked] = {}
    for text in doors.names("measures", texts):
        calls = [_call(text)] if "(" in text else [Asked(name) for name in checked([text])]
        found |= {one.label: one for one in calls}
    return list(found.values())


def of_family(families: Sequence[str]) -> list[str]:
    """The names of all measures of some families."""
    known = list(dict.fromkeys(entry.family for entry in MEASURES.values()))
    for family in families:
        doors.one_of("family", family, known)
    return [name for name, entry in MEASURES.items() if entry.family in families]


def _call(text: str) -> Asked:
    """keskar(eps=5e-4): a name and literals by name, nothing that is run."""
    unreadable = SpiritlevelError(
        f"cannot read {text!r}; name a measure, with parameters as in keskar(eps=5e-4)"
    )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)) or tree.args:
            raise unreadable
        values = {key.arg: ast.literal_eval(key.value) for key in tree.keywords if key.arg}
    except (SyntaxError, ValueError):
        raise unreadable from None
    if len(values) != len(tree.keywords):  # **more
        raise unreadable
    [name] = checked([tree.func.id])
    MEASURES[name].accept(values)
    return Asked(name, values)
