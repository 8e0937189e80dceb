"""What every measure must do: the same checks for each entry of the registry, on five networks."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable

import pytest
import torch
from torch import nn

import spiritlevel as sl
import zoo
from spiritlevel.audits.verdicts import differ
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.base import Invariance, Measure
from spiritlevel.measures.instruments import Instruments

SEEDS = (0, 1, 2)  # what promises nothing has to move at one of them
STEADY = SEEDS if os.environ.get("SPIRITLEVEL_LONG") == "1" else SEEDS[:2]  # at all, a promise
# float64: what rounding and the stopping of iterations may do to an invariant value
STILL = 1e-5
FACTORS = (0.05, 20.0, 4.0)  # of all outputs
SEARCHED = 0.15  # what two searches for one maximum may differ by, that start elsewhere
# What takes longest, with less of it: the checks are the same
FEWER = {
    "local_learning_coefficient": {"steps": 18, "chains": 4},
    **{name: {"levels": 12} for name in ("local_entropy", "local_entropy_gap")},  # one annealing
    **{name: {"directions": 16} for name in ("basin_volume", "flat_radius")},
}
# What rounding may do to a search whose iterations are counted: L-BFGS-B ends amid its way, and
# near a corner of the box the last digit decides which step is next
CUT_SHORT = {"keskar": 1e-2, "keskar_subspace": 1e-2}
SINGLE = 2e-3  # what float32 may do, beside the error that is said
# Nothing is shared between networks: their tests lie in several files, which two workers take
PLAIN, STACKED = ("mlp",), ("convolutional", "residual")
RECURRENT, ATTENTION = ("recurrent",), ("transformer",)
FILES = (PLAIN, STACKED, RECURRENT, ATTENTION)
# What is not defined for a network
CHAIN = {"convolutional", "residual", "transformer", "recurrent"}
PATHS = {"transformer", "recurrent"}
HEADLESS = set(zoo.SHAPES) - {"transformer"}
REFUSED: dict[str, set[str]] = {
    "path_norm": PATHS,
    "path_norm_over_margin": PATHS,
    "l1_path_norm": CHAIN,
    "vc_dimension": CHAIN,
    "geodesic_curvature": HEADLESS,
    "geodesic_sharpness": HEADLESS,
    "path_flatness": CHAIN,
    "balanced_sharpness": {"transformer"},  # one-sided rescalings
}


def trained() -> nn.Module:
    """A small rectified net near a minimum."""
    return zoo.trained("mlp").net


def data() -> tuple[torch.Tensor, torch.Tensor]:
    known = zoo.trained("mlp")
    return known.x, known.y


def objective(microbatch: int = 40) -> sl.Objective:
    return zoo.trained("mlp").objective(microbatch)


# Where a measure is made ----------------------------------------------------------------------


def instruments(point: sl.Objective, net: str = "mlp", seed: int = 0) -> Instruments:
    init = zoo.trained(net).init
    return Instruments(point, seed=seed, compile=False, init=init, losses=zoo.LOSSES)


@functools.cache
def group(net: str) -> sl.Group:
    return sl.symmetries(zoo.trained(net).objective())


def _rescaled(net: str, seed: int, *, layers: bool) -> sl.Objective | None:
    moves = group(net).layerwise() if layers else group(net)
    if not moves.dim:
        return None
    return moves.apply(zoo.trained(net).objective(), moves.random(seed, 1.0))


def _permuted(net: str, seed: int) -> sl.Objective | None:
    point = zoo.trained(net).objective()
    found = sl.symmetry.permutations(point)
    for units in found:
        point = units.apply(point, units.random(seed))
    return point if found else None


def _in_other_units(net: str, seed: int) -> sl.Objective:
    point = zoo.trained(net).objective()
    draws = torch.Generator().manual_seed(seed)
    sizes = torch.randn(point.size, generator=draws, dtype=torch.float64).exp()
    return point.reparametrize(sl.coordinates.Diagonal(sizes))


def _multiplied(net: str, seed: int) -> sl.Objective:
    """All outputs times a number: the last layer's weight and bias."""
    known = zoo.trained(net)
    point, factor = known.objective(), FACTORS[seed]
    parts = (f"{known.head}.weight", f"{known.head}.bias")
    return point.at({name: factor * point.params[name] for name in parts})


WAYS: dict[Invariance, Callable[[str, int], sl.Objective | None]] = {
    "layer": functools.partial(_rescaled, layers=True),
    "unit": functools.partial(_rescaled, layers=False),
    "permutation": _permuted,
    "diagonal": _in_other_units,
    "output": _multiplied,
}


@functools.cache
def elsewhere(net: str, way: str, seed: int) -> Instruments | None:
    """At a twin, or otherwise: all measures look there, as they do in one table."""
    known = zoo.trained(net)
    if way == "again":
        return instruments(known.objective(), net)
    if way == "batches":
        return instruments(known.objective(27), net)
    if way == "float32":
        return instruments(known.objective(dtype=torch.float32), net)
    point = WAYS[way](net, seed)  # type: ignore[index]
    return None if point is None else instruments(point, net)


@functools.cache
def here(net: str) -> Instruments:
    return instruments(zoo.trained(net).objective(), net)


def by(measure: Measure, tools: Instruments) -> list[Estimate]:
    found = measure.function(tools, **FEWER.get(measure.function.__name__, {}))
    return [found] if isinstance(found, Estimate) else list(found.values())


# What is checked ------------------------------------------------------------------------------


def check(measure: Measure, net: str = "mlp") -> None:
    """All of it. What a network does not have is refused in one line."""
    assert measure.title
    assert measure.family
    assert measure.cost
    found = by(measure, here(net))
    if net == "mlp":  # elsewhere other batches show it as well
        _is_deterministic(measure, found, net)
    _does_not_see_batches_and_leaves_no_trace(measure, found, net)
    _is_honest(found)
    _is_the_same_in_single_precision(measure, found, net)
    for invariance in WAYS:
        _keeps_its_promise(measure, invariance, found, net)


def conforms(name: str, net: str) -> None:
    """An entry of the registry does all of it, or is refused where it has to be."""
    if net in REFUSED.get(name, ()):
        why = refuses(sl.MEASURES[name], net)
        assert why, "it is defined after all"
        assert "\n" not in why
    else:
        check(sl.MEASURES[name], net)


def refuses(measure: Measure, net: str) -> str:
    """Why a measure is not defined for a network, or an empty text."""
    try:
        by(measure, here(net))
    except sl.SpiritlevelError as error:
        return str(error)
    return ""


def _is_deterministic(measure: Measure, found: list[Estimate], net: str) -> None:
    tools = elsewhere(net, "again", 0)
    assert tools is not None
    again = by(measure, tools)
    # to rounding: the place of a vector in memory decides in which order BLAS adds
    values = [e.value for e in found]
    assert [e.value for e in again] == pytest.approx(values, rel=1e-9, abs=1e-12), "chance"


def _does_not_see_batches_and_leaves_no_trace(
    measure: Measure, found: list[Estimate], net: str
) -> None:
    known, tools = zoo.trained(net), elsewhere(net, "batches", 0)
    assert tools is not None
    before, state = tools.objective.vector.clone(), torch.get_rng_state()
    weights = {name: t.detach().clone() for name, t in known.net.state_dict().items()}
    there = by(measure, tools)
    assert torch.equal(tools.objective.vector, before)
    assert torch.equal(torch.get_rng_state(), state), "global generator"
    assert all(torch.equal(t, weights[name]) for name, t in known.net.state_dict().items())
    still = CUT_SHORT.get(measure.function.__name__, 1e-6)
    for a, b in zip(found, there, strict=True):
        assert math.isclose(a.value, b.value, rel_tol=still, abs_tol=1e-9), "batches"


def _is_honest(found: list[Estimate]) -> None:
    for e in found:
        assert math.isfinite(e.value)
        assert e.seconds >= 0
        assert e.converged or e.remedy, "no remedy"
        if e.status is Status.EXACT:
            assert e.error == 0


def _is_the_same_in_single_precision(measure: Measure, found: list[Estimate], net: str) -> None:
    tools = elsewhere(net, "float32", 0)
    assert tools is not None
    for a, b in zip(found, by(measure, tools), strict=True):
        assert not _apart(a, b, SINGLE), "float32"


def _apart(a: Estimate, b: Estimate, still: float) -> bool:
    """Whether two values differ by more than their errors; searches by more than searches do."""
    if Status.LOWER_BOUND in (a.status, b.status) and not (a.error or b.error):
        still = max(still, SEARCHED)
    return differ({"a": a, "b": b}, still) and abs(a.value - b.value) > still * abs(a.value)


def _keeps_its_promise(
    measure: Measure, invariance: Invariance, found: list[Estimate], net: str
) -> None:
    """What declares an invariance and moves fails; so does what declares none and never moves."""
    if measure.promises(invariance):
        assert _moves(measure, invariance, found, net) is not True, invariance
    elif measure.needs and invariance == "permutation":
        return  # a distance from where it began moves, but its error may hide that
    elif net == "mlp" and _moves(measure, invariance, found, net) is False:
        others = [other for other in zoo.SHAPES if other != net and not refuses(measure, other)]
        assert any(_moves(measure, invariance, by(measure, here(n)), n) for n in others), invariance


def _moves(
    measure: Measure, invariance: Invariance, found: list[Estimate], net: str
) -> bool | None:
    """Whether some element moves it; None where there is none, or it is not defined there."""
    seeds = STEADY if measure.promises(invariance) else SEEDS
    for seed in seeds if net == "mlp" else SEEDS[:1]:
        tools = elsewhere(net, invariance, seed)
        if tools is None:  # this network has no such freedom
            return None
        try:
            there = by(measure, tools)
        except sl.SpiritlevelError:
            assert not measure.promises(invariance), invariance
            return None  # a measure of the module, in other coordinates
        if any(_apart(a, b, STILL) for a, b in zip(found, there, strict=True)):
            return True
    return False
