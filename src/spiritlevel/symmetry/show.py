"""A group as a person reads it: by layer, and what is blocked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spiritlevel.results.terminal import RenderableType, Stack, Table, Text, plain
from spiritlevel.symmetry.tracing.state import Block, Reason

if TYPE_CHECKING:
    from spiritlevel.symmetry.group import Group

MEANING = {
    "hidden": "units between two layers",
    "gain": "gains of norms and the next layer",
    "norm input": "what a norm divides out",
    "residual": "channels of a residual stream",
    "query-key": "queries up, keys down",
    "value-output": "values up, output projection down",
    "gate": "the linear branch of a gated unit",
    "dead": "biases that no prediction sees",
    "linear": "between two linear maps",
}
HINTS = {
    Reason.STATISTICS: "With statistics free, running statistics move along.",
    Reason.EPS: "With eps approximate, what the eps of a norm breaks a little is admitted.",
}
ROWS = 60


def as_renderable(group: Group) -> RenderableType:
    size = sum(shape.numel() for shape in group.shapes.values())
    head = Text(f"{group.dim} rescalings of {size:,} parameters leave every prediction as it is")
    if group.norms:
        head.append(f", up to the eps of {len(group.norms)} norms")
    head.stylize("bold")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, justify in (("from -> to", "left"), ("kind", "left"), ("channels", "right")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    layers = Counter((g.name.rsplit(", channel", 1)[0], g.kind) for g in group.generators)
    for (name, kind), count in list(layers.items())[:ROWS]:
        table.add_row(name, f"{kind}: {MEANING.get(kind, '')}", str(count))
    if len(layers) > ROWS:
        rest = sum(list(layers.values())[ROWS:])
        table.add_row(f"... and {len(layers) - ROWS} more", "", str(rest))
    parts: list[RenderableType] = [head]
    if group.generators:
        parts += [Text(), table]
    return Stack(*parts, *_rest(group))


def _rest(group: Group) -> list[RenderableType]:
    lines: list[RenderableType] = []
    blocks: dict[tuple[str, Reason], list[Block]] = {}
    for block in group.blocks:
        blocks.setdefault((block.operation, block.reason), []).append(block)
    if blocks:
        lines += [Text(), Text("Blocked", style="bold")]
    for (operation, reason), found in blocks.items():
        held = _few(sorted({p for b in found for p in b.parameters}), 4)
        place = _few([b.module for b in found])
        lines.append(Text(f"  {operation} in {place}: {held} (it {reason.value})", style="dim"))
    if group.frozen:
        lines.append(Text(f"Never moved: {_few(list(group.frozen), 6)}", style="dim"))
    if group.unused:
        lines.append(
            Text(
                f"Not reached by this example: parts of {_few(list(group.unused), 4)}", style="dim"
            )
        )
    met = {block.reason for block in group.blocks}
    return lines + [Text(hint, style="dim") for reason, hint in HINTS.items() if reason in met]


def _few(names: list[str], most: int = 3) -> str:
    named = [n or "the model" for n in dict.fromkeys(names)]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


def as_text(group: Group) -> str:
    return plain(as_renderable(group))
