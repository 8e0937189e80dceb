"""How many bits the labels take when the network is sent along, with bits back for its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spiritlevel.base.doors import number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import kept_rng, set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import gaussian, generator, unflatten
from spiritlevel.bounds import priors
from spiritlevel.bounds.gaussian import Gaussian, divergence
from spiritlevel.bounds.orbit import LeastDivergence, best_place, carried, least_on_grid
from spiritlevel.bounds.posterior import OfDescription, Recipe, trained_posterior
from spiritlevel.objective import Objective, classes, only_objectives
from spiritlevel.orbit.representative import representative
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.find import group_of

Centre = Literal["zero", "init"]
START = 0.1  # of a weight: its noise before training
LEAST = 0.01  # of the usual weight: the same for weights near zero
DRAWS = 32


@dataclass(frozen=True)
class Description:
    """What the labels cost in bits: those the drawn networks leave, and the network itself.

    `kl_bits` are those of the weights with bits back, `prior_bits` name the scale of the prior.
    `stderr` is that of the misfit, which is a mean over draws; `least` the point of the orbit.
    """

    misfit_bits: float
    kl_bits: float
    prior_bits: float
    stderr: float
    parameters: int
    examples: int
    posterior: Gaussian
    prior: Gaussian
    least: LeastDivergence | None = None
    interrupted: str = ""

    @property
    def bits(self) -> float:
        return self.misfit_bits + self.kl_bits + self.prior_bits

    @property
    def per_parameter(self) -> float:
        return self.bits / self.parameters

    @property
    def per_example(self) -> float:
        return self.bits / self.examples

    def __str__(self) -> str:
        return (
            f"{self.bits:.6g} bits for {self.examples} labels, {self.per_example:.4g} each: "
            f"{self.misfit_bits:.6g} that the networks leave, {self.kl_bits:.6g} for their weights"
            f" and {self.prior_bits:.3g} for the scale of the prior"
        )


@set_apart()
def bits_back(
    objective: Objective,
    *,
    init: Any = None,
    prior: Centre = "zero",
    orbit: bool = False,
    epochs: int | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Description:
    """E_Q[sum of -log2 p(label)] + KL(Q, P) / log 2 + log2(pi^2 j^2 / 6), least over Q and j.

    Q = N(w, diag s^2) starts at the objective's point, P = N(0 or init, p_j^2 I) is the best of a
    grid. With `orbit` it starts and ends where the rescalings that change no prediction make it
    least. Hinton & van Camp (1993).
    """
    only_objectives(objective)
    recipe = Recipe(epochs=epochs)
    _asked(objective, prior, draws, seed, orbit)
    objective = priors.undisturbed(objective, init)
    centre = priors.centre(objective, init, prior)
    group = group_of(objective, None) if orbit else None
    if group is not None:  # one point for all twins
        objective = representative(objective, group).objective
    objective, start, _ = _moved(objective, noisy(objective.vector), centre, group)
    trained = trained_posterior(
        objective,
        start,
        _prior(start, centre)[1],
        cost=OfDescription(round(objective.count)),
        recipe=recipe,
        follows=True,
        largest=priors.LARGEST,
        seed=seed,
    )
    objective, posterior, least = _moved(objective, trained.posterior, centre, group)
    return described(objective, posterior, centre, draws, seed, least, trained.interrupted)


def described(
    objective: Objective,
    posterior: Gaussian,
    centre: Tensor,
    draws: int = DRAWS,
    seed: int = 0,
    least: LeastDivergence | None = None,
    interrupted: str = "",
) -> Description:
    """What a posterior costs with the best prior of the grid around `centre`."""
    index, prior = _prior(posterior, centre)
    misfits = _misfits(objective, posterior, draws, seed) / math.log(2)
    return Description(
        misfit_bits=float(misfits.mean()),
        kl_bits=divergence(posterior, prior) / math.log(2),
        prior_bits=priors.cost(index) / math.log(2),
        stderr=float(misfits.std()) / math.sqrt(draws),
        parameters=objective.size,
        examples=round(objective.count),
        posterior=posterior,
        prior=prior,
        least=least,
        interrupted=interrupted,
    )


def _moved(
    objective: Objective, posterior: Gaussian, centre: Tensor, group: Group | None
) -> tuple[Objective, Gaussian, LeastDivergence | None]:
    """Where the divergence is least over the orbit, or as it is."""
    if group is None:
        return objective, posterior, None
    scales, shapes = priors.scales(), objective.shapes
    least = least_on_grid(posterior, centre, scales, group, shapes, cost=priors.cost).least
    return carried(objective, posterior, group, least.t), least.posterior, least


def _prior(posterior: Gaussian, centre: Tensor) -> tuple[int, Gaussian]:
    """The place of the best scale, and the prior of that scale."""
    index = best_place(posterior, centre, priors.scales(), priors.cost)
    return index, Gaussian(centre, torch.full_like(centre, priors.scales()[index]))


def noisy(weights: Tensor) -> Gaussian:
    """A Gaussian around weights whose noise is a share of each."""
    usual = float(weights.square().mean().sqrt())
    if not usual:
        raise SpiritlevelError("all parameters are zero: their noise has no scale")
    return Gaussian(weights, START * weights.abs().clamp(min=LEAST * usual))


def _misfits(objective: Objective, posterior: Gaussian, draws: int, seed: int) -> Tensor:
    """The summed loss of networks drawn from the posterior, in nats."""
    noises, found = generator(seed), []
    spread, mean = posterior.spread.to(objective.vector), posterior.mean.to(objective.vector)
    with torch.no_grad(), kept_rng(), bar(draws, "misfits") as progress:
        for _ in range(draws):
            point = torch.addcmul(mean, spread, gaussian(len(mean), noises, mean))
            named = unflatten(point, objective.shapes)
            total = sum(
                float(objective.total(named, objective.here(batch))[0])
                for batch in objective.batches
            )
            found.append(total)
            progress.update()
    return torch.tensor(found, dtype=torch.float64)


def _asked(objective: Objective, prior: Any, draws: Any, seed: Any, orbit: Any) -> None:
    one_of("prior", prior, get_args(Centre))
    number("draws", draws, 2, whole=True)
    seeded(seed)
    loss = objective.loss
    if loss.likelihood not in ("softmax", "bernoulli") or loss.altered:
        why = loss.altered or "no cross-entropy of labels"
        raise SpiritlevelError(
            f"this loss is not a number of nats: {why}; use cross_entropy, nll_loss or "
            "binary_cross_entropy_with_logits"
        )
    one_of("orbit", orbit, (True, False))
    classes.labels(objective)  # which refuses shares of classes: their cross-entropy is no code
    if not objective.separable:
        raise SpiritlevelError(
            "losses of examples hang together (batch statistics, fixed masks): a label has no code "
            "of its own"
        )
    if objective.count != round(objective.count):
        raise SpiritlevelError(
            "weighted examples have no number of bits: give data without weights"
        )
