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
NAMES = {"hessian": "Hessian", "lipschitz": "Lipschitz"}  # of people: with a capital
Witness = dict[str, Any]


def within(gap: float) -> str:
    """A relative gap in words."""
    return f"within {gap:.0e}" if gap else "identical"


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
    so that a broken one is seen; `figure(**witness)` draws it as SVG, and `caption` says what is
    seen there. `own` says why the claim says nothing about a network that is given, where it builds
    its own.
    """

    statement: str
    source: str
    built: str
    construction: Callable[[Setting], Witness]
    check: Callable[..., Outcome]
    figure: Callable[..., str] | None = None
    own: str = ""
    caption: str = ""


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
    caption: str = ""

    @property
    def title(self) -> str:
        return " ".join(NAMES.get(word, word) for word in self.name.split("_"))

    @property
    def shown(self) -> str:
        return self.outcome.shown if self.outcome else self.skipped

    @property
    def holds(self) -> bool | None:
        return None if self.outcome is None else self.outcome.holds

    @property
    def verdict(self) -> str:
        return {True: "yes", False: "NO", None: "-"}[self.holds]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "title": self.title, "holds": self.holds}


@dataclass(frozen=True)
class Claims:
    """The claims that were run, as a table; `figures` are SVG texts by name."""

    results: tuple[Result, ...]
    network: str
    seconds: float
    figures: dict[str, str] = field(default_factory=dict, repr=False)
    interrupted: str = ""

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
            "interrupted": self.interrupted,
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
        # two lines for each claim: five columns would not fit into 80 characters
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("claim, and its source", overflow="fold")
        table.add_column("what was built, and the number", overflow="fold")
        table.add_column("holds", no_wrap=True)
        for result in self.results:
            style = {True: "green", False: "bold red", None: "dim"}[result.holds]
            table.add_row(result.name, result.built, Text(result.verdict, style=style))
            table.add_row(Text(f"  {result.source}", style="dim"), result.shown, "")
        return Stack(table, Text(), *(Text(line) for line in self.lines()))

    def lines(self) -> list[str]:
        """How many hold, on which network."""
        checked = [result for result in self.results if result.outcome]
        right = sum(bool(result.holds) for result in checked)
        closing = f"{right} of {len(checked)} hold, {self.seconds:.0f} s, on {self.network}"
        return [f"interrupted: {self.interrupted}", closing] if self.interrupted else [closing]
