"""Constructions of the theorems, broken: one flipped sign or exponent for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.distributions import MultivariateNormal

from spiritlevel import sharpen
from spiritlevel.coordinates import Power
from spiritlevel.coordinates.inputs import Laws, affine
from spiritlevel.theorems import fitting as fitting_claims
from spiritlevel.witnesses.volume import box_log_volumes

Witness = dict[str, Any]


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


def break_boxes(w: Witness) -> Witness:
    return {**w, "exponents": -w["exponents"]}


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


def break_table(w: Witness) -> Witness:
    """Divergences taken for bits."""
    return {**w, "true": tuple(replace(row, kl=row.kl * math.log(2)) for row in w["true"])}


BROKEN: dict[str, Callable[[Witness], Witness]] = {
    "homogeneity": break_homogeneity,
    "flat_box_law": break_boxes,
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
    "nonvacuous_table": break_table,
}


# Further ways in which a claim could be false while its construction looks right ----------------


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


def break_random(w: Witness) -> Witness:
    """As if the bound of random labels were kl inverted."""
    return {**w, "random": replace(w["random"], bound=0.989)}


PARTS: list[tuple[str, Callable[[Witness], Witness]]] = [
    ("input_representation", break_laws),
    ("input_representation", break_ranking_of_nets),
    ("stability_edge", break_sgd),
    ("infinite_volume", break_box),
    ("never_arbitrarily_flat", break_minimum),
    ("log_convexity", break_way),
    ("nonvacuous_table", break_random),
]
