"""`survey`: every bound that a network can have, side by side."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from spiritlevel.base.doors import names as listed
from spiritlevel.base.doors import number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds import norms
from spiritlevel.bounds.architecture import Chain, chain, sizes
from spiritlevel.bounds.box import flat_box
from spiritlevel.bounds.capacity import vc, vc_dimension
from spiritlevel.bounds.certify import ALL
from spiritlevel.bounds.fitted import decisions
from spiritlevel.bounds.network import chosen_recipe, pac_bayes, refuse_asked
from spiritlevel.bounds.noisy import noisy
from spiritlevel.bounds.rounding import written
from spiritlevel.measures.given import Given, before_training
from spiritlevel.objective import Objective, classes, described, only_objectives
from spiritlevel.orbit import representative
from spiritlevel.results.bound import Bound, Bounds, Row
from spiritlevel.results.loop import Done, one_by_one
from spiritlevel.results.provenance import provenance

HERE, BALANCED = "here", "balanced"
SAME = 1e-9  # relative: a bound that a rescaling leaves as it is


def survey(
    objective: Objective,
    *,
    init: Given = None,
    only: str | Sequence[str] | None = None,
    delta: float = 0.05,
    seed: int = 0,
    test: Any = None,
    epochs: int | None = None,
    draws: int | None = None,
    radius: float | None = None,
    orbit: bool = True,
    prior: Literal["init", "zero"] | None = None,
    share: float = 0.0,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Bounds:
    """Every bound of the network, or those called `only`, here and where its weights are balanced.

    Each holds with probability 1 - `delta` by itself. `init` are the weights before training, which
    priors and distances start from (zero if None). `test`, `epochs`, `draws`, `prior`, `share` and
    `checkpoint` are those of `pac_bayes`; `radius` is what no input that can be drawn is longer
    than. What cannot be had is left out with the reason, unless it was all that was asked for.
    Interrupted, it returns the bounds that are done.
    """
    only_objectives(objective)
    chosen = _chosen(only, radius)
    chosen_recipe(None, epochs)
    usual = "zero" if init is None and not share else "init"
    centre = usual if prior is None else prior
    refuse_asked(centre, share, 1 if draws is None else draws, delta, seed, orbit, checkpoint)
    given = None if init is None else before_training(objective, init)
    options = {"delta": delta, "seed": seed}
    more = {"test": test, "epochs": epochs, "draws": draws}
    more |= {"prior": centre, "share": share, "checkpoint": checkpoint}
    return _surveyed(_Asked(objective, init, given, radius, orbit, options, more), chosen)


def _surveyed(asked: _Asked, chosen: list[str]) -> Bounds:
    begin = time.perf_counter()
    done = one_by_one(
        chosen,
        lambda name: BOUNDS[name](asked),
        label="bounds",
        noun="bounds",
        refuses=(SpiritlevelError,),
        keeps_parts=True,
    )
    return _bounds(asked, done.require(), begin)


def _chosen(only: Any, radius: Any) -> list[str]:
    """The names that are asked for, in order; refuses what nothing can be asked with."""
    if radius is not None:
        number("radius", radius, above=0.0)
    found = list(BOUNDS) if only is None else listed("only", only)
    together = [bound.__name__ for bound in ALL]
    for name in found:
        if name in together:
            raise SpiritlevelError(
                f"only={name!r}: {', '.join(together)} follow from one event and are made "
                "together; give 'pac_bayes'"
            )
        one_of("only", name, BOUNDS)
    return [name for name in BOUNDS if name in found]


@dataclass(frozen=True)
class _Asked:
    """The network, and what all its bounds are asked with; what several need is made once."""

    objective: Objective
    init: Any
    start: Tensor | None
    radius: float | None
    orbit: bool
    options: dict[str, Any]
    more: dict[str, Any]

    @property
    def delta(self) -> float:
        return self.options["delta"]

    @functools.cached_property
    def points(self) -> dict[str, Objective]:
        """Where the network is, and where its weights are balanced if that is elsewhere."""
        if not self.orbit or self.unbalanced:
            return {HERE: self.objective}
        return {HERE: self.objective, BALANCED: self._twin.objective}

    @functools.cached_property
    def unbalanced(self) -> str:
        """Why there is no other point; empty where there is one."""
        try:
            found = self._twin
        except SpiritlevelError as error:
            return f"nothing is balanced: {error}"
        return "" if len(found.log_scales) else "no rescaling leaves this network as it is"

    @functools.cached_property
    def _twin(self) -> Any:
        return representative(self.objective)

    @functools.cached_property
    def chains(self) -> dict[str, Chain]:
        return {name: chain(there, self.start) for name, there in self.points.items()}

    def rows(self, bound: Callable[[str], Bound]) -> list[Row]:
        """A bound at every point; once where it is the same at both."""
        found = [Row(name, bound(name)) for name in self.points]
        values = [row.bound.value for row in found]
        if len(found) > 1 and math.isclose(*values, rel_tol=SAME):
            return found[:1]
        return found


def _pac_bayes(asked: _Asked) -> Bounds:
    given = {name: value for name, value in asked.more.items() if value is not None}
    return pac_bayes(
        asked.objective,
        init=asked.init,
        orbit=asked.orbit,
        **asked.options,
        **given,
    )


def _flat_box(asked: _Asked) -> list[Row]:
    prior = "zero" if asked.init is None else "init"
    given = {"init": asked.init, "prior": prior, "orbit": asked.orbit}
    return list(flat_box(asked.objective, **given, **asked.options).rows)


def _occam(asked: _Asked) -> list[Row]:
    return asked.rows(lambda p: written(asked.points[p], init=asked.start, delta=asked.delta))


def _noisy(asked: _Asked) -> list[Row]:
    given = {"init": asked.start, "points": len(asked.points), **asked.options}
    return asked.rows(lambda p: noisy(asked.points[p], **given))


def _vc(asked: _Asked) -> list[Row]:
    objective = asked.objective
    found = sizes(objective)
    layers = list(zip(found.parameters, found.units, strict=True))
    dimension = vc_dimension(layers, "units")
    if len(layers) > 1:
        dimension = min(dimension, vc_dimension(layers))
    known = decisions(objective)
    error = classes.error(objective, known)
    return [Row(HERE, vc(error=error, dimension=dimension, m=known.units, delta=asked.delta))]


def _spectral_margin(asked: _Asked) -> list[Row]:
    return asked.rows(lambda p: norms.spectral_margin(asked.chains[p], delta=asked.delta))


def _spectral_frobenius(asked: _Asked) -> list[Row]:
    return asked.rows(
        lambda p: norms.spectral_frobenius(asked.chains[p], radius=asked.radius, delta=asked.delta)
    )


def _path(asked: _Asked) -> list[Row]:
    return asked.rows(lambda p: norms.path(asked.points[p], asked.chains[p], delta=asked.delta))


def _bounds(asked: _Asked, done: Done[Any], begin: float) -> Bounds:
    main = done.found.get("pac_bayes")
    several = [found if isinstance(found, list) else found.rows for found in done.found.values()]
    rows = [row for found in reversed(several) for row in found]
    told = [*asked.objective.notes]
    if len(rows) > 1:
        told.append(f"each bound holds with probability {1 - asked.delta:g} by itself, not all")
    if asked.orbit and "points" in vars(asked) and asked.unbalanced:
        told.append(asked.unbalanced)
    if main is not None:
        told += main.provenance["notes"]
        done = replace(done, interrupted=done.interrupted or main.provenance["interrupted"])
    made = provenance(
        begin, told, done, **described(asked.objective), seed=asked.options["seed"], products=0.0
    )
    origin, posterior = (None, None) if main is None else (main.origin, main.posterior)
    return Bounds(tuple(rows), origin, made, posterior)


# cheap ones first: whoever is interrupted has them
BOUNDS: dict[str, Callable[[_Asked], list[Row] | Bounds]] = {
    "path": _path,
    "spectral_frobenius": _spectral_frobenius,
    "spectral_margin": _spectral_margin,
    "vc": _vc,
    "occam": _occam,
    "expected_sharpness": _noisy,
    "flat_box": _flat_box,
    "pac_bayes": _pac_bayes,
}
