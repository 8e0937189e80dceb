"""A theorem as code: what it builds, how that is checked, and how the result is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spiritlevel.console import RenderableType, Stack, Table, Text, plain
from spiritlevel.theorems.setting import Setting
from spiritlevel.version import __version__

SCHEMA = 1
Witness = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a check found: the headline, every number that was asserted, and whether it holds."""

    shown: str
    numbers: dict[str, float]
    holds: bool


@dataclass(frozen=True)
class Claim:
    """A statement of the literature, executable.

    `construction` builds the witness on a network; `check(**witness)` looks at the witness alone,
    so that a broken one is seen; `figure(**witness)` draws it as SVG. `own` says why the claim says
    nothing about a network that is given, where it builds its own.
    """

    statement: str
    source: str
    built: str
    construction: Callable[[Setting], Witness]
    check: Callable[..., Outcome]
    figure: Callable[..., str] | None = None
    own: str = ""


@dataclass(frozen=True)
class Result:
    """One claim after its check; `skipped` says why there is no outcome."""

    name: str
    statement: str
    source: str
    built: str
    outcome: Outcome | None
    seconds: float
    skipped: str = ""

    @property
    def holds(self) -> bool | None:
        return None if self.outcome is None else self.outcome.holds

    @property
    def verdict(self) -> str:
        return {True: "yes", False: "NO", None: "-"}[self.holds]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class Claims:
    """The claims that were run, as a table; `figures` are SVG texts by name."""

    results: tuple[Result, ...]
    network: str
    seconds: float
    figures: dict[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Result:
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

    @property
    def holds(self) -> bool:
        """Whether everything that could be checked holds."""
        return all(result.holds is not False for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "claims": [result.to_dict() for result in self.results],
            "holds": self.holds,
            "network": self.network,
            "seconds": self.seconds,
            "version": __version__,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The results as JSON text, written to `path` too if one is given."""
        text = json.dumps(self.to_dict(), indent=1)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def __str__(self) -> str:
        return plain(self.__rich__())

    def __rich__(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("claim", "source", "built", "number", "holds"):
            table.add_column(title, overflow="fold")
        for result in self.results:
            number = result.outcome.shown if result.outcome else result.skipped
            name = result.name.replace("_", " ")
            table.add_row(name, result.source, result.built, number, result.verdict)
        checked = [result for result in self.results if result.outcome]
        right = sum(bool(result.holds) for result in checked)
        closing = f"{right} of {len(checked)} hold, {self.seconds:.0f} s, on {self.network}"
        return Stack(table, Text(), Text(closing))
