"""The parts of rich that results print themselves with."""

from __future__ import annotations

import random

_drawn = random.getstate()
from rich.console import Console, RenderableType  # noqa: E402
from rich.console import Group as Stack  # noqa: E402
from rich.padding import Padding  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

random.setstate(_drawn)  # rich draws from the global generator when it is imported

WIDTH = 100


def as_text(renderable: RenderableType) -> str:
    """A renderable as text without colours."""
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().rstrip()


__all__ = ["Console", "Padding", "RenderableType", "Stack", "Table", "Text", "as_text"]
