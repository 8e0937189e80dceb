"""The parts of rich that results print themselves with."""

from __future__ import annotations

from spiritlevel.base.scope import kept_rng

with kept_rng():  # rich draws from the global generator when it is imported
    from rich.console import Console, RenderableType
    from rich.console import Group as Stack
    from rich.table import Table
    from rich.text import Text

WIDTH = 100


def plain(renderable: RenderableType) -> str:
    """A renderable as text without colours."""
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().rstrip()


__all__ = ["Console", "RenderableType", "Stack", "Table", "Text", "plain"]
