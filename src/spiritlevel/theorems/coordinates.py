"""Claims about coordinates: of the parameters, and of the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import ks_2samp
from torch import Tensor, nn
from torch.distributions import Independent, LogNormal, MultivariateNormal

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import kept_rng
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.coordinates import HessianLaw, Power, Radial, Reranked, hessian_law, rerank
from spiritlevel.coordinates.inputs import (
    FIXED,
    MOVING,
    Laws,
    Representation,
    affine,
    input_gradient_norm,
    opposing,
    ranked,
    represent,
)
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective
from spiritlevel.theorems import figures
from spiritlevel.theorems.base import Claim, Finding, Witness
from spiritlevel.theorems.setting import Setting, loss_gap, moved_off

CASES = 2000
STEP = 1e-6  # of finite differences
CHANCE = 2.0
TRIES = 4  # other points that are tried beside a given network


# The law of the Hessian --------------------------------------------------------------------------


def _least_squares() -> Objective:
    """A linear model at the exact minimum of its squared error: a critical point."""
    draws, like = generator(0), torch.zeros((), dtype=torch.float64)
    x, y = gaussian((20, 4), draws, like), gaussian((20, 1), draws, like)
    model = nn.Linear(4, 1, bias=False).double()
    model.weight.data = torch.linalg.lstsq(x, y).solution.T
    return Objective(model, (x, y), F.mse_loss)


def both_laws(setting: Setting) -> Witness:
    draws, laws = generator(1), {}
    places = {"at a critical point": _least_squares(), "off one": moved_off(setting.few)}
    for label, there in places.items():
        shift = gaussian(there.size, draws, there.vector)
        center = there.vector + 0.5 * shift / shift.norm()
        laws[label] = hessian_law(there, Power(center, 0.5, 0.1))
    return {"laws": laws}


def check_both_laws(laws: dict[str, HessianLaw]) -> Finding:
    """Autodiff in eta against J'HJ alone, and against J'HJ with the term of the gradient."""
    numbers = {}
    for label, law in laws.items():
        direct = hessian(law.objective)
        probe = gaussian((direct.size, 3), generator(2), law.objective.vector)
        truth = direct @ probe
        for part, operator in (("JᵀHJ alone", law.transported), ("full law", law.total)):
            error = float((operator @ probe - truth).norm() / truth.norm())
            numbers[f"{part} {label}"] = error
    off, naive = numbers["full law off one"], numbers["JᵀHJ alone off one"]
    at, enough = (numbers[f"{p} at a critical point"] for p in ("full law", "JᵀHJ alone"))
    holds = max(off, at, enough) < 1e-9 and naive > max(1e-6, 100 * off)
    return Finding(f"full law {off:.0e}, JᵀHJ alone {naive:.2g} off", numbers, holds)


# One loss in three coordinates -------------------------------------------------------------------


def _well(model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    """L(w) = (w^2 - 1)^2 + w/5, a double well."""
    w = model(batch).reshape(())  # the input is 1
    return (w * w - 1) ** 2 + w / 5, 1


def three_coordinates(setting: Setting) -> Witness:
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(max(np.roots([4.0, 0.0, -4.0, 0.2]).real))  # L'(w) = 0
    objective = Objective(model, torch.ones(1, 1).double(), _well)
    center = objective.vector
    maps = {
        "a = 0": Power(center, 0.0),
        "a = 1/2": Power(center, 0.5),
        "a = -1/4": Power(center, -0.25),
    }
    return {
        "objective": objective,
        "maps": maps,
        "factors": {label: g.b ** (-2 * g.a) for label, g in maps.items()},
    }


def check_three(objective: Objective, maps: dict[str, Power], factors: dict[str, float]) -> Finding:
    """Curvature at one minimum times b^(-2a), and the same values all along."""
    here = float(hessian(objective).dense())
    measured, gap = {}, 0.0
    for label, coordinates in maps.items():
        there = objective.reparametrize(coordinates)
        measured[label] = float(hessian(there).dense()) / here
        for theta in torch.linspace(-1.6, 1.6, 21, dtype=torch.float64):
            point = objective.at(theta.reshape(1))
            gap = max(gap, abs(point.reparametrize(coordinates).value() - point.value()))
    error = max(abs(measured[label] / factors[label] - 1) for label in maps)
    shown = "curvature x " + ", ".join(f"{factor:.3g}" for factor in measured.values())
    numbers = {f"factor of the curvature, {label}": factor for label, factor in measured.items()}
    numbers |= {"largest gap of values": gap, "relative error": error}
    return Finding(shown, numbers, error < 1e-9 and gap < 1e-12)


def draw_three(objective: Objective, maps: dict[str, Power], factors: dict[str, float]) -> str:
    curves, minima = {}, {}
    for label, coordinates in maps.items():
        thetas = torch.linspace(-1.55, 1.55, 121, dtype=torch.float64)
        points = [objective.at(t.reshape(1)).reparametrize(coordinates) for t in thetas]
        shift = float(objective.vector) if coordinates.a == 0 else 0.0
        etas = [float(p.vector) + shift for p in points]
        curves[label] = (etas, [p.value() for p in points])
        there = objective.reparametrize(coordinates)
        minima[label] = (float(there.vector) + shift, there.value(), float(hessian(there).dense()))
    return figures.three_wells(curves, minima)


# The radial map ----------------------------------------------------------------------------------


def radial_cases(setting: Setting) -> Witness:
    """Random centres, radii and points, none nearer to a kink than a finite difference reaches."""
    draws, like, cases = generator(4), torch.zeros((), dtype=torch.float64), []
    while len(cases) < CASES:
        n = 2 + len(cases) % 4
        share = torch.rand(4, generator=draws, dtype=torch.float64).tolist()
        delta = 0.5 + share[0]
        g = Radial(
            gaussian(n, draws, like),
            delta * (0.05 + 0.9 * share[1]),
            delta,
            delta * (0.05 + 0.9 * share[2]),
        )
        ray = gaussian(n, draws, like)
        radius = 1.3 * delta * share[3]
        if min(abs(radius - g.rho), abs(radius - delta)) > 10 * STEP:
            eta = g.center + radius * ray / ray.norm()
            cases.append((g, eta, g.jacobian(eta)))
    return {"cases": cases}


def check_radial(cases: list[tuple[Radial, Tensor, Tensor]]) -> Finding:
    """J against differences, det J, the inverse by swapping, J = r_hat / rho at the centre."""
    jacobians, inverses = "error of the Jacobian", "error of the inverse"
    errors = {jacobians: 0.0, inverses: 0.0, "error of log det J": 0.0, "error at the centre": 0.0}

    def worse(name: str, gap: Tensor) -> None:
        errors[name] = max(errors[name], float(gap.abs().max()))

    for g, eta, jacobian in cases:
        one = torch.eye(len(eta), dtype=eta.dtype)
        columns = [
            (g.forward(eta + STEP * e) - g.forward(eta - STEP * e)) / (2 * STEP) for e in one
        ]
        worse(jacobians, torch.stack(columns, dim=1) - jacobian)
        worse(inverses, g.swapped.forward(g.forward(eta)) - eta)
        worse("error of log det J", torch.linalg.slogdet(jacobian)[1] - g.log_abs_det(eta))
        worse("error at the centre", g.jacobian(g.center) - g.r_hat / g.rho * one)
    holds = errors[jacobians] < 1e-7 and max(errors[k] for k in list(errors)[1:]) < 1e-10
    shown = f"Jacobian within {errors[jacobians]:.0e} in {len(cases)} cases"
    return Finding(shown, {**errors, "cases": len(cases)}, holds)


def draw_radial(cases: list[tuple[Radial, Tensor, Tensor]]) -> str:
    g = Radial(torch.zeros(2, dtype=torch.float64), 0.35, 1.0, 0.75)
    radii = torch.linspace(0, 1.25, 120, dtype=torch.float64)
    images = [float(g.inverse(torch.stack([r, 0 * r]))[0]) for r in radii]
    along, lines = torch.linspace(-1.2, 1.2, 161, dtype=torch.float64), []
    for fixed in torch.linspace(-1.2, 1.2, 25, dtype=torch.float64):
        for turned in (False, True):
            pair = [torch.stack([fixed, s] if turned else [s, fixed]) for s in along]
            moved = torch.stack([g.inverse(p) for p in pair])
            lines.append((moved[:, 0].tolist(), moved[:, 1].tolist()))
    return figures.radial_map(radii.tolist(), images, lines, {"r̂": g.r_hat, "δ": g.delta})


# Re-ranking --------------------------------------------------------------------------------------


def every_order(setting: Setting) -> Witness:
    orders = permutations(range(len(setting.minima)))
    return {"found": {order: rerank(setting.minima, order) for order in orders}}


def check_every_order(found: dict[tuple[int, ...], Reranked]) -> Finding:
    """Every order reached by measured norms, and one function in all of them."""
    gap = max(r.value_gap for r in found.values())
    trip = max(r.round_trip for r in found.values())
    right = sum(r.holds and r.order == order for order, r in found.items())
    numbers = {"orders": len(found), "reached": right, "gap of values": gap, "there and back": trip}
    holds = right == len(found) == math.factorial(len(next(iter(found)))) and gap < 1e-10
    shown = f"{right} of {len(found)} orders, values within {gap:.0e}"
    return Finding(shown, numbers, holds and trip < 1e-9)


def draw_every_order(found: dict[tuple[int, ...], Reranked]) -> str:
    before = [e.value for e in next(iter(found.values())).before]
    after = {"<".join(map(str, o)): [e.value for e in r.after] for o, r in found.items()}
    return figures.rankings(before, after)


# The inputs --------------------------------------------------------------------------------------


def input_representation(setting: Setting) -> Witness:
    """Two models of the inputs in two other representations, and two nets in opposing ones.

    Scaled axes make other normal distributions of them, exponentials make log-normal ones: both are
    known without |det|.
    """
    zero, scales = torch.zeros(2).double(), torch.tensor([0.5, 1.6]).double()
    means = {"truth": zero, "model A": torch.tensor([0.9, 0.0]).double()}
    means["model B"] = torch.tensor([0.0, 0.6]).double()
    normal = {n: MultivariateNormal(m, torch.eye(2).double()) for n, m in means.items()}
    narrow = {n: MultivariateNormal(scales * m, (scales**2).diag()) for n, m in means.items()}
    growing = {n: Independent(LogNormal(m, torch.ones(2).double()), 1) for n, m in means.items()}
    nets, opposed = _re_ranked(setting)
    return {
        "laws": _laws(normal),
        "representations": {
            "scaled axes": (affine(zero, scales), _laws(narrow)),
            "exponentials": (Representation(torch.exp, torch.log, "exponential"), _laws(growing)),
        },
        "nets": nets,
        "opposed": opposed,
    }


def _laws(named: dict[str, Any]) -> Laws:
    return Laws(named["truth"], {n: law for n, law in named.items() if n != "truth"})


def _re_ranked(
    setting: Setting,
) -> tuple[tuple[Objective, Objective], tuple[Representation, Representation]]:
    """Two nets of the digits, or the given one and itself at another point, and what turns them.

    Twins have the same input gradients: only different functions can be re-ranked.
    """
    if setting.given is None:
        pair = setting.minima[0], setting.minima[1]
        return pair, opposing(*pair)
    for seed in range(TRIES):
        pair = setting.given, moved_off(setting.given, seed)
        with suppress(SpiritlevelError):
            return pair, opposing(*pair)
    pair = setting.given, moved_off(setting.given)
    return pair, opposing(*pair)  # once more, to say why not


def check_inputs(
    laws: Laws,
    representations: dict[str, tuple[Representation, Laws]],
    nets: tuple[Objective, Objective],
    opposed: tuple[Representation, ...],
) -> Finding:
    """Distances between inputs re-rank; likelihoods and f-divergences cannot.

    Densities of u are those of laws that draws of u are seen to follow, not those of x over |det|.
    """
    numbers, holds, fixed = {}, True, 0.0
    for label, (xi, seen) in representations.items():
        ranking = ranked(laws.truth, laws.models, xi, seen=seen)
        moved = {c: ranking.shift(c) for c in (*MOVING, *FIXED)}
        fixed = max(fixed, *(moved[c] for c in FIXED))
        numbers |= {f"move of the {c}, {label}": moved[c] for c in moved}
        numbers[f"law of the draws, {label}"] = misfit = _misfit(laws, seen, xi)
        holds = holds and not set(ranking.turned) & set(FIXED) and misfit < CHANCE
        if label == "scaled axes":
            holds = holds and set(ranking.turned) == set(MOVING)
    for place, xi in enumerate(opposed):
        seen = [represent(net, xi) for net in nets]
        gap = max(loss_gap(net, there) for net, there in zip(nets, seen, strict=True))
        ratio = input_gradient_norm(seen[place]) / input_gradient_norm(seen[1 - place])
        numbers[f"input gradients of net {place} over net {1 - place}"] = ratio
        holds = holds and ratio < 1 and gap < 1e-9
    shown = f"{len(MOVING)} criteria turned, likelihoods moved {fixed:.0e}"
    return Finding(shown, numbers, holds and fixed < 1e-10)


def _misfit(laws: Laws, seen: Laws, xi: Representation) -> float:
    """The largest distance of xi(draws) from the law they should follow, in its units sqrt(1/n).

    Kolmogorov's, of each coordinate; above 2 in one case out of a thousand.
    """
    worst, draws = 0.0, 2000
    pairs = [(laws.truth, seen.truth), *((laws.models[n], seen.models[n]) for n in laws.models)]
    with kept_rng():
        torch.manual_seed(0)
        for before, after in pairs:
            u, fresh = xi.forward(before.sample((draws,))), after.sample((draws,))
            for one, other in zip(u.T.tolist(), fresh.T.tolist(), strict=True):
                gap = ks_2samp(one, other, method="asymp").statistic  # type: ignore[union-attr]
                worst = max(worst, float(gap) * math.sqrt(draws / 2))
    return worst


def draw_inputs(
    laws: Laws, representations: dict[str, tuple[Representation, Laws]], **_: Any
) -> str:
    representation, seen = representations["scaled axes"]
    ranking = ranked(laws.truth, laws.models, representation, seen=seen)
    short = {"mean squared error": "squared error", "earth mover": "earth mover"}
    short["KL divergence"] = "KL divergence"
    best = [
        {s: ranking.best(c, represented=after) for c, s in short.items()} for after in (False, True)
    ]
    turn = torch.linspace(0, 2 * math.pi, 60, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin()], dim=1)

    def rings(see: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        named = {"truth": laws.truth, **laws.models}
        return {
            label: torch.stack([see(r * circle + m.mean) for r in (0.7, 1.4)]).numpy()
            for label, m in named.items()
        }

    return figures.representations([rings(lambda x: x), rings(representation.forward)], best)


COORDINATES = {
    "reparametrization_law": Claim(
        "In coordinates η, with θ = g(η) and J its Jacobian, the Hessian is JᵀHJ at critical "
        "points; elsewhere the gradient adds Σₖ ∂L/∂θₖ ∇²gₖ.",
        "Dinh et al. 2017, 5",
        "power maps at and off a minimum",
        both_laws,
        check_both_laws,
    ),
    "three_coordinates": Claim(
        "One minimum of one loss is sharper or flatter by its coordinates: for "
        "η = (|θ - θ₀|² + b)ᵃ (θ - θ₀) its curvature is multiplied by b⁻²ᵃ.",
        "Dinh et al. 2017, 5",
        "a double well, three times",
        three_coordinates,
        check_three,
        draw_three,
        "example",
        "The same double well three times; the marked minimum is one and the same (b = 0.1).",
    ),
    "radial_map": Claim(
        "The radial map is a bijection with a Jacobian in closed form; its inverse swaps the "
        "radii r̂ and ρ, and at its centre the Hessian is multiplied by (r̂ / ρ)².",
        "Dinh et al. 2017, suppl. A",
        "random maps and points",
        radial_cases,
        check_radial,
        draw_radial,
        "example",
        "Distances from a minimum before and after: a ball of radius r̂ is stretched, the shell "
        "up to δ gives way, and nothing changes outside (the circle on the right).",
    ),
    "reranking": Claim(
        "One bijection puts several minima in any order of sharpness, without changing the loss.",
        "Dinh et al. 2017, 5",
        "radial maps, disjoint balls",
        every_order,
        check_every_order,
        draw_every_order,
        caption="Each column is one bijection and the same loss; 2<0<1 asks that net 2 be the "
        "flattest and net 1 the sharpest.",
    ),
    "input_representation": Claim(
        "Squared error, the earth mover's distance and input gradients can rank models the other "
        "way round in another representation of the inputs; likelihoods and f-divergences cannot.",
        "Dinh et al. 2017, 5.2",
        "two models and two nets, other inputs",
        input_representation,
        check_inputs,
        draw_inputs,
        caption="Level lines of the truth and of two models of it, before and after a scaling of "
        "the inputs: distances change their winner, the KL divergence does not.",
    ),
}
