"""A theorem as code: what it builds, how that is checked, and how the result is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.version import __version__
from spiritlevel.results.files import json_text, written
from spiritlevel.results.terminal import RenderableType, Stack, Table, Text, plain
from spiritlevel.theorems.setting import Setting

SCHEMA = 2
NAMES = {"hessian": "Hessian", "lipschitz": "Lipschitz"}  # of people: with a capital
Witness = dict[str, Any]
About = Literal["network", "example"]
Verdict = Literal["holds", "fails", "own example", "not checked"]
# In the table: what is said, and its style
SIGNS: dict[Verdict, tuple[str, str]] = {
    "holds": ("yes", "green"),
    "fails": ("NO", "bold red"),
    "own example": ("own", "cyan"),
    "not checked": ("-", "dim"),
}


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
    seen there. `about` tells whether the witness is made of the network that is looked at, or is
    an example of its own, which says nothing about any other network.
    """

    statement: str
    source: str
    built: str
    construction: Callable[[Setting], Witness]
    check: Callable[..., Outcome]
    figure: Callable[..., str] | None = None
    about: About = "network"
    caption: str = ""


@dataclass(frozen=True)
class Result:
    """One claim after its check; `skipped` says why there is no outcome."""

    name: str
    statement: str
    source: str
    built: str
    about: About
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
    def verdict(self) -> Verdict:
        if self.outcome is None:
            return "not checked"
        if not self.outcome.holds:
            return "fails"
        return "holds" if self.about == "network" else "own example"

    @property
    def holds(self) -> bool | None:
        """What it says of the network: nothing where it was shown on an example of its own."""
        return {"holds": True, "fails": False}.get(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        told = {"title": self.title, "verdict": self.verdict, "holds": self.holds}
        return {**asdict(self), **told}


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
        raise SpiritlevelError(
            f"no claim {name!r}; there are: {', '.join(result.name for result in self.results)}"
        )

    @property
    def holds(self) -> bool:
        """Whether everything that could be checked holds, on the network or on its own example."""
        return all(result.verdict != "fails" for result in self.results)

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
        return written(json_text(self.to_dict()), path)

    def __str__(self) -> str:
        return plain(self.__rich__())

    def __rich__(self) -> RenderableType:
        # two lines for each claim: five columns would not fit into 80 characters
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("claim, and its source", overflow="fold")
        table.add_column("what was built, and the number", overflow="fold")
        table.add_column("holds", no_wrap=True)
        for result in self.results:
            sign, style = SIGNS[result.verdict]
            table.add_row(result.name, result.built, Text(sign, style=style))
            table.add_row(Text(f"  {result.source}", style="dim"), result.shown, "")
        return Stack(table, Text(), *(Text(line) for line in self.lines()))

    def lines(self) -> list[str]:
        """How many hold, on which network, and how many on examples of their own."""
        found = [f"interrupted: {self.interrupted}"] if self.interrupted else []
        for about, where in (("network", self.network), ("example", "examples of their own")):
            checked = [r for r in self.results if r.outcome and r.about == about]
            right = sum(r.verdict != "fails" for r in checked)
            if checked or about == "network":
                found.append(f"{right} of {len(checked)} hold on {where}")
        return [*found, f"{self.seconds:.0f} s"]
