"""What every measure must do: the same checks for each entry of the registry."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.audits.verdicts import differ
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.base import Measure
from spiritlevel.measures.instruments import Instruments

SEEDS = (0, 1, 2)
# float64: what rounding and the stopping of iterations may do to an invariant value
STILL = 1e-5


@functools.cache
def trained() -> nn.Sequential:
    """A small rectified net near a minimum."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))
    net = net.double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(net(data()[0]), data()[1]).backward()
        optimizer.step()
    return net


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return randn(40, 5), labels(40)


def objective(microbatch: int = 40) -> sl.Objective:
    return sl.Objective(trained(), data(), F.cross_entropy, microbatch=microbatch)


def estimates(measure: Measure, point: sl.Objective, seed: int = 0) -> list[Estimate]:
    return by(measure, Instruments(point, seed=seed, compile=False))


def by(measure: Measure, instruments: Instruments) -> list[Estimate]:
    found = measure.function(instruments)
    return [found] if isinstance(found, Estimate) else list(found.values())


def values(measure: Measure, point: sl.Objective, seed: int = 0) -> list[float]:
    return [e.value for e in estimates(measure, point, seed)]


@functools.cache
def group() -> sl.Group:
    return sl.symmetries(objective())


@functools.cache
def elsewhere(kind: str, seed: int) -> Instruments:
    """At a twin, or with other batches: all measures look there, as they do in one table."""
    if kind == "batches":
        return Instruments(objective(16), compile=False)
    moves = group().layerwise() if kind == "layers" else group()
    return Instruments(moves.apply(objective(), moves.random(seed, 1.0)), compile=False)


def check(measure: Measure) -> None:
    """All of it."""
    assert measure.title
    assert measure.family
    assert measure.cost
    here = estimates(measure, objective())
    _is_deterministic_and_leaves_no_trace(measure, here)
    _does_not_see_batches(measure, here)
    _is_honest(here)
    _keeps_its_promises(measure, here)


def _is_deterministic_and_leaves_no_trace(measure: Measure, here: list[Estimate]) -> None:
    point = objective()
    before, state = point.vector.clone(), torch.get_rng_state()
    weights = [p.detach().clone() for p in trained().parameters()]
    # to rounding: the place of a vector in memory decides in which order BLAS adds
    assert values(measure, point) == pytest.approx([e.value for e in here], rel=1e-12), "chance"
    assert torch.equal(point.vector, before)
    assert torch.equal(torch.get_rng_state(), state), "global generator"
    assert all(torch.equal(p, w) for p, w in zip(trained().parameters(), weights, strict=True))


def _does_not_see_batches(measure: Measure, here: list[Estimate]) -> None:
    for a, b in zip(here, by(measure, elsewhere("batches", 0)), strict=True):
        assert math.isclose(a.value, b.value, rel_tol=1e-6, abs_tol=1e-9), "batches"


def _is_honest(here: list[Estimate]) -> None:
    for e in here:
        assert math.isfinite(e.value)
        assert e.seconds >= 0
        assert e.converged or e.remedy, "no remedy"
        if e.status is Status.EXACT:
            assert e.error == 0


def _moved(measure: Measure, kind: str, here: list[Estimate]) -> Iterator[bool]:
    for seed in SEEDS:
        there = by(measure, elsewhere(kind, seed))
        yield any(
            differ((a, b), STILL) and abs(a.value - b.value) > STILL * abs(a.value)
            for a, b in zip(here, there, strict=True)
        )


def _keeps_its_promises(measure: Measure, here: list[Estimate]) -> None:
    """What declares an invariance and moves fails; so does what declares none and stays."""
    layers, units = (any(_moved(measure, kind, here)) for kind in ("layers", "units"))
    assert layers == (not measure.promises("layer")), "layers"
    assert units == (not measure.promises("unit")), "units"
