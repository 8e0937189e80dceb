"""Claims about sharpness and size of a minimum: what the same network can be made to show."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective
from spiritlevel.spectral import eigenpairs
from spiritlevel.theorems import figures
from spiritlevel.theorems.base import Claim, Finding, Witness, within
from spiritlevel.theorems.setting import Setting, apart
from spiritlevel.witnesses.sharpened import DENSE, count_above, sharpen, sharpen_many, zero_in_ball
from spiritlevel.witnesses.slopes import Lipschitz, lipschitz
from spiritlevel.witnesses.volume import InfiniteVolume, infinite_volume, worst_in_box

TARGETS = (1e2, 1e3, 1e4, 1e5, 1e6)
MANY = 1e3
RADII = (1e-2, 1e-3, 1e-4)
BOXES, SHARE = 60, 0.5
ANOTHER = 17  # seed of an attack that the construction did not make


def spectral_norm(setting: Setting) -> Witness:
    """A twin for each target M, with the direction in which it is at least so sharp."""
    found = [sharpen(setting.objective, target=m, group=setting.group) for m in TARGETS]
    return {
        "objective": setting.objective,
        "targets": TARGETS,
        "twins": [f.objective for f in found],
        "directions": [f.direction for f in found],
    }


def check_spectral_norm(
    objective: Objective,
    targets: tuple[float, ...],
    twins: list[Objective],
    directions: list[Tensor],
) -> Finding:
    """u'Hu >= M by a new product at every twin, with predictions and loss of the original."""
    gaps = [apart(objective, twin) for twin in twins]
    reached = [
        float(u @ (hessian(twin) @ u)) / float(u @ u)
        for twin, u in zip(twins, directions, strict=True)
    ]
    holds = max(gaps) < 1e-9 and all(r >= m for r, m in zip(reached, targets, strict=True))
    numbers = {f"reached for M = {m:.0e}": r for m, r in zip(targets, reached, strict=True)}
    shown = f"{reached[-1]:.3g} ≥ {targets[-1]:g}, predictions {within(max(gaps))}"
    return Finding(shown, {**numbers, "largest gap of predictions": max(gaps)}, holds)


def many_eigenvalues(setting: Setting) -> Witness:
    if setting.few.size > DENSE:
        raise SpiritlevelError(
            f"{setting.few.size} parameters: the whole spectrum is for {DENSE} at most; choose "
            "some with Objective(..., params=)"
        )
    found = sharpen_many(setting.few, target=MANY, group=setting.group)
    if not found.guaranteed:
        raise SpiritlevelError(
            f"the theorem promises nothing here: rank {found.rank} is not above the size of what "
            "must absorb the factors"
        )
    return {
        "objective": setting.few,
        "twin": found.objective,
        "factors": setting.factors(setting.layers, found.element),
        "guaranteed": found.guaranteed,
        "target": MANY,
    }


def check_many(
    objective: Objective, twin: Objective, factors: Tensor, guaranteed: int, target: float
) -> Finding:
    """The eigenvalues above the target of the Hessian that is differentiated at the twin.

    There are at least as many as rank - (what absorbs the factors). The factors D only set the
    units D H D of the count: it is the same for all of them, but not its rounding.
    """
    gap = apart(objective, twin)
    there = hessian(twin, compile=False).dense()
    factors = factors.to(there)
    units = (there + there.T) / 2 * torch.outer(factors, factors)
    above = count_above(units, factors, target)
    numbers = {
        f"eigenvalues above {target:g}": above,
        "promised": guaranteed,
        "gap of predictions": gap,
    }
    holds = gap < 1e-9 and above >= guaranteed > 0
    return Finding(f"{above} eigenvalues > {target:g} ({guaranteed} promised)", numbers, holds)


def epsilon_sharpness(setting: Setting) -> Witness:
    found = {r: zero_in_ball(setting.objective, r, group=setting.group) for r in RADII}
    if not found[RADII[0]].lower_bound > 0:
        raise SpiritlevelError("a layer of zeros has no higher loss: this is no minimum")
    return {
        "objective": setting.objective,
        "twins": {radius: f.objective for radius, f in found.items()},
        "perturbations": {radius: f.perturbation for radius, f in found.items()},
    }


def check_epsilon_sharpness(
    objective: Objective, twins: dict[float, Objective], perturbations: dict[float, Tensor]
) -> Finding:
    """A layer is zero within every radius, and the sharpness that this proves is one number."""
    value, numbers, holds = objective.value(), {}, True
    for radius, twin in twins.items():
        step = perturbations[radius]
        edge = twin.vector + step
        numbers[f"sharpness at least, radius {radius:g}"] = (twin.at(edge).value() - value) / (
            1 + value
        )
        zero = not edge[step != 0].any() and float(step.norm()) <= radius * (1 + 1e-9)
        holds = holds and zero and apart(objective, twin) < 1e-9
    low, high = min(numbers.values()), max(numbers.values())
    top = eigenpairs(hessian(objective))[0].value
    usual = RADII[-1] ** 2 * top / (2 * (1 + value))
    numbers[f"here, to second order, radius {RADII[-1]:g}"] = usual
    holds = holds and low > 0 and high <= low * (1 + 1e-6)
    return Finding(f"≥ {low:.3g} at all radii ({usual:.1e} here)", numbers, holds)


def draw_epsilon_sharpness(
    objective: Objective, twins: dict[float, Objective], perturbations: dict[float, Tensor]
) -> str:
    """The loss from a twin to its layer of zeros, and from theta along its sharpest direction."""
    epsilon = RADII[1]
    twin, perturbation = twins[epsilon], perturbations[epsilon]
    top = eigenpairs(hessian(objective)).vectors[:, 0]
    steps = [k / 24 for k in range(25)]
    there = [twin.at(twin.vector + s * perturbation).value() for s in steps]
    here = [objective.at(objective.vector + s * epsilon * top).value() for s in steps]
    curves = {
        "equivalent network, towards its layer of zeros": there,
        "as trained, along the sharpest direction": here,
    }
    return figures.cuts([s * epsilon for s in steps], curves)


def volume(setting: Setting) -> Witness:
    epsilon = SHARE * abs(setting.objective.value()) + 1e-3
    found = infinite_volume(setting.objective, epsilon, group=setting.group, boxes=BOXES, corners=2)
    return {"objective": setting.objective, "volume": found}


def check_volume(objective: Objective, volume: InfiniteVolume) -> Finding:
    """Disjoint boxes inside the set; the k first together hold at least k times the first.

    The first box is attacked once more: nothing in it may be as high as L + epsilon.
    """
    totals = volume.log_totals
    grows = all(t >= totals[0] + math.log(k + 1) - 1e-6 for k, t in enumerate(totals))
    met = max(volume.attacked, worst_in_box(objective, volume.radius, ANOTHER))
    numbers = {
        "boxes": len(volume.intervals),
        "alpha": volume.alpha,
        "radius": volume.radius,
        "log volume of the first": totals[0],
        "log volume of all": totals[-1],
        "highest point met above L": max(met, *volume.corners) - volume.value,
        "epsilon": volume.epsilon,
        "proved (1) or sampled (0)": float(volume.proved),
        "gap along the orbit": volume.path_gap,
    }
    holds = volume.holds and grows and met < volume.value + volume.epsilon
    growth = (totals[-1] - totals[0]) / math.log(10)
    return Finding(f"volume x 1e{growth:.0f} ({volume.proof})", numbers, holds)


def draw_volume(objective: Objective, volume: InfiniteVolume) -> str:
    return figures.volumes(volume.intervals, volume.log_totals)


def no_constant(setting: Setting) -> Witness:
    return {"found": lipschitz(setting.objective, group=setting.group)}


def check_no_constant(found: Lipschitz) -> Finding:
    """The gradient follows the law and ends as 1 / scale; on a ball it stays below a bound."""
    growth = found.measured[-1] / found.measured[0]
    last = found.measured[-1] * found.scales[-1] / (found.measured[-2] * found.scales[-2])
    numbers = {
        "growth of the gradient": growth,
        "mismatch with the law": found.mismatch,
        "largest gradient met on the ball": found.met,
    }
    if found.bound is not None:
        numbers["bound on the ball"] = found.bound
    local = found.bound is None or found.met <= found.bound < math.inf
    holds = found.mismatch < 1e-6 and last > 0.5 and local
    bound = f", ≤ {found.bound:.3g} on a ball" if found.bound else ", ball: no bound known"
    return Finding(f"gradient x {growth:.3g}{bound}", numbers, holds)


def draw_no_constant(found: Lipschitz) -> str:
    return figures.gradients(found.scales, found.measured, found.by_law, found.bound)


SHARPNESS = {
    "spectral_norm": Claim(
        "For every M there is a network with the same predictions whose Hessian has a spectral "
        "norm of at least M.",
        "Dinh et al. 2017",
        "twins for M = 1e2 .. 1e6",
        spectral_norm,
        check_spectral_norm,
    ),
    "many_eigenvalues": Claim(
        "In a deep net at least rank H - n eigenvalues exceed any M at an equivalent point, n the "
        "size of the layer, with biases, that takes up the factors of all others.",
        "Dinh et al. 2017, suppl. E",
        "a twin, and its whole spectrum",
        many_eigenvalues,
        check_many,
    ),
    "epsilon_sharpness": Claim(
        "For every radius there is an equivalent network with a layer of zeros within the ball, "
        "which bounds its ε-sharpness from below.",
        "Dinh et al. 2017",
        "twins with a layer of norm ε",
        epsilon_sharpness,
        check_epsilon_sharpness,
        draw_epsilon_sharpness,
        caption="Two points of one network, and the loss on the way to the edge of one small ball.",
    ),
    "infinite_volume": Claim(
        "The connected set around a minimum θ with a loss below L(θ) + ε has infinite volume.",
        "Dinh et al. 2017",
        f"{BOXES} disjoint boxes",
        volume,
        check_volume,
        draw_volume,
        caption="Left, a net of two weights: boxes of equal area along one function, between "
        "level lines of (w₁w₂ - 1)². Middle, the first boxes of this network, told apart "
        "by the largest weight of a layer. Right, the logarithm of the volume of the "
        "first k boxes.",
    ),
    "no_lipschitz_constant": Claim(
        "A loss with a rescaling has no Lipschitz constant: its gradient has no bound on the "
        "orbit, though it has one on a ball (computed for nets of linear layers).",
        "Dinh et al. 2017, suppl. C",
        "gradients along the orbit",
        no_constant,
        check_no_constant,
        draw_no_constant,
        caption="The gradient at equivalent networks, measured and by the law: on the orbit it has "
        "no bound, on a ball around the given network (factor 1) it has one.",
    ),
}
