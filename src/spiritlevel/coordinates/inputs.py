"""The representation of the inputs: what depends on it, and what cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.func import jacrev, vmap

from spiritlevel.base.doors import a, number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import kept_rng, set_apart
from spiritlevel.base.tensor_doors import bijection, seeded, tensor
from spiritlevel.objective import Objective, only_objectives

AGREES = 1e-5  # relative, there and back
FLOOR = 1e-6  # of the largest spread: pixels that never change keep a scale
MOVING = ("mean squared error", "earth mover")  # distances between inputs
FIXED = ("log-likelihood", "KL divergence", "total variation", "squared Hellinger")


@dataclass(frozen=True, eq=False)
class Representation:
    """An invertible map u = xi(x) of the inputs, one row per example."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    name: str = "representation"

    def __post_init__(self) -> None:
        bijection("Representation", self)
        a("name", self.name, str, "a text")

    def log_abs_det(self, x: Tensor) -> Tensor:
        """log |det dxi/dx| for every row."""

        def one(row: Tensor) -> Tensor:
            return self.forward(row.unsqueeze(0)).reshape(-1)

        return torch.linalg.slogdet(vmap(jacrev(one))(x).flatten(2))[1]


def affine(shift: Tensor, matrix: Tensor, name: str = "affine map") -> Representation:
    """u = A (x - shift) for flattened inputs x; a vector in the place of A is a diagonal."""
    tensor("shift", shift, *(None for _ in getattr(shift, "shape", (1,))))
    square = matrix.diag() if isinstance(matrix, Tensor) and matrix.ndim == 1 else matrix
    tensor("matrix", square, None, None)
    a("name", name, str, "a text")
    if square.shape != (shift.numel(), shift.numel()):
        raise SpiritlevelError(
            f"affine() needs a {shift.numel()} x {shift.numel()} matrix or as many factors; "
            f"got shape {tuple(matrix.shape)}"
        )
    if not math.isfinite(float(torch.linalg.slogdet(square.double())[1])):
        raise SpiritlevelError("affine() needs a matrix with an inverse; this one has none")
    back = torch.linalg.inv(square.double())

    def forward(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return ((flat - shift.flatten().to(x)) @ square.T.to(x)).reshape(x.shape)

    def inverse(u: Tensor) -> Tensor:
        return (u.flatten(1) @ back.T.to(u) + shift.flatten().to(u)).reshape(u.shape)

    return Representation(forward, inverse, name)


def standardization(objective: Objective) -> Representation:
    """u = (x - mean) / standard deviation, number by number."""
    x = _inputs(objective).double()
    spread = x.std(0)
    return affine(x.mean(0), 1 / spread.clamp(min=FLOOR * float(spread.max())), "standardization")


def whitening(objective: Objective) -> Representation:
    """u = C^-1/2 (x - mean), C the covariance: uncorrelated inputs of variance 1."""
    x = _inputs(objective).double()
    values, vectors = torch.linalg.eigh(torch.cov(x.T).reshape(x.shape[1], x.shape[1]))
    root = values.clamp(min=FLOOR**2 * float(values.max())).rsqrt()
    return affine(x.mean(0), (vectors * root) @ vectors.T, "whitening")


@set_apart()
def represent(objective: Objective, representation: Representation) -> Objective:
    """The same network seen from other inputs: f o xi^-1 on the data xi(x).

    Predictions, loss and parameters stay; what changes is the geometry of the inputs (Dinh et al.,
    2017, section 5.2). Batches must be (x, y) with inputs that are real numbers, and the loss may
    see them through the model alone.
    """
    only_objectives(objective)
    a("representation", representation, Representation, "a Representation, such as whitening()")
    batches = []
    for batch in objective.batches:
        x = _first(batch)
        u = representation.forward(x)
        gap = float((representation.inverse(u) - x).abs().max()) if u.shape == x.shape else math.inf
        if not gap <= AGREES * float(1 + x.abs().max()):
            raise SpiritlevelError(
                f"the {representation.name} is not invertible on these inputs: inverse(forward(x)) "
                f"is {gap:.2g} away from x"
            )
        batches.append((u, *batch[1:]))

    def back(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (representation.inverse(given[0]), *given[1:])

    def see(model: nn.Module) -> None:
        model.register_forward_pre_hook(back, prepend=True)

    seen = objective.edited(see).on(batches)
    if not math.isclose(seen.value(), objective.value(), rel_tol=1e-4, abs_tol=AGREES):
        raise SpiritlevelError(
            f"the loss is {objective.value():.6g}, and {seen.value():.6g} in the "
            f"{representation.name}: it reads the inputs itself, or calls a part of the model"
        )
    return seen


@set_apart()
def input_gradients(objective: Objective) -> Tensor:
    """d l_i / d x_i, one row per example: how the loss answers to a change of the inputs."""
    only_objectives(objective)
    if not objective.separable:
        raise SpiritlevelError(
            "input gradients of single examples do not exist here: the loss of a batch is no sum "
            'over its examples (BatchNorm in train mode, or a loss of pairs); use mode="eval"'
        )
    rows = []
    with objective.smooth():
        for batch in objective.batches:
            x = objective.here(_first(batch)).detach().requires_grad_()
            total = objective.total(objective.params, (x, *batch[1:]))[0]
            rows.append(torch.autograd.grad(total, x)[0].flatten(1))
    return torch.cat(rows)


def input_gradient_norm(objective: Objective) -> float:
    """sqrt(E |d l / d x|^2)."""
    return float(input_gradients(objective).square().sum(1).mean().sqrt())


@set_apart()
def opposing(one: Objective, other: Objective) -> tuple[Representation, Representation]:
    """Two representations of the inputs: `one` has the smaller gradients in the first, `other` in
    the second.

    In u = A x the squared norm is tr(A^-1 A^-T G), G = E[g g']. With A^-1 A^-T = s I + v v', v an
    eigenvector of G_one - G_other, the sign is that of the eigenvalue once s is small. Possible if
    that difference has both signs; otherwise no linear representation turns the order.
    """
    only_objectives(one, other)
    grams = [_gram(input_gradients(o).double()) for o in (one, other)]
    gaps, vectors = torch.linalg.eigh(grams[0] - grams[1])
    low, high = float(gaps[0]), float(gaps[-1])
    if not low < 0 < high:
        raise SpiritlevelError(
            "one of the two has the smaller input gradient in every direction: no linear "
            "representation re-ranks this pair"
        )
    shift = _inputs(one).double().mean(0)
    found = []
    for eigenvalue, vector in ((low, vectors[:, 0]), (high, vectors[:, -1])):
        # s tr(G_one - G_other) may not outweigh half of the eigenvalue
        share = min(abs(eigenvalue) / (2 * abs(float(gaps.sum())) + 1e-300), 1.0)
        metric = share * torch.eye(len(vector)).double() + torch.outer(vector, vector)
        values, axes = torch.linalg.eigh(metric)
        found.append(affine(shift, (axes * values.rsqrt()) @ axes.T, "stretched direction"))
    return found[0], found[1]


def _gram(rows: Tensor) -> Tensor:
    return rows.T @ rows / len(rows)


def _first(batch: Any) -> Tensor:
    x = batch[0] if isinstance(batch, (tuple, list)) else None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise SpiritlevelError(
            "a representation of the inputs needs batches (x, y) with a tensor x of real numbers"
        )
    return x


def _inputs(objective: Objective) -> Tensor:
    only_objectives(objective)
    return torch.cat([_first(batch) for batch in objective.batches]).flatten(1)


# Models of the inputs themselves -----------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """Criteria for models of the inputs, in x and in u = xi(x): criterion -> model -> value."""

    before: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]]

    def best(self, criterion: str, *, represented: bool) -> str:
        one_of("criterion", criterion, self.before)
        values = (self.after if represented else self.before)[criterion]
        return (max if criterion == "log-likelihood" else min)(values, key=values.__getitem__)

    @property
    def turned(self) -> tuple[str, ...]:
        """The criteria by which another model is the best one now."""
        return tuple(
            c
            for c in self.before
            if self.best(c, represented=False) != self.best(c, represented=True)
        )

    def shift(self, criterion: str) -> float:
        """How far the differences between models moved; 0 for what cannot re-rank."""
        one_of("criterion", criterion, self.before)
        before, after = self.before[criterion], self.after[criterion]
        first = next(iter(before))
        moves = [(after[m] - after[first]) - (before[m] - before[first]) for m in before]
        return max(map(abs, moves))


@dataclass(frozen=True)
class Laws:
    """A truth and models of it, as distributions of one representation of the inputs."""

    truth: Distribution
    models: Mapping[str, Distribution]


@set_apart()
def ranked(
    truth: Distribution,
    models: Mapping[str, Distribution],
    representation: Representation,
    *,
    seen: Laws | None = None,
    draws: int = 400,
    seed: int = 0,
) -> Ranking:
    """Models of the inputs judged in two representations, on the same draws.

    Distances between inputs (`MOVING`: squared error of the mean as a prediction, earth mover
    between draws) are taken anew. Likelihoods and f-divergences (`FIXED`) are those of densities;
    `seen` are the distributions of u = xi(x) where they are known. Without them the densities of u
    come from those of x by |det dxi/dx|, the same for every model: what `FIXED` shows is then the
    rule itself and no measurement.
    """
    _refuse_laws(truth, models)
    a("representation", representation, Representation, "a Representation, such as affine()")
    a("seen", seen, (Laws, type(None)), "Laws(truth, models) of the represented inputs")
    number("draws", draws, 2, whole=True)
    seeded(seed)
    if seen is not None and set(seen.models) != set(models):
        raise SpiritlevelError(
            f"`seen` has the models {', '.join(seen.models)}; give those of {', '.join(models)}"
        )
    with kept_rng():
        torch.manual_seed(seed)
        x = truth.sample((draws,))
        own = {name: model.sample((draws,)) for name, model in models.items()}
    identity = Representation(lambda x: x, lambda u: u, "identity")
    before, after = (
        {
            **_distances(models, x, own, xi),
            **_densities(*_log_densities(truth, models, x, xi, laws)),
        }
        for xi, laws in ((identity, Laws(truth, models)), (representation, seen))
    )
    return Ranking(before, after)


def _refuse_laws(truth: Any, models: Any) -> None:
    a("truth", truth, Distribution, "a torch.distributions.Distribution")
    a("models", models, Mapping, "distributions by name")
    if not models:
        raise SpiritlevelError("models is empty; give one or more, distributions by name")
    for name, model in models.items():
        a("models", name, str, "distributions by name")
        a("models", model, Distribution, "distributions by name")


def _distances(
    models: Mapping[str, Distribution], x: Tensor, own: dict[str, Tensor], xi: Representation
) -> dict[str, dict[str, float]]:
    """Criteria that measure how far inputs are apart."""
    u, errors, moves = xi.forward(x), {}, {}
    for name, model in models.items():
        mean = xi.forward(model.mean.expand_as(x))
        errors[name] = float((u - mean).square().sum(1).mean())
        cost = torch.cdist(u, xi.forward(own[name])).numpy()
        moves[name] = float(cost[linear_sum_assignment(cost)].mean())
    return dict(zip(MOVING, (errors, moves), strict=True))


def _log_densities(
    truth: Distribution,
    models: Mapping[str, Distribution],
    x: Tensor,
    xi: Representation,
    laws: Laws | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """log p(u) and log q(u) at u = xi(x), from the laws of u, or from those of x."""
    if laws is not None:
        u = xi.forward(x)
        return laws.truth.log_prob(u), {n: model.log_prob(u) for n, model in laws.models.items()}
    stretch = xi.log_abs_det(x)
    return truth.log_prob(x) - stretch, {n: m.log_prob(x) - stretch for n, m in models.items()}


def _densities(p: Tensor, models: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """Means over the draws of log q, log p - log q, |1 - q / p| / 2 and 1 - sqrt(q / p)."""
    return {
        "log-likelihood": {n: float(q.mean()) for n, q in models.items()},
        "KL divergence": {n: float((p - q).mean()) for n, q in models.items()},
        "total variation": {
            n: float((1 - (q - p).exp()).abs().mean()) / 2 for n, q in models.items()
        },
        "squared Hellinger": {
            n: float((1 - ((q - p) / 2).exp()).mean()) for n, q in models.items()
        },
    }
