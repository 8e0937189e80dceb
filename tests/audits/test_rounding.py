"""Losses of which rounding alone is left: it is told from what differs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.base import Measure
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results.comparison import Answer
from spiritlevel.results.verdicts import Outcome
from spiritlevel.symmetry.gaps import rounding

SEEDS = range(3)
RESIDUAL = {torch.float64: 1e-14, torch.float32: 1e-6}


def net(dtype: torch.dtype, seed: int, width: int = 6) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    layers = nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3)
    return nn.Sequential(*layers).to(dtype), torch.randn(40, 5, dtype=dtype)


@functools.cache
def fitted(dtype: torch.dtype, seed: int, residual: float, width: int = 6) -> sl.Objective:
    """Its targets are its own outputs, but for residuals of a size that floats just know."""
    model, x = net(dtype, seed, width)
    y = model(x).detach()
    y = y + residual * RESIDUAL[dtype] * torch.randn(40, 3, dtype=dtype)
    return sl.Objective(model, (x, y), F.mse_loss, dtype=dtype)


@functools.cache
def certain(dtype: torch.dtype, seed: int, factor: float = 2000.0) -> sl.Objective:
    """A classifier that gives what it says a probability of 1."""
    model, x = net(dtype, seed)
    y = model(x).detach().argmax(1)
    objective = sl.Objective(model, (x, y), F.cross_entropy, dtype=dtype)
    top = {n: factor * p for n, p in objective.params.items() if n.startswith("2")}
    out = objective.at(top).predictions().sort(1).values
    sure = out[:, -1] - out[:, -2] > factor / 60
    return sl.Objective(model, (x[sure], y[sure]), F.cross_entropy, dtype=dtype).at(top)


KINDS: dict[str, Callable[[torch.dtype, int], sl.Objective]] = {
    "its own outputs": lambda dtype, seed: fitted(dtype, seed, 0.0),
    "nearly its own outputs": lambda dtype, seed: fitted(dtype, seed, 1.0),
    "certain": certain,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_breaks_no_promise_and_makes_no_difference(kind: str, dtype: torch.dtype) -> None:
    names = ["loss", "gradient_norm", "fisher_rao", "adaptive_worst"]
    for seed in SEEDS:
        objective = KINDS[kind](dtype, seed)
        assert objective.value() < 1e-11
        audit = sl.audit(objective, names, way=False)
        assert audit["loss"].outcome is Outcome.INVARIANT
        assert not any(row.bug for row in audit.rows)
        group = sl.symmetries(objective)
        twin = group.apply(objective, group.random(seed, 2.0))
        pair = sl.compare({"net": objective, "twin": twin}, ["loss"])["loss"]
        assert pair.answer in (Answer.EQUAL, Answer.UNDECIDED)
        assert group.verify(objective, twin).loss < 1e-3
        target = 10 * objective.value() + 1e-30
        found = sl.orbit.supremum(objective, group, MEASURES["loss"], target=target)
        assert found.outcome == "bounded"


def test_a_gradient_that_is_rounding_has_not_moved() -> None:
    objective = fitted(torch.float64, 0, 0.0)
    row = sl.audit(objective, ["gradient_norm"], way=False)["gradient_norm"]
    assert max(e.value for e in row.values.values()) > 0
    assert row.outcome is Outcome.STILL


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_losses_that_differ_beyond_rounding_do(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        nets = {"one": fitted(dtype, seed, 4.0), "two": fitted(dtype, seed + 1, 8.0)}
        found = sl.compare(nets, ["loss"])["loss"]
        assert found.text == "two is larger, and it survives rescaling"
        exact = {"none": fitted(dtype, seed, 0.0), "some": fitted(dtype, seed, 1.0)}
        assert (
            sl.compare(exact, ["loss"])["loss"].text == "some is larger, and it survives rescaling"
        )
        sure = {"less": certain(dtype, seed, 1900.0), "more": certain(dtype, seed)}
        assert (
            sl.compare(sure, ["loss"])["loss"].text == "less is larger, and it survives rescaling"
        )


def test_a_promise_is_held_where_the_loss_is_zero_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large a thing as a thousandth of a billionth of the weights is no rounding."""
    liar = Measure(
        lambda i: Estimate(i.objective.value() + 1e-12 * float(i.objective.vector.norm())),
        "liar",
        invariances=("unit",),
    )
    monkeypatch.setitem(MEASURES, "liar", liar)
    objective = fitted(torch.float64, 0, 0.0)
    assert sl.audit(objective, ["liar"], way=False)["liar"].outcome is Outcome.BROKEN
    with pytest.raises(sl.SpiritlevelError, match="promises to be invariant but moved"):
        sl.orbit.supremum(objective, measure=liar, target=1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("width", [6, 300])
def test_the_rounding_of_a_loss_is_what_twins_differ_by(width: int, dtype: torch.dtype) -> None:
    """Neither exceeded threefold nor a hundred times too large."""
    for residual in (0.0, 1.0, 1e3):
        shares = []
        for seed in SEEDS:
            objective = fitted(dtype, seed, residual, width)
            group = sl.symmetries(objective)
            for draw in range(4):
                twin = group.apply(objective, group.random(draw, 2.0))
                noise = sum(rounding(sl.Objective.value, o) for o in (objective, twin))
                shares.append(abs(twin.value() - objective.value()) / noise)
        assert 0.03 < max(shares) < 2
