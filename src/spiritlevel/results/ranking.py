"""A ranking as a figure shows it: a line for each measure, on one axis of taus."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spiritlevel.results.study import Network, Ranked, Row

STEPS = (0.05, 0.1, 0.2, 0.25, 0.5)  # between two ticks of an axis of taus
INTERVALS = 7  # between ticks, at most
Line = tuple["Row", "Row | None"]  # a measure, and the same with the orbit divided out


def lines(rows: Sequence[Row]) -> list[Line]:
    """Every measure once, the largest tau first: the divided-out one beside the plain one."""
    named = {row.name: row for row in rows}
    below = {row.bottom for row in rows if row.bottom in named}
    found = [(row, named.get(row.bottom)) for row in rows if row.name not in below]
    return sorted(found, key=lambda line: by_tau(line[0]))


def by_tau(row: Row) -> float:
    """The largest tau first, what has none last."""
    return -row.tau.value if known(row.tau) else math.inf


def known(ranked: Ranked | None) -> bool:
    return ranked is not None and all(map(math.isfinite, (ranked.value, ranked.low, ranked.high)))


def axis_of(rows: Sequence[Row]) -> tuple[float, ...]:
    """Ticks around zero and all intervals."""
    ends = [end for row in rows if known(row.tau) for end in (row.tau.low, row.tau.high)]
    least, most = min([0.0, *ends]), max([0.0, *ends])
    step = next((s for s in STEPS if (most - least) / s <= INTERVALS), STEPS[-1])
    low, high = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return tuple(round(k * step, 2) for k in range(low, max(high, low + 1) + 1))


def configurations(networks: Sequence[Network]) -> list[int]:
    """For each network the number of its configuration, as they come first."""
    texts = [json.dumps(network.config, sort_keys=True) for network in networks]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return [numbers[text] for text in texts]
