"""A study: a grid of networks, how each is trained, and what is measured of it."""

from __future__ import annotations

import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError, writable
from spiritlevel.base.version import __version__
from spiritlevel.measures.asking import Asked, asked
from spiritlevel.objective import Objective
from spiritlevel.results.history import History
from spiritlevel.studies.definition import canonical, definition, digest, refuse_edited
from spiritlevel.studies.messages import Run

if TYPE_CHECKING:
    from spiritlevel.results.study import Findings
    from spiritlevel.studies.engines.base import Engine
    from spiritlevel.studies.store import Store

Config = Mapping[str, Any]
Job = tuple[Run, ...]
AT = " @ representative"
LARGEST = 2**63 - 1  # that SQLite and torch take
SETTINGS = ("tol", "rtol", "budget", "compile", "seed")


@dataclass(frozen=True)
class Trained:
    """What one training hands over.

    Measures are taken of `objective`, the training loss at the trained point; `init` are the
    weights before training and `losses` those of its steps, for measures that need them.
    """

    objective: Objective
    numbers: Mapping[str, float]  # with the study's outcome
    init: Any = None
    losses: Sequence[float] | None = None
    history: History | None = None


@dataclass(frozen=True)
class Wanted:
    """One measure of a study, at the trained point or at the representative of its orbit."""

    asked: Asked
    moved: bool
    definition: str
    own: str = ""  # of the source of a measure of the user's own

    @property
    def label(self) -> str:
        return self.asked.label + AT * self.moved


@dataclass(frozen=True, eq=False)
class Study:
    """Networks over a grid, trained and measured; `run` goes on where it was, killed at any time.

    - `grid`: axes with their values, of which all combinations are made, or the configurations.
    - `train(config, seed)` -> Trained, with every global random state set from the seed.
    - `representative`: measures that are taken where the weight norm of the orbit is least, too.
    - `settings` of measures: tol, rtol, budget, compile, seed. Nothing is compiled unless asked
      for, since "auto" asks the clock, and a run must come out the same when it is repeated.
    - `version` stands for the source of `train` in the hash of a run.
    - `train_many(((config, seed), ...))` trains a stack of at most `stack` networks, those with the
      same `together(config)`; an exception in its answer stands for a network that failed.
    - `objective(config, seed)`: untrained; with it and `keep_weights`, measures that are added are
      taken of the stored weights. Without it the training is repeated for them.
    - `controls`: axes or numbers that partial correlations are given.
    """

    name: str
    grid: Mapping[str, Sequence[Any]] | Sequence[Config]
    train: Callable[[Config, int], Trained]
    measures: Sequence[str] = ()
    seeds: int | Sequence[int] = 3
    outcome: str = "gap"
    representative: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    keep_weights: bool = False
    version: str = ""
    together: Callable[[Config], Hashable] | None = None
    train_many: Callable[[Sequence[tuple[Config, int]]], Sequence[Trained | Exception]] | None = (
        None
    )
    stack: int = 64
    controls: Sequence[str] = ()
    objective: Callable[[Config, int], Objective] | None = None

    def __post_init__(self) -> None:
        doors.a("name", self.name, str, "a text")
        doors.function("train", self.train, "a configuration and a seed")
        for name in ("together", "train_many", "objective"):
            if getattr(self, name) is not None:
                doors.function(name, getattr(self, name), "a configuration")
        doors.a("outcome", self.outcome, str, "the name of a number that train returns")
        doors.a("version", self.version, str, "a text")
        for name in ("name", "version"):
            _refuse_unwritable(name, getattr(self, name))
        doors.one_of("keep_weights", self.keep_weights, (True, False))
        doors.number("stack", self.stack, 1, whole=True)
        doors.a("settings", self.settings, Mapping, "a dict of settings of measure()")
        _settings(self.settings)
        doors.names_if_any("controls", self.controls)
        _ = self.configurations, self._seeds, self.wanted, self.definition

    # The plan ----------------------------------------------------------------------------------

    @functools.cached_property
    def configurations(self) -> tuple[dict[str, Any], ...]:
        """All of the grid, each once, as plain values."""
        found = tuple(_plain(config) for config in _configurations(self.grid))
        if not found:
            raise SpiritlevelError("grid is empty: give every axis a value")
        _refuse_other_axes(found)
        seen: dict[str, int] = {}
        for place, config in enumerate(found):
            if (first := seen.setdefault(canonical(config), place)) != place:
                raise SpiritlevelError(
                    f"grid has the configuration {config} twice, at {first} and {place}: leave "
                    "one out, and use seeds for repetitions"
                )
        return found

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Those that vary, with their values in the order of the grid."""
        names = dict.fromkeys(name for config in self.configurations for name in config)
        found = {n: [c[n] for c in self.configurations if n in c] for n in names}
        distinct = {
            n: list({canonical(v): v for v in values}.values()) for n, values in found.items()
        }
        return {name: values for name, values in distinct.items() if len(values) > 1}

    @functools.cached_property
    def _seeds(self) -> tuple[int, ...]:
        if isinstance(self.seeds, (int, Integral)):
            doors.number("seeds", self.seeds, 1, whole=True)
            return tuple(range(int(self.seeds)))
        doors.a("seeds", self.seeds, Sequence, "their number, or a list of whole numbers")
        for seed in self.seeds:
            doors.number("a seed of seeds", seed, 0, whole=True)
            if seed > LARGEST:
                raise SpiritlevelError(f"seeds has {seed}: give whole numbers up to {LARGEST}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SpiritlevelError(f"seeds={self.seeds!r}: give at least one, and each once")
        return tuple(int(seed) for seed in self.seeds)

    @functools.cached_property
    def definition(self) -> str:
        """Of what trains: its source, or the version of the study of this name."""
        if self.version:
            return f"version {self.version} of {self.name}"
        return definition(*self._trainer)

    @property
    def _trainer(self) -> tuple[str, Callable[..., Any]]:
        many = self.train_many
        return ("train", self.train) if many is None else ("train_many", many)

    @functools.cached_property
    def wanted(self) -> dict[str, Wanted]:
        """All measures by their labels, in the order in which they are taken."""
        here, moved = (asked(given) if given else [] for given in self._asked())
        both = [(one, False) for one in here] + [(one, True) for one in moved]
        found = [self._taken(one, far) for one, far in both]
        return {one.label: one for one in found}

    def _asked(self) -> tuple[Sequence[str], Sequence[str]]:
        for name in ("measures", "representative"):
            if isinstance(given := getattr(self, name), str):
                raise SpiritlevelError(f"{name} is {given!r}; give a list of names: [{given!r}]")
            doors.names_if_any(name, given)
        return self.measures, self.representative

    def _taken(self, one: Asked, moved: bool) -> Wanted:
        """What a measure is: its label, the settings, this version, and the source of your own."""
        function, own = one.entry.function, ""
        if not function.__module__.startswith("spiritlevel.") and not self.version:
            own = definition(f"the measure {one.name}", function)
        parts = (one.label, moved, _settings(self.settings), __version__, own or self.version)
        return Wanted(one, moved, digest(*parts), own)

    def refuse_edited(self) -> None:
        """Refuse where a file was edited since: its new text would not be what is run."""
        if self.version:
            return
        refuse_edited(*self._trainer, self.definition)
        for one in self.wanted.values():
            if one.own:
                refuse_edited(f"the measure {one.asked.name}", one.asked.entry.function, one.own)

    def runs(self) -> list[Run]:
        """Every network of the plan, one configuration after another."""
        pairs = itertools.product(self.configurations, self._seeds)
        return [Run(config, seed, digest(config, seed, self.definition)) for config, seed in pairs]

    def jobs(self) -> list[Job]:
        """Runs that are trained together: fixed by the plan, whatever is done already.

        What a network becomes depends on its stack by rounding. Stacks are filled seed by seed, so
        that those that were full stay as they were when seeds are added.
        """
        if self.train_many is None:
            return [(run,) for run in self.runs()]
        stacks: dict[Hashable, list[Run]] = {}
        runs, count = self.runs(), len(self._seeds)
        for run in itertools.chain.from_iterable(runs[i::count] for i in range(count)):
            stacks.setdefault(self._kind(run), []).append(run)
        size = self.stack
        return [tuple(s[i : i + size]) for s in stacks.values() for i in range(0, len(s), size)]

    def _kind(self, run: Run) -> Hashable:
        found = self.together(run.config) if self.together is not None else None
        try:
            hash(found)
        except TypeError:
            raise SpiritlevelError(
                f"together returned {doors.shown(found)}, which cannot be compared by its hash: "
                "return a number, a text or a tuple"
            ) from None
        return found

    # What is done with it ----------------------------------------------------------------------

    def run(
        self,
        store: str | os.PathLike[str] | Store = "study.db",
        *,
        engine: str | Engine = "here",
        workers: int | None = None,
        ray_address: str | None = None,
        resources: Mapping[str, float] | None = None,
        retry: bool = False,
    ) -> Store:
        """Compute what the store does not hold, and return the store.

        `engine` is "here", "pool" or "ray"; `resources` of one job on Ray are num_cpus, num_gpus
        and memory in bytes. `retry` tries again what failed. After Ctrl-C it goes on from there.
        """
        from spiritlevel.studies.driver import drive
        from spiritlevel.studies.engines import chosen
        from spiritlevel.studies.store import Store

        made = chosen(engine, workers, ray_address, resources)
        doors.one_of("retry", retry, (True, False))
        self.refuse_edited()  # before a file is made
        kept = store if isinstance(store, Store) else Store(store, create=True)
        drive(self, kept, made, retry=retry)
        if lost := kept.status(self).lost:
            warnings.warn(f"{lost}; retry=True tries again", stacklevel=2)
        return kept

    def findings(self, store: str | os.PathLike[str] | Store, **options: Any) -> Findings:
        """How well each measure ranks the outcome, over the networks that are done."""
        from spiritlevel.studies.analysis import analyse
        from spiritlevel.studies.store import Store

        kept = store if isinstance(store, Store) else Store(store)
        controls = doors.names_if_any("controls", self.controls)
        chosen = {"name": self.name, "outcome": self.outcome, "controls": controls}
        status = kept.status(self)
        if status.lost:
            raise SpiritlevelError(f"{status.lost}; mend it, and run with retry=True")
        told = {"planned": status.planned, "failed": len(status.failed)}
        return analyse(kept.networks(self), **{**chosen, **told, **options})


def _scalar(value: Any) -> Any:
    """Numbers of numpy and torch as Python's own."""
    return value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value


def _refuse_unwritable(what: str, text: str) -> None:
    if text != writable(text):
        raise SpiritlevelError(f"{what} is {text!r}, which no file takes: give letters of Unicode")


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON holds them: they have a place in the hash of every measure."""
    found = {name: _scalar(value) for name, value in given.items()}
    for name, value in found.items():
        doors.one_of("a name in settings", name, SETTINGS)
        finite = not isinstance(value, float) or math.isfinite(value)
        if not finite or not isinstance(value, (bool, int, float, str, type(None))):
            raise SpiritlevelError(
                f"settings[{name!r}]={doors.shown(value)}: give a finite number or a text"
            )
    return found


def _configurations(grid: Any) -> list[dict[str, Any]]:
    if isinstance(grid, Mapping):
        axes = {name: _values(name, values) for name, values in grid.items()}
        combined = itertools.product(*axes.values()) if axes else ()
        return [dict(zip(axes, values, strict=True)) for values in combined]
    if not isinstance(grid, Sequence) or isinstance(grid, str):
        raise SpiritlevelError(
            f"grid is a {type(grid).__name__}; give axes with their values, or configurations"
        )
    for config in grid:
        doors.a("a configuration of grid", config, Mapping, "a dict of axes and values")
    return [dict(config) for config in grid]


def _refuse_other_axes(found: Sequence[Config]) -> None:
    """Statistics hold one axis fixed while another varies: every network has a value on each."""
    first = found[0]
    for config in found:
        if odd := sorted(first.keys() ^ config.keys()):
            where = config if odd[0] in first else first
            raise SpiritlevelError(
                f"grid has the configuration {where} without {odd[0]!r}, which others have: give "
                "all of them the same axes, or make a study of each kind"
            )


def _values(name: Any, values: Any) -> list[Any]:
    if hasattr(values, "tolist"):  # numpy's
        values = values.tolist()
    if isinstance(values, (str, Mapping)) or not isinstance(values, (Sequence, range)):
        raise SpiritlevelError(f"the axis {name!r} of grid is {doors.shown(values)}: give a list")
    return list(values)


def _plain(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Numbers, texts and booleans by name: what JSON holds and statistics can group."""
    found = {}
    for name, value in config.items():
        plain = _scalar(value)
        finite = not isinstance(plain, float) or math.isfinite(plain)
        if not isinstance(name, str) or not name or not isinstance(plain, (bool, int, float, str)):
            raise SpiritlevelError(
                f"grid holds {name!r}: {doors.shown(value)}; give names with numbers, texts or "
                "booleans, and let train make the rest of them"
            )
        if not finite:
            raise SpiritlevelError(f"grid holds {name!r}: {plain}; give a finite number")
        _refuse_unwritable("an axis of grid", name)
        found[name] = plain
    return found
