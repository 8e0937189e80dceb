"""Every claim holds on a network, and is seen to fail when its construction is broken."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from cases import BY_NAME, small_net
from spiritlevel import SpiritlevelError
from spiritlevel.inputs import affine
from spiritlevel.reparam import Power
from spiritlevel.theorems import CLAIMS, Setting, claims
from spiritlevel.theorems import fitting as fitting_claims
from spiritlevel.volume import box_log_volumes

Witness = dict[str, Any]


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(small_net())


@pytest.fixture(scope="module")
def witnesses(setting: Setting) -> dict[str, Witness]:
    """Made once: a broken copy never writes into it."""
    return {name: claim.construction(setting) for name, claim in CLAIMS.items()}


@pytest.mark.parametrize("name", CLAIMS)
def test_holds(name: str, witnesses: dict[str, Witness]) -> None:
    outcome = CLAIMS[name].check(**witnesses[name])
    assert outcome.holds, outcome
    assert outcome.shown
    assert all(math.isfinite(value) for value in outcome.numbers.values())


# One flipped sign or exponent for each construction ----------------------------------------------


def break_homogeneity(w: Witness) -> Witness:
    """A bias that takes the factor of its own layer only, not those before it."""
    one, other = w["pairs"]["biases"]
    wrong = {"2.bias": one.params["2.bias"] * 0.25}
    return {"pairs": {**w["pairs"], "biases": (one, other.at(wrong))}}


def inverse_factors(w: Witness) -> Witness:
    return {**w, "factors": 1 / w["factors"]}


def break_floor(w: Witness) -> Witness:
    """Both layers scaled up: flatter than any equivalent network."""
    return {**w, "log_factors": w["log_factors"].abs()}


def break_convexity(w: Witness) -> Witness:
    return {**w, "middle": (w["ends"][0] - w["ends"][1]) / 2}


def break_spectral_norm(w: Witness) -> Witness:
    """Every factor with the other exponent: the same predictions, and flatter along u."""
    here = w["objective"]
    return {**w, "twins": [here.at(here.vector**2 / twin.vector) for twin in w["twins"]]}


def break_epsilon_sharpness(w: Witness) -> Witness:
    flipped = {radius: -step for radius, step in w["perturbations"].items()}
    return {**w, "perturbations": flipped}


def break_volume(w: Witness) -> Witness:
    """alpha^-k where volumes then shrink."""
    v = w["volume"]
    size = round(v.log_volumes[0] / math.log(2 * v.radius))
    volumes, totals = box_log_volumes(size, v.radius, v.alpha, -v.growth, len(v.intervals))
    return {"volume": replace(v, log_volumes=volumes, log_totals=totals)}


def break_lipschitz(w: Witness) -> Witness:
    found = w["found"]
    wrong = tuple(norm * scale**2 for norm, scale in zip(found.by_law, found.scales, strict=True))
    return {"found": replace(found, by_law=wrong)}


def break_reparametrization(w: Witness) -> Witness:
    """The term of the gradient subtracted."""

    def flipped(law: Any) -> Any:
        plus = law.of_gradient.matvec
        return replace(law, of_gradient=replace(law.of_gradient, matvec=lambda v: -plus(v)))

    return {"laws": {label: flipped(law) for label, law in w["laws"].items()}}


def break_three(w: Witness) -> Witness:
    maps = {label: Power(g.center, -g.a, g.b) for label, g in w["maps"].items() if g.a < 0.5}
    return {**w, "maps": maps, "factors": {label: w["factors"][label] for label in maps}}


def break_radial(w: Witness) -> Witness:
    """The outer product added instead of subtracted."""

    def flipped(g: Any, eta: Any, jacobian: Any) -> Any:
        v = eta - g.center
        u = v / v.norm()
        along = u @ jacobian @ u
        across = jacobian - along * torch.outer(u, u)
        return g, eta, across + (2 * jacobian.diagonal().mean() - along) * torch.outer(u, u)

    return {"cases": [flipped(*case) for case in w["cases"][:200]]}


def break_reranking(w: Witness) -> Witness:
    """rho and r_hat swapped turns every order around."""
    return {"found": {order[::-1]: found for order, found in w["found"].items()}}


def break_inputs(w: Witness) -> Witness:
    scales = torch.tensor([1 / 0.5, 1 / 1.6]).double()
    return {**w, "representation": affine(torch.zeros(2).double(), scales)}


def break_twins(w: Witness) -> Witness:
    """The constant as the paper prints it."""
    printed = fitting_claims.generalizer(10, (10**2 + 1) ** 0.25)
    return {**w, "nets": {**w["nets"], "generalizer": printed}}


def break_labels(w: Witness) -> Witness:
    net = w["net"]
    return {**w, "net": fitting_claims.Memory(net.a.data, -net.b.data, net.w.data)}


def break_edge(w: Witness) -> Witness:
    slow, fast = w["rates"].items()
    return {**w, "rates": {slow[0]: fast[1], fast[0]: slow[1]}}


BROKEN: dict[str, Callable[[Witness], Witness]] = {
    "homogeneity": break_homogeneity,
    "gradient_law": inverse_factors,
    "hessian_law": inverse_factors,
    "never_arbitrarily_flat": break_floor,
    "log_convexity": break_convexity,
    "spectral_norm": break_spectral_norm,
    "many_eigenvalues": inverse_factors,
    "epsilon_sharpness": break_epsilon_sharpness,
    "infinite_volume": break_volume,
    "no_lipschitz_constant": break_lipschitz,
    "reparametrization_law": break_reparametrization,
    "three_coordinates": break_three,
    "radial_map": break_radial,
    "reranking": break_reranking,
    "input_representation": break_inputs,
    "flat_memorizer": break_twins,
    "any_labels": break_labels,
    "stability_edge": break_edge,
}


@pytest.mark.parametrize("name", CLAIMS)
def test_fails_when_broken(name: str, witnesses: dict[str, Witness]) -> None:
    broken = BROKEN[name](witnesses[name])
    assert not CLAIMS[name].check(**broken).holds


def test_the_printed_constant_of_the_generalizer_gives_the_larger_trace() -> None:
    """Wen et al. print r = (d^2 + 1)^(1/4); the least trace 4 sqrt(11) needs (d + 1)^(1/4)."""
    witness = break_twins(fitting_claims.flat_twins(Setting()))
    numbers = fitting_claims.check_twins(**witness).numbers
    assert numbers["trace of the generalizer"] == pytest.approx(22.29, abs=0.01)
    assert numbers["trace of the memorizer"] == pytest.approx(13.2665, abs=1e-4)
    assert numbers["error of the memorizer"] == 1 - 20 / 1024


# The table ---------------------------------------------------------------------------------------


def test_a_table_with_figures_on_a_given_network() -> None:
    before = torch.get_rng_state()
    found = claims(small_net(), ["gradient_law", "infinite_volume", "flat_memorizer"])
    assert torch.equal(before, torch.get_rng_state())
    assert found.holds
    assert found["gradient_law"].holds is True
    assert found["flat_memorizer"].holds is None
    assert "its own" in found["flat_memorizer"].skipped
    text = str(found)
    assert "gradient_law" in text
    assert "2 of 2 hold" in text
    assert list(found.figures) == ["infinite_volume"]
    data = json.loads(found.to_json())
    assert data["holds"] is True
    assert data["claims"][1]["outcome"]["numbers"]["boxes"] == 60
    assert data["claims"][2]["outcome"] is None


def test_a_network_without_rescalings_is_told_so() -> None:
    found = claims(small_net(nn.Tanh), ["gradient_law", "reparametrization_law", "stability_edge"])
    assert "tanh" in found["gradient_law"].skipped
    assert found["reparametrization_law"].holds is True
    assert found["stability_edge"].holds is True


@pytest.mark.parametrize("case", ["relu mlp", "cnn with BatchNorm in train mode"])
def test_far_from_a_minimum_claims_about_minima_do_not_apply(case: str) -> None:
    """Nothing is refuted there: it holds, or it says why it says nothing."""
    names = [name for name, claim in CLAIMS.items() if not claim.own and name != "homogeneity"]
    found = claims(BY_NAME[case].objective(), names, figures=False)
    assert found.holds
    assert "no minimum" in found["stability_edge"].skipped
    assert "no minimum" in found["epsilon_sharpness"].skipped
    assert found["reranking"].holds is True


def test_unknown_names_and_other_things_are_refused() -> None:
    with pytest.raises(SpiritlevelError, match="no claim 'nothing'; there are: homogeneity"):
        claims(None, "nothing")
    with pytest.raises(SpiritlevelError, match="give an Objective"):
        claims(nn.Linear(1, 1))  # type: ignore[arg-type]


DRAWN = [name for name, claim in CLAIMS.items() if claim.figure is not None]


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_whole_and_fetch_nothing(name: str, witnesses: dict[str, Witness]) -> None:
    draw = CLAIMS[name].figure
    assert draw is not None
    svg = draw(**witnesses[name])
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    words = [e.text for e in root.iter() if e.tag.endswith("text") and e.text]
    assert len(words) > 5
    references = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert all(reference.startswith("#") for reference in references)
    assert "nan" not in svg.lower()


def test_drawing_leaves_matplotlib_as_it_was(witnesses: dict[str, Witness]) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw = CLAIMS["radial_map"].figure
    assert draw is not None
    draw(**witnesses["radial_map"])
    assert dict(matplotlib.rcParams) == before
