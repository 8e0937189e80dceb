"""A theorem as code: what it builds, and how that is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spiritlevel.results.claims import About, Finding
from spiritlevel.theorems.setting import Setting

Witness = dict[str, Any]


def within(gap: float) -> str:
    """A relative gap in words."""
    return f"within {gap:.0e}" if gap else "identical"


@dataclass(frozen=True)
class Claim:
    """A statement of the literature, executable.

    `construction` builds the witness on a network; `check(**witness)` looks at the witness alone,
    so that a broken one is seen; `figure(**witness)` draws it as SVG, and `caption` says what is
    seen there. `about` tells whether the witness is made of the network that is looked at, or is
    an example of its own, which says nothing about any other network. A `long` one takes minutes
    and runs only when it is asked for by name.
    """

    statement: str
    source: str
    built: str
    construction: Callable[[Setting], Witness]
    check: Callable[..., Finding]
    figure: Callable[..., str] | None = None
    about: About = "network"
    caption: str = ""
    long: bool = False
