"""Every claim holds on a network, and is seen to fail when its construction is broken."""

from __future__ import annotations

import copy
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call

from cases import small_net
from spiritlevel import Objective, hessian, sharpen
from spiritlevel.coordinates import Power
from spiritlevel.coordinates.inputs import Laws, affine
from spiritlevel.theorems import CLAIMS, Setting, claims
from spiritlevel.theorems import fitting as fitting_claims
from spiritlevel.witnesses.volume import box_log_volumes

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


def inverse_factors_of_places(w: Witness) -> Witness:
    return {"places": {label: inverse_factors(place) for label, place in w["places"].items()}}


def inverse_twin(w: Witness) -> Witness:
    """Every factor with the other exponent: the same predictions, and most layers flatter."""
    here = w["objective"]
    return {**w, "twin": here.at(here.vector**2 / w["twin"].vector)}


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
    return {**w, "volume": replace(v, log_volumes=volumes, log_totals=totals)}


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
    """Axes scaled the other way round than the laws say."""
    _, laws = w["representations"]["scaled axes"]
    wrong = affine(torch.zeros(2).double(), torch.tensor([1 / 0.5, 1 / 1.6]).double())
    return {**w, "representations": {**w["representations"], "scaled axes": (wrong, laws)}}


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
    "hessian_law": inverse_factors_of_places,
    "never_arbitrarily_flat": break_floor,
    "log_convexity": break_convexity,
    "spectral_norm": break_spectral_norm,
    "many_eigenvalues": inverse_twin,
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


# Further ways in which a claim could be false while its construction looks right ----------------


def decayed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    penalty = sum(p.square().sum() for p in model.parameters())
    loss = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    return loss + len(batch[0]) * 1e-2 * penalty, len(batch[0])


def with_decay(objective: Objective) -> Objective:
    """The same point, with weight decay in the loss: predictions do not see it."""
    model = copy.deepcopy(objective.module).requires_grad_()
    batch = tuple(torch.cat(parts) for parts in zip(*objective.batches, strict=True))
    return Objective(model, batch, decayed).at(objective.vector)


def test_eigenvalues_are_counted_where_the_twin_is(witnesses: dict[str, Witness]) -> None:
    """With weight decay D^-1 H D^-1 is not the Hessian there: it is differentiated."""
    w = witnesses["many_eigenvalues"]
    here, there = with_decay(w["objective"]), with_decay(w["twin"])
    outcome = CLAIMS["many_eigenvalues"].check(**{**w, "objective": here, "twin": there})
    spectrum = torch.linalg.eigvalsh(hessian(there, compile=False).dense())
    assert outcome.numbers["eigenvalues above 1000"] == int((spectrum > 1000).sum())
    assert not outcome.holds
    honest = CLAIMS["many_eigenvalues"].check(**w).numbers
    assert honest["eigenvalues above 1000"] >= honest["promised"]


def test_a_loss_that_moves_along_the_rescalings_is_no_case_for_them(setting: Setting) -> None:
    """Not refuted and not confirmed: the premise is missing."""
    found = claims(with_decay(setting.objective), ["spectral_norm", "gradient_law"], figures=False)
    assert [result.verdict for result in found.rows] == ["not checked"] * 2
    assert found.holds


def break_laws(w: Witness) -> Witness:
    """Laws of u that its draws do not follow, though all of them are wrong by one factor."""
    xi, laws = w["representations"]["scaled axes"]
    wide = {n: MultivariateNormal(m.mean, 4 * m.covariance_matrix) for n, m in laws.models.items()}
    truth = MultivariateNormal(laws.truth.mean, 4 * laws.truth.covariance_matrix)
    return {**w, "representations": {"scaled axes": (xi, Laws(truth, wide))}}


def break_ranking_of_nets(w: Witness) -> Witness:
    return {**w, "opposed": w["opposed"][::-1]}


def break_sgd(w: Witness) -> Witness:
    """Other curvatures than those of the losses that SGD runs on."""
    return {**w, "curvatures": (0.2, 0.6, 1.0, 3.1)}


def break_box(w: Witness) -> Witness:
    """A box twenty times as large, in which everything else was looked at."""
    return {**w, "volume": replace(w["volume"], radius=20 * w["volume"].radius)}


def break_minimum(w: Witness) -> Witness:
    """A bound that the search would have got wrong: higher than a network that exists."""
    return {**w, "lower_bound": 1.01 * w["lower_bound"]}


def break_way(w: Witness) -> Witness:
    """A twin that is not half-way, and sharper than both ends."""
    here = w["twins"][0]
    sharper = sharpen(here, target=1e6).objective
    return {**w, "twins": [*w["twins"][:2], sharper]}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("input_representation", break_laws),
        ("input_representation", break_ranking_of_nets),
        ("stability_edge", break_sgd),
        ("infinite_volume", break_box),
        ("never_arbitrarily_flat", break_minimum),
        ("log_convexity", break_way),
    ],
)
def test_fails_when_a_part_is_broken(
    name: str, wrong: Callable[[Witness], Witness], witnesses: dict[str, Witness]
) -> None:
    assert not CLAIMS[name].check(**wrong(witnesses[name])).holds


def test_no_orbit_point_is_below_the_floor(witnesses: dict[str, Witness]) -> None:
    w = witnesses["never_arbitrarily_flat"]
    dense = w["matrix"].dense()
    assert len(w["log_factors"]) > 1
    for row in w["log_factors"]:
        top = torch.linalg.eigvalsh(dense * torch.exp(-row[:, None] - row[None, :]))[-1]
        assert float(top) >= w["floor"] > 0


def test_the_least_trace_is_the_least(witnesses: dict[str, Witness]) -> None:
    """Nets that were trained to go below it come close, and none below."""
    w = witnesses["flat_memorizer"]
    x = w["everything"][w["seen"]]
    ratios = []
    for net in w["challengers"]:
        ratio = fitting_claims._over_the_least(net, x)
        params = {name: p.detach() for name, p in net.named_parameters()}
        # (2/n) sum |grad f|^2 from one Jacobian per point, beside the trace of the Hessian
        rows = torch.func.jacrev(lambda p, net=net: functional_call(net, p, (x,))[:, 0])(params)
        squares = torch.cat([row.flatten(1) for row in rows.values()], dim=1).square().sum(1)
        bound = fitting_claims.least_trace(x, net(x).detach())
        assert ratio == pytest.approx(2 * float(squares.mean()) / bound)
        ratios.append(ratio)
    assert 1 - 1e-12 <= min(ratios) < 1.05
    assert fitting_claims.least_trace(x, torch.ones(len(x))) == pytest.approx(4 * math.sqrt(11))


def test_a_higher_bound_is_refuted(
    witnesses: dict[str, Witness], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fitting_claims.least_trace
    monkeypatch.setattr(fitting_claims, "least_trace", lambda x, y: 1.1 * right(x, y))
    assert not CLAIMS["flat_memorizer"].check(**witnesses["flat_memorizer"]).holds


def test_the_printed_constant_of_the_generalizer_gives_the_larger_trace(
    witnesses: dict[str, Witness],
) -> None:
    """Wen et al. print r = (d^2 + 1)^(1/4); the least trace 4 sqrt(11) needs (d + 1)^(1/4)."""
    witness = break_twins(witnesses["flat_memorizer"])
    numbers = fitting_claims.check_twins(**witness).numbers
    assert numbers["trace of the generalizer"] == pytest.approx(22.29, abs=0.01)
    assert numbers["trace of the memorizer"] == pytest.approx(13.2665, abs=1e-4)
    assert numbers["error of the memorizer"] == 1 - 20 / 1024


# Figures ------------------------------------------------------------------------------------------


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
