"""`measure`: a table of measures at one point."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from typing import Any

import torch

from spiritlevel.base.doors import accuracy, one_of
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.scope import heard_interrupts
from spiritlevel.base.version import __version__
from spiritlevel.curvature.engine import CompileChoice
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.registry import MEASURES, checked, standard
from spiritlevel.measures.rest import rest
from spiritlevel.measures.table import Row, Table
from spiritlevel.objective import Objective, only_objectives

COARSE_ROUNDING = 1e-3
DOUBTFUL_CHECK = 1e-2


def measure(
    objective: Objective,
    names: Sequence[str] | None = None,
    *,
    seed: int = 0,
    tol: float = 1e-3,
    rtol: float = 0.05,
    budget: int = 200,
    compile: CompileChoice = "auto",
) -> Table:
    """A table of the named measures (the standard ones if None), each with its error and cost.

    Eigenvalues stop at the relative residual `tol`, traces and norms at the relative standard
    error `rtol`, either at `budget` products. Interrupted, it returns the rows that are done.
    """
    only_objectives(objective)
    accuracy(tol, rtol, budget, seed)
    one_of("compile", compile, ("auto", True, False))
    wanted = checked(standard() if names is None else names)
    begin = time.perf_counter()
    instruments = Instruments(
        objective, seed=seed, tol=tol, rtol=rtol, budget=budget, compile=compile
    )
    rows, interrupted = list[Row](), False
    with heard_interrupts() as heard:
        try:
            for name in wanted:
                rows += _rows(name, instruments)
                if heard:  # that row kept what it had, and says so
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = True
    standing = None if interrupted else rest(instruments)
    footer = _footer(instruments, rows, time.perf_counter() - begin)
    footer["products"] += 0 if standing is None else standing.products
    if interrupted:
        footer["interrupted"] = f"{len(rows)} rows were done"
    return Table(tuple(rows), standing, footer)


def _rows(name: str, instruments: Instruments) -> list[Row]:
    entry = MEASURES[name]
    shared = bool(entry.shares) and instruments.used(entry.shares)
    found = entry.function(instruments)
    if isinstance(found, Estimate):
        return [Row(name, entry.title, found, shared)]
    return [
        Row(f"{name}.{part}", f"{entry.title} {part}", estimate, shared or i > 0)
        for i, (part, estimate) in enumerate(found.items())
    ]


def _remarks(instruments: Instruments) -> list[str]:
    """What a reader must know about the products."""
    if not instruments.used("hessian"):
        return []
    operator = instruments.hessian
    remarks = [operator.remark()] if operator.remark else []
    if operator.check and operator.check > DOUBTFUL_CHECK:
        remarks.append(
            f"the product differs from finite differences by {operator.check:.0e}: examples fitted "
            "to the last digit, kinks, or a loss without second derivatives; use more examples"
        )
    if operator.rounding and operator.rounding > COARSE_ROUNDING:
        remarks.append(
            f"products are rounded to {operator.rounding:.0e} (tf32?): for more digits set "
            "torch.backends.cudnn.allow_tf32 = False, or use dtype=torch.float64"
        )
    return [remark for remark in remarks if remark]


def _footer(instruments: Instruments, rows: list[Row], seconds: float) -> dict[str, Any]:
    objective = instruments.objective
    footer: dict[str, Any] = {
        "parameters": objective.size,
        "examples": objective.examples,
        "mode": objective.mode,
        "dtype": str(objective.dtype).removeprefix("torch."),
        "device": str(objective.device),
        "seed": instruments.seed,
        "products": sum(row.estimate.matvecs for row in rows if not row.shared),
        "seconds": seconds,
    }
    if instruments.used("hessian"):
        footer["product"] = instruments.hessian.how
        footer["product_check"] = instruments.hessian.check
        footer["product_rounding"] = instruments.hessian.rounding
    notes = [*objective.notes, *_remarks(instruments)]
    if notes:
        footer["notes"] = notes
    footer["versions"] = {
        "spiritlevel": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return footer
