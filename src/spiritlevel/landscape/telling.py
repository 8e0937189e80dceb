"""Where a picture comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spiritlevel.landscape.points import Way
from spiritlevel.objective import Objective
from spiritlevel.objective.description import described
from spiritlevel.results.landscape import OfLandscape
from spiritlevel.results.provenance import provenance


def told(
    objective: Objective,
    begin: float,
    way: Way | None,
    *,
    seed: int,
    statistics: str = "frozen",
    notes: Sequence[str] = (),
    interrupted: str = "",
    products: float = 0.0,
) -> OfLandscape:
    """The provenance of a picture."""
    own = [] if way is None or not way.note else [way.note]
    found: Any = provenance(
        begin,
        [*objective.notes, *notes, *own],
        **described(objective),
        seed=int(seed),
        products=products,
        engine="" if way is None else str(way),
        check=0.0 if way is None else way.check,
        statistics=statistics,
    )
    found["interrupted"] = interrupted
    return found
