"""`pac_bayes`: what is guaranteed of networks drawn around a trained one."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.base.doors import a, number, one_of
from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.bounds import asking, priors
from spiritlevel.bounds.certify import certified, split
from spiritlevel.bounds.drawing import drawing, drawn_errors, mean_error
from spiritlevel.bounds.fitted import decisions, left_out, repeated
from spiritlevel.bounds.gaussian import Gaussian, by_parameter, divergence, divergences
from spiritlevel.bounds.keeping import Checkpoint, data_digest, digest
from spiritlevel.bounds.orbit import LeastDivergence, carried, least_divergence, least_on_grid
from spiritlevel.bounds.posterior import OfBound, OfErrors, Recipe, Trained, trained_posterior
from spiritlevel.objective import Objective, classes, described, only_objectives
from spiritlevel.objective.batches import freeze
from spiritlevel.results.bound import Bounds, Drawn, Origin, Part, Row
from spiritlevel.results.loop import Done
from spiritlevel.results.provenance import provenance
from spiritlevel.symmetry import Group, symmetries
from spiritlevel.training.checkpoints import named

FEW = 100  # networks that are drawn where Ctrl-C ended the training


@set_apart()
def pac_bayes(
    objective: Objective,
    *,
    init: Any = None,
    prior: Literal["init", "zero"] = "init",
    share: float = 0.0,
    orbit: bool = False,
    epochs: int | None = None,
    draws: int = 2000,
    delta: float = 0.05,
    seed: int = 0,
    test: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    recipe: Recipe | None = None,
) -> Bounds:
    """A bound of the mean error of networks drawn from a posterior that is trained for it.

    Q = N(w, diag s^2) from the objective's weights, P = N(w0, p^2 I); w0 are the weights before
    training (`init`) or zero, p is from a grid. Dziugaite & Roy (2017), with Maurer's bound.

    - `share`: of the examples, chosen by `seed`, trains the prior's mean from `init`; the bound is
      over the others (Perez-Ortiz et al., 2021).
    - `orbit`: also the bound where the divergence is least over all rescalings that leave every
      prediction as it is; the training then starts where that of its start is least.
    - `delta`: of the bound (4/5) and of counting errors on `draws` networks (1/5).
    - `test`: an Objective or data; the error of the drawn networks there.
    - `checkpoint`: a file that the same call goes on from, bit for bit on a CPU. Ctrl-C keeps what
      is done: any posterior has a bound.
    """
    only_objectives(objective)
    chosen = chosen_recipe(recipe, epochs)
    refuse_asked(prior, share, draws, delta, seed, orbit, checkpoint)
    _refuse_dependent(objective)
    asked = _Asked(prior, float(share), bool(orbit), int(draws), float(delta), int(seed), chosen)
    begin = time.perf_counter()
    objective = priors.undisturbed(objective, init)
    tested = _tested(objective, test)
    return _bounds(_prepared(objective, init, asked, checkpoint, tested), tested, begin)


@dataclass(frozen=True)
class _Asked:
    prior: str
    share: float
    orbit: bool
    draws: int
    delta: float
    seed: int
    recipe: Recipe


@dataclass(frozen=True)
class _Case:
    """A network, its prior, and the examples that its bound is over."""

    asked: _Asked
    objective: Objective
    rest: Objective
    prior: Gaussian
    fixed: bool  # whether the prior's scale is
    words: str
    group: Group | None
    keeper: Checkpoint
    interrupted: str = ""
    premises: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def m(self) -> int:
        return self.rest.examples


@dataclass(frozen=True)
class _Ended:
    """A posterior and its prior, here and where the divergence is least."""

    prior: Gaussian
    index: int | None
    least: LeastDivergence | None = None
    least_prior: Gaussian | None = None
    least_index: int | None = None


def chosen_recipe(recipe: Recipe | None, epochs: int | None) -> Recipe:
    """The recipe with the epochs that are asked for."""
    a("recipe", recipe, (Recipe, type(None)), "a Recipe")
    found = Recipe() if recipe is None else recipe
    return found if epochs is None else replace(found, epochs=epochs)


def refuse_asked(
    prior: Any, share: Any, draws: Any, delta: Any, seed: Any, orbit: Any, checkpoint: Any
) -> None:
    """Refuse what no posterior can be trained and bounded with."""
    one_of("prior", prior, ("init", "zero"))
    one_of("orbit", orbit, (True, False))
    number("share", share, 0.0)
    if share and prior == "zero":
        raise SpiritlevelError('share trains the prior\'s mean: leave prior="zero" out')
    if share >= 1:
        raise SpiritlevelError(f"share={share:g} leaves no example for the bound; give one below 1")
    number("draws", draws, 1, whole=True)
    asking.chance("delta", delta)
    seeded(seed)
    named(checkpoint)


def _refuse_dependent(objective: Objective) -> None:
    """The bound is of the mean of one decision for each of at least two independent examples."""
    asking.examples(decisions(objective).units, "the number of examples")


def _tested(objective: Objective, test: Any) -> Objective | None:
    if test is None:
        return None
    batches = test.batches if isinstance(test, Objective) else freeze(test, objective.place)
    try:
        found = objective.on(list(batches))
        classes.error(found, classes.labels(found))
    except (RuntimeError, IndexError, ValueError) as error:  # of any model, on data it cannot take
        raise SpiritlevelError(
            f"test is no data of this network ({in_one_line(error)}); give (x, y) as in training"
        ) from None
    return found


# The prior ---------------------------------------------------------------------------------------


def _prepared(
    objective: Objective, init: Any, asked: _Asked, path: Any, test: Objective | None
) -> _Case:
    if asked.share and init is None:
        raise SpiritlevelError(
            "share trains the prior's mean from the weights before training, which know nothing of "
            "the rest: give init=..."
        )
    mean = priors.centre(objective, init, "init" if asked.share else asked.prior)
    key = {name: value for name, value in vars(asked).items() if name != "recipe"}
    key |= vars(asked.recipe)
    key |= {"the data": data_digest(objective), "the prior": digest(mean)}
    key |= {"the network": digest(objective.predictions()), "the loss": objective.value()}
    key |= {"the test data": None if test is None else data_digest(test)}
    case = _Case(
        asked,
        objective,
        objective,
        Gaussian(mean, torch.full_like(mean, asked.recipe.scale)),
        False,
        "the weights before training" if asked.prior == "init" else "zero",
        symmetries(objective) if asked.orbit else None,
        Checkpoint(path, key),
        premises=left_out(objective, init),
        notes=_doubts(objective, mean, asked),
    )
    return _informed(case) if asked.share else case


def _doubts(objective: Objective, mean: Tensor, asked: _Asked) -> tuple[str, ...]:
    """What looks as if a premise did not hold."""
    found = []
    trained_alike = asked.prior == "init" or asked.share
    if trained_alike and torch.equal(mean, objective.vector):
        found.append("init is the point of the objective: nothing holds if that was trained on it")
    if copies := repeated(objective):
        found.append(
            f"{copies} of {objective.examples} examples are copies of others: nothing holds if "
            "they are no independent draws"
        )
    return tuple(found)


def _informed(case: _Case) -> _Case:
    """With a prior whose mean was trained on a share of the examples, in the noise it will have."""
    asked, recipe = case.asked, case.asked.recipe
    few, rest = priors.divided(case.objective, asked.share, asked.seed)
    found = trained_posterior(
        few,
        case.prior,
        case.prior,
        cost=OfErrors(),
        recipe=replace(recipe, spread_rate=0.0),
        seed=asked.seed,
        keeper=case.keeper,
        stage="prior",
    )
    prior = Gaussian(found.posterior.mean, case.prior.spread)
    words = f"weights trained on {few.examples} of the examples, which the bound leaves out"
    return replace(
        case, rest=rest, prior=prior, fixed=True, words=words, interrupted=found.interrupted
    )


# The posterior -----------------------------------------------------------------------------------


def _start(case: _Case) -> Gaussian:
    """Spreads in proportion to the weights of each parameter; of an orbit where KL is least."""
    if case.fixed:
        return case.prior
    objective, start = case.objective, case.asked.recipe.start
    if case.group is not None:
        w = objective.vector
        around = Gaussian(w, (start * w.abs()).clamp(min=1e-12))
        places = priors.scales()
        mean = least_on_grid(
            around, case.prior.mean, places, case.group, objective.shapes, cost=priors.cost
        ).least.posterior.mean
    else:
        mean = objective.vector
    spread = torch.empty_like(mean)
    for span in objective.spans.values():
        spread[span] = start * mean[span].square().mean().sqrt()
    return Gaussian(mean, spread.clamp(min=1e-3 * start * float(mean.square().mean().sqrt())))


def _posterior(case: _Case) -> Trained:
    asked, start = case.asked, _start(case)
    if case.interrupted:
        return Trained(start, case.prior, (), case.interrupted)
    nats = math.log(2 * math.sqrt(case.m) / split(asked.delta)[0])
    if not case.fixed:
        nats += priors.cost(priors.rounded(start, case.prior.mean)[0] - 1)
    recipe = asked.recipe
    return trained_posterior(
        case.objective,
        start,
        case.prior,
        cost=OfBound(case.m, nats),
        recipe=replace(recipe, rate=recipe.informed_rate) if case.fixed else recipe,
        follows=not case.fixed,
        largest=priors.LARGEST,
        seed=asked.seed,
        keeper=case.keeper,
    )


def _ended(case: _Case, posterior: Gaussian) -> _Ended:
    prior, index, shapes = case.prior, None, case.objective.shapes
    if not case.fixed:
        index, prior = priors.rounded(posterior, case.prior.mean)
    if case.group is None:
        return _Ended(prior, index)
    if case.fixed:
        least, lowest, place = least_divergence(posterior, prior, case.group, shapes), prior, None
    else:
        assert index is not None
        found = least_on_grid(
            posterior,
            prior.mean,
            priors.scales(),
            case.group,
            shapes,
            cost=priors.cost,
            start=index - 1,
        )
        least, lowest, place = found.least, found.prior, found.index + 1
    carried(case.objective, posterior, case.group, least.t)  # which refuses what changes anything
    return _Ended(prior, index, least, lowest, place)


# The bounds --------------------------------------------------------------------------------------


def _counted(case: _Case, trained: Trained, on: Objective, stage: str) -> tuple[Drawn, str]:
    asked = case.asked
    draws = min(asked.draws, FEW) if trained.interrupted else asked.draws
    held = [] if trained.interrupted else case.keeper.errors(stage)
    network = drawing(on, trained.posterior, asked.seed)
    errors, came = drawn_errors(network, draws, held, f"{stage} errors")
    if not errors:
        raise KeyboardInterrupt
    if not trained.interrupted:
        case.keeper.write_errors(stage, errors)
    counting = split(asked.delta)[1]
    return mean_error(errors, counting), f"{len(errors)} of {draws} networks were drawn" * came


def _bounds(case: _Case, test: Objective | None, begin: float) -> Bounds:
    trained = _posterior(case)
    drawn, fewer = _counted(case, trained, case.rest, "training")
    stopped = "; ".join(said for said in (trained.interrupted, fewer) if said)
    tested = None
    if test is not None and not fewer:
        tested, fewer = _counted(case, trained, test, "test")
    ended = _ended(case, trained.posterior)
    origin = _origin(case, trained, ended, drawn, tested)
    rows = _rows(case, ended, drawn, origin)
    told = provenance(
        begin,
        [*case.objective.notes, *case.notes, *case.premises, *_guessed(case, rows)],
        Done(interrupted=stopped),
        **described(case.objective),
        seed=case.asked.seed,
        products=0.0,
    )
    return Bounds(tuple(rows), origin, told, posterior=trained.posterior)


def _rows(case: _Case, ended: _Ended, drawn: Drawn, origin: Origin) -> list[Row]:
    share = {"m": case.m, "delta": case.asked.delta}
    said = (f"the prior is centred at {case.words}", *case.premises)
    rows = certified("here", drawn, kl=origin.kl, index=ended.index, assumptions=said, **share)
    if ended.least is None:
        return rows
    said = (*said, "the posterior is carried along the orbit, which changes no prediction")
    kl, index = ended.least.kl, ended.least_index
    return rows + certified("orbit", drawn, kl=kl, index=index, assumptions=said, **share)


def _guessed(case: _Case, rows: list[Row]) -> list[str]:
    """What a bound is worth that is no better than a guess."""
    best = min(row.bound.value for row in rows)
    known = classes.labels(case.rest)
    chosen = [y[kept] for y, kept in zip(known.batches, known.counted, strict=True)]
    commonest = int(torch.cat(chosen).bincount().max())
    guess = 1 - commonest / known.units
    if best < guess:
        return []
    return [
        f"the bound, {best:.3g}, says nothing of what was learned: to name the commonest class "
        f"always errs on {guess:.3g} of the examples"
    ]


def _origin(
    case: _Case, trained: Trained, ended: _Ended, drawn: Drawn, tested: Drawn | None
) -> Origin:
    least = ended.least
    return Origin(
        drawn,
        tested,
        divergence(trained.posterior, ended.prior),
        None if least is None else least.kl,
        None if least is None else least.lower_bound,
        case.m,
        case.words,
        float(ended.prior.spread.double().square().mean().sqrt()),
        _parts(case, trained.posterior, ended),
        trained.steps,
    )


def _parts(case: _Case, posterior: Gaussian, ended: _Ended) -> tuple[Part, ...]:
    spans = case.objective.spans
    here = by_parameter(divergences(posterior, ended.prior), spans)
    there: dict[str, float] = {}
    if ended.least is not None and ended.least_prior is not None:
        there = by_parameter(divergences(ended.least.posterior, ended.least_prior), spans)
    return tuple(
        Part(name, span.stop - span.start, here[name], there.get(name))
        for name, span in spans.items()
    )
