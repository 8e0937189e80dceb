"""Courses of a training, made by hand."""

from __future__ import annotations

import math
from typing import Any

from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.results.history import Epoch, History, Moment, Reading

TOLD: Any = {
    "parameters": 2778,
    "examples": 1437,
    "dtype": "float32",
    "device": "cpu",
    "optimizer": "SAM(SGD)",
    "seed": 0,
    "stopped": "after 3 epochs",
    "watched": 2.0,
    "put_off": 1,
    "seconds": 20.0,
    "notes": [],
    "refused": {},
    "interrupted": "",
    "versions": {"spiritlevel": "0.1.0"},
}


def eigenvalue(value: float, bound: float = 1e-4) -> Estimate:
    return Estimate(value, bound=bound, matvecs=20, status=Status.CONVERGED)


def reading(
    here: float, least: float | None, error: float = 1e-4, least_error: float = 1e-4
) -> Reading:
    bottom = None if least is None else eigenvalue(least, least_error)
    return Reading("lambda_max", eigenvalue(here, error), bottom, title="largest eigenvalue")


def moment(step: int, loss: float, *readings: Reading, rate: float | None = 0.2) -> Moment:
    return Moment(f"step {step}", step, loss, rate, readings, 0.5)


def course(*pairs: tuple[float, float | None], **errors: float) -> History:
    """Largest eigenvalues here and on the bottom, at steps 0, 100, ..."""
    moments = tuple(
        moment(100 * k, 2.0 / (k + 1), reading(here, least, **errors))
        for k, (here, least) in enumerate(pairs)
    )
    return History((), moments, TOLD)


def full(rows: int = 4, extra: int = 0) -> History:
    """Several measures, one of them invariant, epochs, and a moment at which the loss blew up."""
    moments = []
    for k in range(rows):
        trace = Estimate(30.0 - k, stderr=1.0, status=Status.CONVERGED)
        more = [Reading(f"own_{i}", Estimate(1234.5 + i), title=f"own {i}") for i in range(extra)]
        moments.append(
            moment(
                100 * k,
                10.0 ** (-k / 2),
                reading(12.0 - k, 8.0 - k / 2),
                Reading("hessian_trace", trace, Estimate(20.0, bound=0.05), title="trace"),
                Reading("fisher_rao", Estimate(0.5), title="Fisher-Rao norm", invariant=True),
                *more,
            )
        )
    last = 100 * rows
    blown = Moment(f"step {last}", last, math.inf, 0.2, (), 0.1, ("the loss is inf here",))
    epochs = tuple(Epoch(n, 50 * n, 2.0 / n, 0.2, 0.25) for n in range(1, 4))
    return History(epochs, (*moments, blown), TOLD)
