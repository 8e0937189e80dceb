"""Three ways to multiply with the Hessian, tried in order, and the check that picks one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, jvp

from spiritlevel.base.doors import one_of
from spiritlevel.base.errors import SpiritlevelError, clause
from spiritlevel.base.memory import free_bytes
from spiritlevel.base.tensors import flatten, gaussian, generator
from spiritlevel.curvature.merging import Merging, merging
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.telling import telling

Product = Callable[[Objective, Batch, Sequence[Tensor]], list[Tensor]]
CHECK_EXAMPLES = 12
# Relative to the length of the point. Small steps avoid the kinks of rectified nets, large ones
# the rounding of float32 inside a model; each is tried until one agrees well.
CHECK_STEPS = {
    torch.float64: (1e-7, 1e-8, 1e-9, 1e-10, 1e-6, 1e-5, 1e-4),
    torch.float32: (1e-3, 1e-4, 1e-2),
}
# A cast to half precision inside a model makes stairs of its loss. Small steps see the flat of one
# stair, and agree among themselves on that; wide ones see the slope, roughly. So do examples that
# are fitted to the last digit of a probability.
WIDE_STEPS = (1e-3, 1e-2, 3e-2, 1e-1)
ROUGHLY = 0.1
AGREES = 1e-5
DOUBT = 30.0  # times what differences of neighbouring steps differ by: how well they are known
SLOPE = 0.05  # of the slope: what kinks may do to a difference of losses; more is a wrong gradient
VECTORS = 16  # of the size of the model that a check in float64 holds
TOLERANCE = {torch.float64: 1e-3, torch.float32: 5e-2}  # of products, and of u'Hv = v'Hu


def jvp_of_gradient(objective: Objective, batch: Batch, vectors: Sequence[Tensor]) -> list[Tensor]:
    """H v as the directional derivative of the gradient, forward over reverse."""
    gradient = grad(lambda params: objective.total(params, batch)[0])
    point = objective.params
    return [flatten(jvp(gradient, (point,), (objective.named(v),))[1]) for v in vectors]


def double_backward(objective: Objective, batch: Batch, vectors: Sequence[Tensor]) -> list[Tensor]:
    """H v as the gradient of g'v, reverse over reverse; one graph serves all vectors."""
    point = {k: p.clone().requires_grad_() for k, p in objective.params.items()}
    leaves = list(point.values())
    total = objective.total(point, batch)[0]
    pieces = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
    gradient = torch.cat([piece.reshape(-1) for piece in pieces])
    if not gradient.requires_grad:  # the loss is linear in every chosen parameter
        return [torch.zeros_like(v) for v in vectors]
    products = []
    for v in vectors:
        twice = torch.autograd.grad(
            gradient, leaves, grad_outputs=v, retain_graph=True, materialize_grads=True
        )
        products.append(torch.cat([piece.reshape(-1) for piece in twice]))
    return products


def difference_of_gradients(
    objective: Objective, batch: Batch, vectors: Sequence[Tensor], step: float = 1e-6
) -> list[Tensor]:
    """H v = (g(theta + hv) - g(theta - hv)) / 2h, with h relative to the point's length."""
    point, products = objective.vector, []
    for v in vectors:
        h = step * (1 + float(point.norm())) / max(float(v.norm()), 1e-300)
        ahead = objective.at(point + h * v).gradient_sum(batch)
        behind = objective.at(point - h * v).gradient_sum(batch)
        products.append((ahead - behind) / (2 * h))
    return products


RUNGS: dict[str, Product] = {
    "jvp of gradient": jvp_of_gradient,
    "double backward": double_backward,
    "difference of gradients": difference_of_gradients,
}


@dataclass(frozen=True)
class Rung:
    """The way that was chosen, and how far its products can be trusted.

    `check` is the relative error against a finite difference in `checked_in`, or that of the
    gradient where it is not that of the loss; `rounding` is what the working precision (float32,
    tf32) costs, against the same product in float64. `merging` is what the model may be taken for.
    """

    name: str
    product: Product
    check: float
    checked_in: torch.dtype
    rounding: float
    refused: dict[str, str] = field(default_factory=dict)
    merging: Merging = field(default_factory=Merging)

    def describe(self) -> str:
        text = self.name
        for name, reason in self.refused.items():
            text += f"; not {name}: {reason}"
        return text


@dataclass(frozen=True)
class Trial:
    """A few telling examples, a direction, and what finite differences say along it.

    `sizes` is the unit in which parameters and errors are measured; with S = diag(sizes), products
    are compared as S H v. Products are made with the two in `made_with`, whose norms may be merged,
    differences with the model as it is; `differences` holds those made so far, by step.
    """

    rough: Objective
    small: Objective
    made_with: tuple[Objective, Objective]
    direction: Tensor
    sizes: Tensor
    differences: dict[float, Tensor] = field(default_factory=dict)

    def product(self, way: Product, vector: Tensor) -> Tensor:
        small = self.small if way is difference_of_gradients else self.made_with[1]
        return way(small, small.batches[0], [vector])[0]

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.small.dtype]

    def check(self, found: Tensor) -> tuple[float, float]:
        """The relative difference to finite differences, and how much of it is theirs.

        Of small steps, unless wide ones agree far better: then small ones see stairs.
        """
        steps = CHECK_STEPS[self.small.dtype]
        near = self._disagreement(found, steps)
        if near <= AGREES:
            return near, AGREES
        known = max(AGREES, min(self.tolerance, DOUBT * self._doubt(steps)))
        if near <= known:
            return near, known
        wide = self._disagreement(found, WIDE_STEPS)
        return (wide, ROUGHLY) if wide <= min(ROUGHLY, near / 4) else (near, known)

    def _disagreement(self, found: Tensor, steps: Sequence[float]) -> float:
        """To the nearest of several finite differences.

        Each step errs in its own way, so the best one judges; a difference is not judged by itself.
        """
        best = float("inf")
        for step in steps:
            truth = self._difference(step)
            if torch.equal(found, truth) and found.any():
                continue
            scale = max(float((truth * self.sizes).norm()), float((found * self.sizes).norm()))
            gap = float(((found - truth) * self.sizes).norm())
            best = min(best, gap / scale if scale else 0.0)
            if best <= AGREES:
                break
        return best

    def _doubt(self, steps: Sequence[float]) -> float:
        """The least relative distance of the differences of two steps."""
        made = [self._difference(step) * self.sizes for step in sorted(steps)]
        gaps = [
            float((a - b).norm()) / max(float(a.norm()), float(b.norm()), 1e-300)
            for a, b in itertools.pairwise(made)
        ]
        return min(gaps)

    def _difference(self, step: float) -> Tensor:
        if step not in self.differences:
            batch = self.small.batches[0]
            made = difference_of_gradients(self.small, batch, [self.direction], step=step)
            self.differences[step] = made[0]
        return self.differences[step]

    @functools.cached_property
    def slope_gap(self) -> float:
        """How far the gradient is from differences of the loss, relative, beyond their rounding.

        Products of a gradient that is none (a stop-gradient, a backward pass of the model's own)
        agree with all differences of it. Along the gradient it would not show what is left out.
        """
        fresh = gaussian(self.small.size, generator(1), self.small.vector) * self.sizes
        way, point = fresh / fresh.norm(), self.small.vector
        along, eps, best = float(self.small.gradient() @ way), torch.finfo(point.dtype).eps, 1.0
        for step in (*CHECK_STEPS[self.small.dtype], *WIDE_STEPS):
            h = step * (1 + float(point.norm()))
            ahead, behind = (self.small.at(point + s * h * way).value() for s in (1, -1))
            noise = DOUBT * eps * (abs(ahead) + abs(behind)) / h
            gap = max(abs((ahead - behind) / (2 * h) - along) - noise, 0.0)
            best = min(best, gap / max(abs(along), gap, 1e-300))
            if best <= SLOPE:
                break
        return best

    def skewness(self, way: Product, found: Tensor) -> float:
        """|u'Mw - w'Mu| / |Mw| for M = S H S and w along Mu.

        Along Mu one of the two is |Mu|, so that not both are small by chance.
        """
        u, image = self.direction / self.sizes, found * self.sizes
        if not image.any():
            return 0.0
        w = image / image.norm()
        back = self.product(way, w * self.sizes) * self.sizes
        gap = float(u @ back - image.norm()) / float(u.norm())
        return abs(gap) / max(float(back.norm()), float(image.norm() / u.norm()))

    def rounding(self, way: Product, found: Tensor) -> float:
        """How far the product in the working precision is from the one in float64."""
        if found.dtype == self.rough.dtype:
            return torch.finfo(found.dtype).eps
        if way is difference_of_gradients:  # made in float64 for the working precision too
            return torch.finfo(self.rough.dtype).eps
        direction = self.direction.to(self.rough.dtype)
        rounded = way(self.made_with[0], self.rough.batches[0], [direction])[0]
        scale = float((found * self.sizes).norm())
        return float(((rounded.double() - found) * self.sizes).norm()) / scale if scale else 0.0


def climb_merged(objective: Objective, only: str | None = None) -> Rung:
    """The first rung for the model with its norms merged, if that does; else for it as it is."""
    found = merging(objective)
    if found:
        try:
            rung = climb(objective, only, found)
        except SpiritlevelError:
            rung = None
        # one that only another way vouches for has seen no difference
        if rung and not rung.refused and rung.check <= TOLERANCE[rung.checked_in]:
            return rung
    return climb(objective, only)


def climb(objective: Objective, only: str | None = None, merged: Merging | None = None) -> Rung:
    """The first rung that runs, agrees with finite differences of gradients and is symmetric."""
    if only is not None:
        one_of("rung", only, RUNGS)
    merged = merged or Merging()
    trial = _trial(objective, merged)
    refused: dict[str, str] = {}
    unsure: list[tuple[Rung, Tensor]] = []
    with objective.smooth():
        for name, way in RUNGS.items():
            if only not in (None, name):
                continue
            try:
                found = trial.product(way, trial.direction)
                skew, rounding = trial.skewness(way, found), trial.rounding(way, found)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                refused[name] = clause(error)
                continue
            check, known = trial.check(found)
            wrong = trial.slope_gap if trial.slope_gap > SLOPE else 0.0
            rung = Rung(
                name, way, max(check, wrong), trial.small.dtype, rounding, dict(refused), merged
            )
            if check <= known and skew <= max(known, trial.tolerance):
                return rung
            if check <= known:
                refused[name] = f"u'Hv and v'Hu differ by {skew:.1e}"
                continue
            refused[name] = f"differs from a finite difference by {check:.1e}"
            if skew <= trial.tolerance:
                unsure.append((rung, found * trial.sizes))
    if _vouch_for_each_other(unsure):
        return unsure[0][0]
    raise _no_way(refused)


def _no_way(refused: dict[str, str]) -> SpiritlevelError:
    return SpiritlevelError(
        "no Hessian-vector product of this model agrees with a finite difference of gradients and "
        "is symmetric: "
        + "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        + ". The loss may not be twice differentiable at this point, or so small that nothing but "
        "rounding is left; or leave rung out"
    )


def _trial(objective: Objective, merged: Merging) -> Trial:
    rough = telling(objective, CHECK_EXAMPLES)
    small = raised(rough)
    sizes = _sizes(small)
    made_with = merged.of(rough), merged.seen(small)
    return Trial(rough, small, made_with, _direction(small, sizes), sizes)


def _vouch_for_each_other(unsure: list[tuple[Rung, Tensor]]) -> bool:
    """Whether both ways of autograd agree, where differences drown in rounding or meet kinks.

    So it is with examples that are fitted to the last digit. `check` stays as it is, and large.
    """
    if [rung.name for rung, _ in unsure[:2]] != ["jvp of gradient", "double backward"]:
        return False
    (_, one), (_, other) = unsure[:2]
    agree = (one - other).norm() <= TOLERANCE[one.dtype] * one.norm()
    return bool(agree) and bool(one.any())


def _sizes(small: Objective) -> Tensor:
    """How large each parameter is: the unit of steps and errors, whatever the scaling of layers."""
    usual = small.vector.square().mean().sqrt() + 1e-12
    pieces = []
    for p in small.params.values():
        rms = p.square().mean().sqrt()
        # a layer of zeros has no size of its own
        pieces.append(p.abs() + 1e-3 * rms if rms > 0 else torch.full_like(p, float(usual)))
    sizes = torch.cat([piece.reshape(-1) for piece in pieces])
    return sizes + 1e-12 * (1 + sizes.max())


def _direction(small: Objective, sizes: Tensor) -> Tensor:
    """Mostly the gradient, which lies where the Hessian is large; partly random."""
    fresh = gaussian(small.size, generator(0), small.vector)
    slope = small.gradient() * sizes
    mixed = slope / slope.norm().clamp(min=1e-300) + 0.3 * fresh / fresh.norm()
    direction = mixed * sizes
    return direction / direction.norm()


def raised(rough: Objective) -> Objective:
    """The same in float64, or as it is if the model insists on its precision or is too large."""
    if rough.dtype == torch.float64 or VECTORS * 8 * rough.size > free_bytes(rough.device):
        return rough
    try:
        wide = rough.to(torch.float64)
        wide.gradient()
    except (RuntimeError, TypeError):  # tensors of a fixed precision inside the model
        return rough
    return wide
