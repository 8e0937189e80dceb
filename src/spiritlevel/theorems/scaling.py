"""Claims about rescaling: what it leaves alone, what it moves, and how far down it can go."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, vstack
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.operator import Operator, scaled
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.curvature import ggn, hessian
from spiritlevel.objective import Objective
from spiritlevel.orbit import minimum
from spiritlevel.spectral import diagonal, eigenpairs
from spiritlevel.theorems import figures
from spiritlevel.theorems.base import Claim, Finding, Witness, within
from spiritlevel.theorems.setting import Setting, apart

LAW = 1e-9  # relative, float64
PROBES = 3
NEAR = (0.02, 0.1, 0.3, 1.0)  # how far from the least point its neighbours are
CANDIDATES, PROBED = 20_000, 64  # entries of a diagonal, and products for an estimate of it
SWEEP = [10 ** (k / 3) for k in range(-6, 7)]
TRIALS, SIZE, GENERATORS = 150, 8, 3
NORMS = ("spectral", "Frobenius", "nuclear")


# Non-negative homogeneity ------------------------------------------------------------------------


def scale_layers(objective: Objective, scales: list[float]) -> Objective:
    """W_k -> a_k W_k with product 1; a bias takes all factors up to its layer: b_k -> a_1..a_k b_k.

    For nets that are chains of layers with homogeneous activations (Dinh et al., 2017).
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


def check_homogeneity(pairs: dict[str, tuple[Objective, Objective]]) -> Finding:
    gaps = {label: apart(one, other) for label, (one, other) in pairs.items()}
    moves = [_relative_move(one.vector, other.vector) for one, other in pairs.values()]
    worst = max(gaps.values())
    holds = worst < LAW and min(moves) > 0.1
    numbers = {f"gap of predictions, {label}": gap for label, gap in gaps.items()}
    numbers["least relative move of weights"] = min(moves)
    return Finding(f"predictions {within(worst)}", numbers, holds)


def _relative_move(a: Tensor, b: Tensor) -> float:
    """Of the weights that move: embeddings that no rescaling reaches would hide it."""
    there = a != b
    return float((a - b)[there].norm() / a[there].norm()) if bool(there.any()) else 0.0


# Gradient and Hessian ----------------------------------------------------------------------------


def slopes(setting: Setting) -> Witness:
    """A twin by random log-scales of a point with a gradient, and its factors D."""
    return _rescaled(setting, setting.off)


def curvatures(setting: Setting) -> Witness:
    """The same at the point itself and off it."""
    places = {"here": setting.objective, "off the minimum": setting.off}
    return {"places": {label: _rescaled(setting, there) for label, there in places.items()}}


def _rescaled(setting: Setting, objective: Objective) -> Witness:
    t = setting.group.random(seed=1)
    return {
        "objective": objective,
        "twin": setting.group.apply(objective, t),
        "factors": setting.factors(setting.group, t),
    }


def check_gradient(objective: Objective, twin: Objective, factors: Tensor) -> Finding:
    """grad L(D theta) = D^-1 grad L(theta)."""
    here, there = objective.gradient(), twin.gradient()
    error = _law_error(there, here, factors)
    moved = float(there.norm() / here.norm())
    numbers = {"relative error": error, "growth of the gradient": moved}
    return Finding(f"error {error:.0e}, gradient x {moved:.3g}", numbers, error < LAW)


def check_hessian(places: dict[str, Witness]) -> Finding:
    """H(D theta) = D^-1 H(theta) D^-1, on random vectors, by new products at the twin."""
    numbers = {}
    for label, place in places.items():
        objective, factors = place["objective"], place["factors"]
        probes = gaussian((objective.size, PROBES), generator(2), objective.vector)
        here = hessian(objective) @ (probes / factors[:, None])
        there = hessian(place["twin"]) @ probes
        numbers[f"relative error {label}"] = _law_error(there, here, factors[:, None])
    worst = max(numbers.values())
    return Finding(f"error {worst:.0e}", numbers, worst < LAW)


def _law_error(there: Tensor, here: Tensor, factors: Tensor) -> float:
    """there = here / D, compared on both sides: a small block hides on one of them only."""
    return max(_relative(there, here / factors), _relative(there * factors, here))


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# How far down ------------------------------------------------------------------------------------


def orbit_floor(setting: Setting) -> Witness:
    """The orbit's least eigenvalue with its lower bound, a sweep along one layer, neighbours."""
    objective, group = setting.objective, setting.group
    if not objective.separable:
        raise SpiritlevelError("the loss is no sum over examples: its diagonal is not known")
    best = minimum(objective, group, norm="spectral", operator="ggn")
    if best.divided_out:
        raise SpiritlevelError(
            f"{len(best.divided_out)} rescalings have nothing to make up for: the least sharpness "
            "is not reached"
        )
    if not (best.lower_bound and best.lower_bound > 0):
        raise SpiritlevelError("the Gauss-Newton matrix of this loss has no positive bound here")
    ways = []
    for alpha in SWEEP:
        t = setting.layers.identity()
        t[0] = math.log(alpha)
        ways.append(setting.factors(setting.layers, t).log())
    near = [best.log_scales + group.random(seed=i, scale=s) for i, s in enumerate(NEAR)]
    ways += [setting.factors(group, t).log() for t in (*near, best.log_scales)]
    matrix = ggn(objective)
    return {
        "matrix": matrix,
        "log_factors": torch.stack(ways),
        "twin": group.apply(objective, best.log_scales),
        "lower_bound": best.lower_bound,
        "floor": geometric_floor(matrix, group.matrix(objective.shapes)),
        "before": best.before,
        "layer": setting.layers.generators[0].name,
    }


def geometric_floor(matrix: Operator, exponents: csr_matrix) -> float:
    """A number that no largest eigenvalue on the orbit is below, from the diagonal alone.

    For weights w >= 0 of sum 1 with B'w = 0, the top eigenvalue of D^-1 G D^-1 is at least
    sum_i w_i G_ii / d_i^2 >= prod_i (G_ii / d_i^2)^w_i = prod_i G_ii^w_i, whatever D = exp(B t).
    An estimate of the diagonal chooses w, by a linear program; the entries it needs are exact.
    """
    guess = diagonal(matrix, probes=PROBED).value.cpu().double()
    some = guess.topk(min(CANDIDATES, int((guess > 0).sum()))).indices
    if not len(some):
        return 0.0
    ones = csr_matrix([[1.0] * len(some)])
    sums = vstack([exponents[some.numpy()].T, ones]).tocsr()
    right = [0.0] * exponents.shape[1] + [1.0]  # type: ignore[index]
    found = linprog(-guess[some].log().numpy(), A_eq=sums, b_eq=right, bounds=(0, None))
    if not found.success:
        return 0.0
    floor = 0.0
    for place, weight in zip(some.tolist(), found.x, strict=True):
        if weight > 0:
            unit = torch.zeros(matrix.size, dtype=torch.float64, device=matrix.device)
            unit[place] = 1.0
            entry = float((matrix @ unit)[place])
            floor += weight * math.log(entry) if entry > 0 else -math.inf
    return math.exp(floor)


def _orbit_norms(matrix: Operator, log_factors: Tensor, tol: float = 1e-4) -> list[float]:
    found = [eigenpairs(scaled(matrix, torch.exp(-row)), tol=tol)[0] for row in log_factors]
    return [e.value for e in found]


def check_floor(
    matrix: Operator,
    log_factors: Tensor,
    twin: Objective,
    lower_bound: float,
    floor: float,
    before: float,
    layer: str,
) -> Finding:
    """Every point of the orbit lies above a positive bound, and one of them nearly at it.

    That one is a network: its own matrix is made and measured. The floor shows without the search
    for the bound that nothing comes down to zero.
    """
    norms = _orbit_norms(matrix, log_factors)
    least, there = min(norms), eigenpairs(ggn(twin), tol=1e-4)[0].value
    numbers = {
        "lower bound": lower_bound,
        "least found": least,
        "largest found": max(norms),
        "measured at the least network": there,
        "floor, from the diagonal alone": floor,
    }
    holds = 0 < lower_bound * (1 - 1e-6) <= least <= 1.05 * lower_bound
    holds = holds and abs(there / norms[-1] - 1) < 1e-3 and 0 < floor <= lower_bound * (1 + 1e-6)
    return Finding(f"{before:.4g} here, nowhere below {lower_bound:.4g}", numbers, holds)


def draw_floor(
    matrix: Operator, log_factors: Tensor, lower_bound: float, before: float, **_: Any
) -> str:
    norms = _orbit_norms(matrix, log_factors[: len(SWEEP)], tol=1e-2)
    return figures.orbit_curve(SWEEP, norms, lower_bound, before)


# Log-convexity -----------------------------------------------------------------------------------


def convexity(setting: Setting) -> Witness:
    """Pairs of rescalings and the one half-way: random matrices, and twins of this network."""
    draws = generator(3)
    like = torch.zeros((), dtype=torch.float64)
    matrices = gaussian((TRIALS, SIZE, SIZE), draws, like)
    forms = gaussian((TRIALS, SIZE, GENERATORS), draws, like)
    ends = [(forms @ gaussian((TRIALS, GENERATORS, 1), draws, like)).squeeze(-1) for _ in range(2)]
    turns = [setting.group.random(seed=i, scale=0.7) for i in (4, 5)]
    turns.append((turns[0] + turns[1]) / 2)
    return {
        "matrices": (matrices + matrices.mT) / 2,
        "ends": ends,
        "middle": (ends[0] + ends[1]) / 2,
        "twins": [setting.group.apply(setting.objective, t) for t in turns],
    }


def check_convexity(
    matrices: Tensor, ends: list[Tensor], middle: Tensor, twins: list[Objective]
) -> Finding:
    """log ||e^-b H e^-b|| at the middle is at most the mean of the ends, for three norms.

    For this network by its Hessians at two twins and at the one half-way between them.
    """

    def norms(b: Tensor) -> Tensor:
        d = torch.exp(-b)
        values = torch.linalg.eigvalsh(d[:, :, None] * matrices * d[:, None, :]).abs()
        found = [values.amax(1), values.square().sum(1).sqrt(), values.sum(1)]
        return torch.stack(found).log()

    slack = (norms(ends[0]) + norms(ends[1])) / 2 - norms(middle)
    (first, e1), (second, e2), (between, e3) = (_log_norm(twin) for twin in twins)
    own, error = (first + second) / 2 - between, (e1 + e2) / 2 + e3
    numbers: dict[str, Any] = {
        f"least slack, {n} norm": float(s.min()) for n, s in zip(NORMS, slack, strict=True)
    }
    numbers |= {"slack of this network": own, "its error": error, "trials": slack.numel() + 1}
    worst = min(float(slack.min()), own)
    shown = f"least slack {worst:.2g} in {slack.numel() + 1} trials"
    return Finding(shown, numbers, float(slack.min()) > -1e-10 and own > -error - 1e-10)


def _log_norm(objective: Objective) -> tuple[float, float]:
    """log ||H||, and how far it may be wrong."""
    found = eigenpairs(hessian(objective), which="magnitude", tol=1e-4)[0]
    if not found.value:
        raise SpiritlevelError("the Hessian is zero here: its norm has no logarithm")
    return math.log(abs(found.value)), found.error / abs(found.value)


SCALING = {
    "homogeneity": Claim(
        "Scaling layers by factors with product 1 changes no prediction, for every positively "
        "homogeneous activation; biases take the factors of all layers before them too.",
        "Dinh et al. 2017",
        "scaled twins of 5 nets",
        homogeneity,
        check_homogeneity,
    ),
    "gradient_law": Claim(
        "Where the weights are multiplied by D, the gradient is divided by it: ∇L(Dθ) = D⁻¹∇L(θ).",
        "Dinh et al. 2017",
        "a random twin, off the minimum",
        slopes,
        check_gradient,
    ),
    "hessian_law": Claim(
        "Where the weights are multiplied by D, the Hessian is divided by it on both sides, "
        "H(Dθ) = D⁻¹H(θ)D⁻¹, at minima and elsewhere.",
        "Dinh et al. 2017",
        "random twins, here and off the minimum",
        curvatures,
        check_hessian,
    ),
    "never_arbitrarily_flat": Claim(
        "Scaling makes a minimum as sharp as one likes, but not as flat: the least spectral norm "
        "of its Gauss-Newton matrix over the orbit is positive.",
        "from Dinh et al. 2017",
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
