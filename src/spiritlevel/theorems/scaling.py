"""Claims about rescaling: what it leaves alone, what it moves, and how far down it can go."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.curvature import ggn, hessian
from spiritlevel.objective import Objective
from spiritlevel.operators import Operator, scaled
from spiritlevel.orbit import minimum
from spiritlevel.spectral import eigenpairs
from spiritlevel.symmetry import verify
from spiritlevel.tensors import gaussian, generator
from spiritlevel.theorems import figures
from spiritlevel.theorems.base import Claim, Outcome, Witness, within
from spiritlevel.theorems.setting import Setting

LAW = 1e-9  # relative, float64
PROBES = 3
SWEEP = [10 ** (k / 3) for k in range(-6, 7)]
TRIALS, SIZE, GENERATORS = 150, 8, 3
NORMS = ("spectral", "Frobenius", "nuclear")


# Non-negative homogeneity ------------------------------------------------------------------------


def scale_layers(objective: Objective, scales: list[float]) -> Objective:
    """W_k -> a_k W_k with product 1; a bias takes all factors up to its layer: b_k -> a_1..a_k b_k.

    For nets that are chains of layers with homogeneous activations (Dinh et al., 2017, section 3).
    """
    moved, so_far = {}, 1.0
    names = [name for name in objective.params if name.endswith("weight")]
    for name, scale in zip(names, scales, strict=True):
        so_far *= scale
        moved[name] = objective.params[name] * scale
        bias = name.removesuffix("weight") + "bias"
        if bias in objective.params:
            moved[bias] = objective.params[bias] * so_far
    return objective.at(moved)


def _nets() -> dict[str, tuple[nn.Module, list[float]]]:
    """Small nets with random weights, and factors with product 1 for each."""

    def dense(*sizes: int, bias: bool) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inside, outside in pairwise(sizes):
            layers += [nn.Linear(inside, outside, bias=bias), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    conv = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.LeakyReLU(0.1)
    )
    conv.extend([nn.Flatten(), nn.Linear(16, 3)])
    return {
        "2 layers": (dense(64, 9, 3, bias=False), [5.0, 0.2]),
        "4 layers": (dense(64, 9, 8, 7, 3, bias=False), [3.0, 0.5, 4.0, 1 / 6]),
        "biases": (dense(64, 9, 8, 3, bias=True), [3.0, 0.25, 4 / 3]),
        "convolutions": (nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *conv), [6.0, 0.4, 1 / 2.4]),
    }


def homogeneity(setting: Setting) -> Witness:
    draws = generator(0)
    pairs = {}
    for label, (net, scales) in _nets().items():
        for p in net.parameters():
            p.data = gaussian(tuple(p.shape), draws, p) * 0.5
        data = gaussian((32, 64), draws, torch.zeros(())), torch.zeros(32, dtype=torch.long)
        objective = Objective(net, data, F.cross_entropy, dtype=torch.float64)
        pairs[label] = (objective, scale_layers(objective, scales))
    t = setting.layers.random(seed=0, scale=1.0)
    pairs["this network"] = (setting.objective, setting.layers.apply(setting.objective, t))
    return {"pairs": pairs}


def check_homogeneity(pairs: dict[str, tuple[Objective, Objective]]) -> Outcome:
    gaps = {label: verify(one, other).relative for label, (one, other) in pairs.items()}
    moves = [float((a.vector - b.vector).norm() / a.vector.norm()) for a, b in pairs.values()]
    worst = max(gaps.values())
    holds = worst < LAW and min(moves) > 0.1
    numbers = {f"gap of predictions, {label}": gap for label, gap in gaps.items()}
    numbers["least relative move of the weights"] = min(moves)
    return Outcome(f"predictions {within(worst)}", numbers, holds)


# Gradient and Hessian ----------------------------------------------------------------------------


def rescaled(setting: Setting) -> Witness:
    """A twin by random log-scales, and its factors D."""
    t = setting.group.random(seed=1)
    return {
        "objective": setting.objective,
        "twin": setting.group.apply(setting.objective, t),
        "factors": setting.factors(setting.group, t),
    }


def check_gradient(objective: Objective, twin: Objective, factors: Tensor) -> Outcome:
    """grad L(D theta) = D^-1 grad L(theta)."""
    expected, found = objective.gradient() / factors, twin.gradient()
    error = _relative(found, expected)
    moved = float(found.norm() / objective.gradient().norm())
    numbers = {"relative error": error, "growth of the gradient": moved}
    return Outcome(f"error {error:.0e}, gradient x {moved:.3g}", numbers, error < LAW)


def check_hessian(objective: Objective, twin: Objective, factors: Tensor) -> Outcome:
    """H(D theta) = D^-1 H(theta) D^-1, on random vectors."""
    draws = generator(2)
    probes = gaussian((objective.size, PROBES), draws, objective.vector)
    expected = scaled(hessian(objective), 1 / factors) @ probes
    found = hessian(twin) @ probes
    error = _relative(found, expected)
    return Outcome(f"error {error:.0e}", {"relative error": error}, error < LAW)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# How far down ------------------------------------------------------------------------------------


def orbit_floor(setting: Setting) -> Witness:
    """The orbit's least eigenvalue with its lower bound, and a sweep along one layer."""
    best = minimum(setting.objective, setting.group, norm="spectral", operator="ggn")
    matrix, sweep = ggn(setting.objective), []
    for alpha in SWEEP:
        t = setting.layers.identity()
        t[0] = math.log(alpha)
        sweep.append(setting.factors(setting.layers, t).log())
    there = setting.factors(setting.group, best.log_scales).log()
    return {
        "matrix": matrix,
        "log_factors": torch.stack([*sweep, there]),
        "lower_bound": best.lower_bound,
        "before": best.before,
        "layer": setting.layers.generators[0].name,
    }


def _orbit_norms(matrix: Operator, log_factors: Tensor, tol: float = 1e-4) -> list[float]:
    found = [eigenpairs(scaled(matrix, torch.exp(-row)), tol=tol)[0] for row in log_factors]
    return [e.value for e in found]


def check_floor(
    matrix: Operator, log_factors: Tensor, lower_bound: float, before: float, layer: str
) -> Outcome:
    """Every point of the orbit lies above a positive bound, and one of them nearly at it."""
    norms = _orbit_norms(matrix, log_factors)
    least = min(norms)
    numbers = {"lower bound": lower_bound, "least found": least, "largest found": max(norms)}
    holds = 0 < lower_bound * (1 - 1e-6) <= least <= 1.05 * lower_bound
    return Outcome(f"{before:.4g} here, nowhere below {lower_bound:.4g}", numbers, holds)


def draw_floor(
    matrix: Operator, log_factors: Tensor, lower_bound: float, before: float, layer: str
) -> str:
    norms = _orbit_norms(matrix, log_factors[: len(SWEEP)], tol=1e-2)
    return figures.orbit_curve(SWEEP, norms, lower_bound, before)


# Log-convexity -----------------------------------------------------------------------------------


def convexity(setting: Setting) -> Witness:
    """Pairs of rescalings and the one half-way: random matrices, and this network's Hessian."""
    draws = generator(3)
    like = torch.zeros((), dtype=torch.float64)
    matrices = gaussian((TRIALS, SIZE, SIZE), draws, like)
    forms = gaussian((TRIALS, SIZE, GENERATORS), draws, like)
    ends = [(forms @ gaussian((TRIALS, GENERATORS, 1), draws, like)).squeeze(-1) for _ in range(2)]
    turns = [setting.group.random(seed=i, scale=0.7) for i in (4, 5)]
    own = [setting.factors(setting.group, t).log() for t in turns]
    return {
        "matrices": (matrices + matrices.mT) / 2,
        "ends": ends,
        "middle": (ends[0] + ends[1]) / 2,
        "operator": hessian(setting.objective),
        "own_ends": own,
        "own_middle": (own[0] + own[1]) / 2,
    }


def check_convexity(
    matrices: Tensor,
    ends: list[Tensor],
    middle: Tensor,
    operator: Operator,
    own_ends: list[Tensor],
    own_middle: Tensor,
) -> Outcome:
    """log ||e^-b H e^-b|| at the middle is at most the mean of the ends, for three norms."""

    def norms(b: Tensor) -> Tensor:
        d = torch.exp(-b)
        values = torch.linalg.eigvalsh(d[:, :, None] * matrices * d[:, None, :]).abs()
        found = [values.amax(1), values.square().sum(1).sqrt(), values.sum(1)]
        return torch.stack(found).log()

    slack = (norms(ends[0]) + norms(ends[1])) / 2 - norms(middle)
    sizes = [_log_norm(operator, b) for b in (*own_ends, own_middle)]
    own = (sizes[0] + sizes[1]) / 2 - sizes[2]
    numbers: dict[str, Any] = {
        f"least slack, {n} norm": float(s.min()) for n, s in zip(NORMS, slack, strict=True)
    }
    numbers |= {"slack of this network": own, "trials": slack.numel() + 1}
    worst = min(float(slack.min()), own)
    shown = f"least slack {worst:.2g} in {slack.numel() + 1} trials"
    return Outcome(shown, numbers, worst > -1e-10)


def _log_norm(operator: Operator, b: Tensor) -> float:
    found = eigenpairs(scaled(operator, torch.exp(-b)), which="magnitude", tol=1e-4)[0]
    return math.log(abs(found.value))


SCALING = {
    "homogeneity": Claim(
        "Scaling layers by factors with product 1 changes no prediction, for every positively "
        "homogeneous activation; biases take the factors of all layers before them too.",
        "Dinh et al. 2017, 3",
        "scaled twins of 5 nets",
        homogeneity,
        check_homogeneity,
    ),
    "gradient_law": Claim(
        "Where the weights are multiplied by D, the gradient is divided by it: ∇L(Dθ) = D⁻¹∇L(θ).",
        "Dinh et al. 2017, 4.2",
        "a random twin",
        rescaled,
        check_gradient,
    ),
    "hessian_law": Claim(
        "Where the weights are multiplied by D, the Hessian is divided by it on both sides, "
        "H(Dθ) = D⁻¹H(θ)D⁻¹, at minima and elsewhere.",
        "Dinh et al. 2017, 4.2",
        "a random twin",
        rescaled,
        check_hessian,
    ),
    "never_arbitrarily_flat": Claim(
        "Scaling makes a minimum as sharp as one likes, but not as flat: the least spectral norm "
        "of its Gauss-Newton matrix over the orbit is positive.",
        "from Dinh et al. 2017, 4.2",
        "the orbit's minimum and its bound",
        orbit_floor,
        check_floor,
        draw_floor,
        caption="One layer is scaled and the next one by the inverse. To both sides the minimum "
        "becomes as sharp as one likes; downwards no equivalent network passes the dashed "
        "line.",
    ),
    "log_convexity": Claim(
        "Along rescalings the logarithm of a unitarily invariant norm of the Hessian is convex, "
        "log ‖exp(-Bt) H exp(-Bt)‖ in t, so the orbit has one least sharpness.",
        "three-lines theorem",
        "points half-way between rescalings",
        convexity,
        check_convexity,
    ),
}
