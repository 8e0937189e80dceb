"""Determinants under a Gaussian: closed forms, the definition itself, and the dense Hessian."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import conformance
import spiritlevel as sl
from cases import randn
from quadratics import CURVATURES, at_rest, quadratic
from spiritlevel.base.estimate import Status
from spiritlevel.measures import laplace
from spiritlevel.measures.instruments import Instruments

SINGULAR = torch.tensor([3.0, 0.5, 0.0, 0.0, -0.1]).double()


def sharpness(k: Tensor, scale: float) -> sl.Estimate:
    still = torch.zeros_like(k)
    return sl.MEASURES["determinant_sharpness"](quadratic(still, still, 0.0, k), scale=scale)


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
def test_a_quadratic_has_a_closed_form(scale: float) -> None:
    """Flat directions count for nothing, as they do not in det H = 0."""
    found = sharpness(SINGULAR, scale=scale)
    assert found.value == pytest.approx(float((1 + scale**2 * SINGULAR).log().sum()), rel=1e-12)
    assert found.status is Status.EXACT


def test_it_is_the_mean_that_defines_it() -> None:
    """-2 log E exp(-x' H x / 2) over a Gaussian, drawn: phi and psi of the published class."""
    scale, k = 0.7, torch.tensor([2.0, 1.0, 0.3, 0.0, -0.2]).double()
    x = scale * randn(400_000, 5, seed=2)
    terms = (-(k * x.square()).sum(1) / 2).exp()
    mean, spread = float(terms.mean()), float(terms.std()) / math.sqrt(len(terms))
    found = sharpness(k, scale=scale)
    assert abs(math.exp(-found.value / 2) - mean) <= 3.5 * spread
    assert spread < 2e-3 * mean


def test_its_ends_are_the_trace_and_the_determinant() -> None:
    small, large = sharpness(CURVATURES, scale=1e-4), sharpness(CURVATURES, scale=1e4)
    assert small.value == pytest.approx(1e-8 * float(CURVATURES.sum()), rel=1e-6)
    logs = float(CURVATURES.log().sum()) + 2 * len(CURVATURES) * math.log(1e4)
    assert large.value == pytest.approx(logs, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scales_whose_squares_are_no_numbers_are_refused(scale: float) -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"scale=.*: give one from 1e-100 to 1e\+100"):
        sharpness(CURVATURES, scale=scale)


def test_what_curves_down_too_much_is_refused() -> None:
    """At -1 / s^2 the integral diverges."""
    saddle = torch.tensor([1.0, -3.0]).double()
    assert math.isfinite(sharpness(saddle, scale=0.57).value)
    with pytest.raises(sl.SpiritlevelError, match=r"may be -3; give .* \(a smaller scale=\)"):
        sharpness(saddle, scale=0.58)


@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_of_a_net_by_quadrature_and_whole(scale: float) -> None:
    point = conformance.objective()
    values = torch.linalg.eigvalsh(sl.hessian(point).dense())
    wanted = float((1 + scale**2 * values).log().sum())
    tools = Instruments(point, compile=False, rtol=0.25)
    whole = laplace.determinant_sharpness(tools, scale=scale)
    assert whole.value == pytest.approx(wanted, rel=1e-9)
    for seed in range(3):
        tools.seed = seed
        found = laplace.determinant_sharpness(tools, scale=scale, probes=8, steps=12)
        assert found.status is Status.CONVERGED
        assert 0 < found.error < 0.2 * wanted
        assert abs(found.value - wanted) <= 3.5 * found.error


def test_an_error_beyond_what_was_asked_for_is_not_converged() -> None:
    tools = Instruments(conformance.objective(), compile=False, rtol=0.05)
    few = laplace.determinant_sharpness(tools, probes=8, steps=12)
    assert few.error > 0.05 * few.value
    assert few.status is Status.BUDGET
    assert few.remedy == "raise probes= or rtol"
    more = laplace.determinant_sharpness(tools, probes=64, steps=12)  # as many as parameters
    assert more.status is Status.EXACT
    tools.rtol = 1.01 * few.error / few.value
    assert laplace.determinant_sharpness(tools, probes=8, steps=12).status is Status.CONVERGED


def test_at_rest_it_is_what_a_local_entropy_lacks() -> None:
    """-2 (F + L - n/2 log 2 pi s^2) with gamma = 1 / s^2, where the gradient is zero."""
    point = at_rest(base=0.7)
    entropy = sl.MEASURES["local_entropy_laplace"](point, gamma=4.0).value
    lacks = -2 * (entropy + point.value() - 2.5 * math.log(2 * math.pi / 4))
    found = sl.MEASURES["determinant_sharpness"](point, scale=0.5)
    assert found.value == pytest.approx(lacks, rel=1e-12)


def test_a_rescaling_moves_it() -> None:
    """The Gaussian knows how large the weights are: no promise is made."""
    point = conformance.objective()
    group = sl.symmetries(point)
    twin = group.apply(point, group.random(0, 1.0))
    here, there = (sl.MEASURES["determinant_sharpness"](o) for o in (point, twin))
    assert abs(here.value - there.value) > 0.1 * here.value
