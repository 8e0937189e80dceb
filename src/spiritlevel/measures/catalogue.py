"""The catalogue of measures, for the terminal and as a page.

python -m spiritlevel.measures.catalogue > docs/measures.md
"""

from __future__ import annotations

import inspect
from itertools import groupby

from spiritlevel.measures.base import INVARIANCES, Measure
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results.table import LEGEND, MARKS
from spiritlevel.results.terminal import Padding, RenderableType, Stack, Text

INDENT = (0, 0, 0, 6)
HEAD = """# Measures

What spiritlevel can measure, made from its registry. `spiritlevel measure --list` prints the same;
a measure of your own (`@sl.register("name")`) joins it. Names may be patterns, and choose
parameters, here and on the command line (`--only "keskar(eps=5e-4),los?"`):

```python
import spiritlevel as sl

print(sl.measure(sl.default_objective(), ["keskar(eps=5e-4)", "los?"]))
```

Invariant under: {invariances}.
A measure that promises nothing can be changed by rescalings that change no prediction (Dinh et al.,
2017): read it next to its least value over the orbit, which `sl.audit` shows, and compare networks
with `sl.compare`. Promises of maxima are of the maxima: searches that begin elsewhere may end
apart, mostly by some per cent, by more where the way up is narrow.

Some need more than an objective: `init=` the weights before training, `losses=` the training loss
of every step (`--init`, `--losses`). Which one should I use? See [choosing.md](choosing.md).
"""


def catalogue(names: list[str] | None = None) -> Stack:
    """All measures, or some, by family: name, marks and title; formula, price and source."""
    families = _families(names)
    width = max((len(name) for _, chosen in families for name, _ in chosen), default=0)
    lines: list[RenderableType] = []
    for family, chosen in families:
        lines.append(Text(family, style="bold"))
        for name, entry in chosen:
            marks = " ".join(MARKS[promise] for promise in entry.invariances)
            lines.append(Text(f"  {name:<{width}}  {marks:<7}  {entry.title}"))
            lines.append(Padding(Text(_told(entry), style="dim"), INDENT))
    below = (
        f"Marks: {LEGEND}.",
        "Parameters are chosen by name: --only \"keskar(eps=5e-4)\"; patterns: --only 'orbit_*'.",
    )
    return Stack(*lines, Text(), *(Text(line, style="dim") for line in below))


def page() -> str:
    """The same as Markdown, with how to read each."""
    promises = "; ".join(f"**{name}**: {text}" for name, text in INVARIANCES.items())
    parts = [HEAD.format(invariances=promises)]
    for family, chosen in _families(None):
        parts.append(f"\n## {family.capitalize()}\n")
        parts += [_entry(name, entry) for name, entry in chosen]
    return "\n".join(parts)


def _families(names: list[str] | None) -> list[tuple[str, list[tuple[str, Measure]]]]:
    chosen = [(n, entry) for n, entry in MEASURES.items() if names is None or n in names]
    order = {family: i for i, family in enumerate(dict.fromkeys(e.family for _, e in chosen))}
    chosen.sort(key=lambda item: order[item[1].family])
    return [(family, list(some)) for family, some in groupby(chosen, lambda item: item[1].family)]


def _formula(entry: Measure) -> str:
    return (inspect.getdoc(entry.function) or entry.title).splitlines()[0].rstrip(".")


def _told(entry: Measure) -> str:
    """Formula, price and source, which some formulas name."""
    formula, source = _formula(entry), entry.reference
    named = not source or source.split(" ")[0] in formula
    return f"{formula}; {entry.cost}" if named else f"{formula}; {entry.cost}; {source}"


def _entry(name: str, entry: Measure) -> str:
    chosen = ", ".join(f"{key}={value!r}" for key, value in entry.parameters.items())
    facts = {
        "invariant": ", ".join(entry.invariances) or "promises nothing",
        "read": entry.reading or ("larger means sharper" if entry.is_sharpness else ""),
        "takes": entry.cost,
        "needs": ", ".join(f"`{need}=`" for need in entry.needs),
        "parameters": chosen and f"`{chosen}`",
        "from": entry.reference,
    }
    told = "; ".join(f"{key}: {text}" for key, text in facts.items() if text)
    title = "" if entry.parts else f", {entry.title}"
    return f"- **`{name}`**{title}: `{_formula(entry)}`.\n  {told}."


if __name__ == "__main__":
    print(page())
