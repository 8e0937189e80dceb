"""`measure`: a table of measures at one point."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from spiritlevel.base.doors import one_of
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.tensor_doors import accuracy
from spiritlevel.curvature.engine import CompileChoice
from spiritlevel.measures.asking import Asked, asked
from spiritlevel.measures.given import Given, refuse_given
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import standard
from spiritlevel.measures.rest import rest
from spiritlevel.objective import Objective, described, only_objectives
from spiritlevel.results.loop import FAILURES, Done, beside, one_by_one
from spiritlevel.results.provenance import provenance
from spiritlevel.results.table import Row, Table


def measure(
    objective: Objective,
    names: Sequence[str] | None = None,
    *,
    seed: int = 0,
    tol: float = 1e-3,
    rtol: float = 0.05,
    budget: int = 200,
    compile: CompileChoice = "auto",
    init: Given = None,
    losses: Sequence[float] | None = None,
) -> Table:
    """A table of the named measures (the standard ones if None), each with its error and cost.

    Names may be patterns ("orbit_*") and choose parameters ("keskar(eps=5e-4)").
    Eigenvalues stop at the relative residual `tol`, traces and norms at the relative standard
    error `rtol`, either at `budget` products. `init` are the weights before training (a module, a
    state_dict, an Objective) and `losses` the training loss of every step, for those that need
    them. What cannot be had is left out with the reason, unless it was all that was asked for.
    Interrupted, it returns the rows that are done.
    """
    only_objectives(objective)
    accuracy(tol, rtol, budget, seed)
    one_of("compile", compile, ("auto", True, False))
    refuse_given(objective, init, losses)
    wanted = {one.label: one for one in asked(standard() if names is None else names)}
    begin = time.perf_counter()
    settings = {"tol": tol, "rtol": rtol, "budget": budget, "compile": compile}
    tools = Instruments(objective, seed=seed, init=init, losses=losses, **settings)
    done = one_by_one(
        list(wanted),
        lambda label: _rows(wanted[label], tools),
        label="measure",
        refuses=FAILURES,
        keeps_parts=True,
    )
    return _table(done.require(), tools, begin)


def _table(done: Done[list[Row]], tools: Instruments, begin: float) -> Table:
    rows = [row for found in done.found.values() for row in found]
    standing = beside(done, {"step downhill": lambda: rest(tools)}).get("step downhill")
    paid = sum(row.estimate.matvecs for row in rows if not row.shared)
    paid += tools.confirming + (0 if standing is None else standing.products)
    told = provenance(
        begin,
        [*tools.objective.notes, *tools.remarks()],
        done,
        **described(tools.objective),
        seed=tools.seed,
        products=paid,
        **_product(tools),
    )
    return Table(tuple(rows), standing, told)


def _rows(one: Asked, instruments: Instruments) -> list[Row]:
    entry = one.entry
    shared = bool(entry.shares) and instruments.used(entry.shares)
    found = entry.row(instruments, **one.parameters)
    kind = {"family": entry.family, "invariances": entry.invariances}
    if isinstance(found, Estimate):
        return [Row(one.label, one.title, found, shared, **kind)]
    return [
        Row(
            f"{one.label}.{part}",
            f"{one.title} {part}",
            estimate,
            shared or i > 0,
            part=True,
            **kind,
        )
        for i, (part, estimate) in enumerate(found.items())
    ]


def _product(instruments: Instruments) -> dict[str, Any]:
    """How products were made, and how well; nothing where none were."""
    if not instruments.used("hessian"):
        return {}
    operator = instruments.hessian
    return {
        "product": operator.how,
        "product_check": operator.check,
        "product_rounding": operator.rounding,
    }
