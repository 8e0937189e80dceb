"""Witnesses at any target, and reasons where there are none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import conformance
import pairs
import spiritlevel as sl
from cases import labels, randn


@pytest.mark.parametrize("norm", ["spectral", "trace", "frobenius"])
@pytest.mark.parametrize("target", [1e2, 1e5])
def test_hessian_norms_reach_any_target(norm: str, target: float) -> None:
    objective = pairs.objective("deep", 0, 200, classes=True)
    found = sl.orbit.supremum(objective, measure=norm, target=target)
    assert found.outcome == "reached"
    assert found.objective is not None
    assert found.certificate is not None
    assert found.certificate.verdict == "exact"
    values = torch.linalg.eigvalsh(sl.hessian(found.objective).dense())
    truth = {"spectral": values.abs().max(), "trace": values.sum(), "frobenius": values.norm()}
    assert float(truth[norm]) >= target * (1 - 0.2)  # traces are estimates
    assert torch.allclose(found.objective.predictions(), objective.predictions(), rtol=1e-9)
    assert f">= {target:g}, by scaling" in str(found)


def test_a_measure_of_the_catalogue_is_pushed_up() -> None:
    objective = conformance.objective()
    keskar = sl.MEASURES["keskar"]
    found = sl.orbit.supremum(objective, measure=keskar, target=50 * keskar(objective).value)
    assert found.outcome == "reached"
    assert found.objective is not None
    assert keskar(found.objective).value == pytest.approx(found.value, rel=1e-9)


def test_an_invariant_measure_is_bounded() -> None:
    objective = conformance.objective()
    found = sl.orbit.supremum(objective, measure=sl.MEASURES["path_norm"], target=1e6)
    assert found.outcome == "bounded"
    assert found.objective is None
    assert "bounded on this orbit: invariant, as promised" in str(found)


def test_a_promise_that_is_broken_is_an_error() -> None:
    class Liar:
        invariances = ("unit",)

        def __call__(self, objective: sl.Objective) -> float:
            return float(objective.vector.norm())

    with pytest.raises(sl.SpiritlevelError, match="promises to be invariant but moved from"):
        sl.orbit.supremum(conformance.objective(), measure=Liar(), target=1e9)


def test_a_function_that_is_bounded_but_does_not_say_so() -> None:
    found = sl.orbit.supremum(
        conformance.objective(), measure=lambda o: float(o.vector.norm().tanh()), target=2.0
    )
    assert found.outcome == "not reached"
    assert "2 was not reached" in str(found)
    assert "which proves nothing" in str(found)
    assert found.value <= 1.0


def test_without_rescalings_the_orbit_is_a_point() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)).double()
    smooth = sl.Objective(net, (randn(9, 4), labels(9)), F.cross_entropy)
    found = sl.orbit.supremum(smooth, target=1e9)
    assert found.outcome == "bounded"
    assert found.reason == "no rescaling keeps the predictions"
    already = sl.orbit.supremum(smooth, target=1e-9)
    assert already.outcome == "reached"
    assert already.objective is smooth
    assert str(already).endswith("by the given point")


def test_a_search_finds_what_is_known() -> None:
    """The least norm of the weights over the orbit is balanced unit by unit; no search beats it."""
    objective = conformance.objective()
    group = sl.symmetries(objective)

    def squares(o: sl.Objective) -> float:
        return float(o.vector.square().sum())

    span = sl.orbit.search(objective, group, squares, evaluations=60)
    assert span.low < span.here < span.high
    for t, value in ((span.low_at, span.low), (span.high_at, span.high)):
        assert squares(group.apply(objective, t)) == pytest.approx(value, rel=1e-12)
        assert float(t.abs().max()) <= 5
    from spiritlevel.orbit.balance import balance
    from spiritlevel.orbit.cells import cells

    grid = cells(group, objective.shapes)
    # squares scale as exp(+2 B t): the posynomial of balance with the signs turned
    import numpy as np

    blocks = [np.array([i]) for i in range(group.dim)]
    least = balance(-grid.exponents, grid.gather(objective.vector**2), blocks).value
    assert least <= span.low * (1 + 1e-12)
    assert span.high > 100 * span.here
    assert "found, not proved" in str(span)
    again = sl.orbit.search(objective, group, squares, evaluations=60)
    assert (again.low, again.high) == (span.low, span.high)


def test_bad_arguments() -> None:
    objective = conformance.objective()
    with pytest.raises(sl.SpiritlevelError, match=r"measure is 'keskar'; .* MEASURES\['keskar'\]"):
        sl.orbit.supremum(objective, measure="keskar", target=1.0)
    with pytest.raises(sl.SpiritlevelError, match="target=-1: give a positive number"):
        sl.orbit.supremum(objective, target=-1)
    with pytest.raises(sl.SpiritlevelError, match="evaluations=1"):
        sl.orbit.search(objective, None, lambda o: 1.0, evaluations=1)


def test_a_search_that_starts_near_the_minimum_finds_it_sooner() -> None:
    objective = sl.default_objective()
    group = sl.symmetries(objective)
    far = sl.orbit.minimum(objective, group, operator="hessian", tol=1e-3)
    near = sl.orbit.minimum(objective, group).log_scales
    found = sl.orbit.minimum(objective, group, operator="hessian", tol=1e-3, start=near)
    assert found.value == pytest.approx(far.value, rel=1e-3)
    assert found.products < far.products
    with pytest.raises(sl.SpiritlevelError, match=r"start has the shape \(3,\)"):
        sl.orbit.minimum(objective, group, start=near[:3])
